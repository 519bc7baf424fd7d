#include "shim/transport/copies.h"

#include <algorithm>

#include "shim/managed/managed.h"
#include "shim/transport/early_reads.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

bool in_a_block(const Connection& connection, CUdeviceptr address, uint64_t bytes) {
    const auto& blocks = connection.spares.blocks;
    auto block = blocks.upper_bound(address);
    if (block == blocks.begin()) return false;
    --block;
    return address - block->first < block->second && bytes <= block->second - (address - block->first);
}

namespace {
// Whether what is left of a stream's work up to `number`, the newest `other` work among it, is copies alone.
bool copies_alone(Connection& connection, const Finished::Stream& of, uint64_t number, uint64_t other) {
    if (!connection.tells_of_streams || connection.foresight.shares || has_managed() || has_mirrors())
        return false;
    const uint64_t passed_by = std::max(of.passed, connection.finished.all);
    return !of.blocks && other <= passed_by && has_run(connection, of.call) &&
           std::all_of(of.joins.begin(), of.joins.end(), [&](const Finished::Join& join) {
               return join.number <= passed_by || join.number > number ||
                      (passed(connection, join.event) && has_run(connection, join.event.call));
           });
}

void settle(Connection& connection, uint64_t stream, uint64_t event, uint64_t number) {
    ++connection.foresight.requests;
    append_request(connection, static_cast<uint16_t>(wire::CustomCall::settle_copies),
                   [&](wire::Writer& to) { wire::SettleCopiesRequest{stream, event}.write(to); });
    connection.queued();
    pass(connection, stream, number);
}
}  // namespace

void note_copy(Connection& connection, uint64_t stream, CUdeviceptr to, uint64_t bytes) {
    Finished& finished = connection.finished;
    const uint64_t number = connection.foresight.requests;
    Finished::Stream* const of = find_stream(connection, canonical(stream));
    if (of && in_a_block(connection, to, bytes))
        finished.sure = number;
    else if (of)
        of->other = number;
    if (bytes && bytes <= wire::FEW_EARLY_BYTES) note_small_copy(connection, canonical(stream), {to, bytes});
}

bool may_settle(Connection& connection, uint64_t stream) {
    look_at_news(connection);
    const Finished::Stream* const of = find_stream(connection, stream);
    return of && copies_alone(connection, *of, connection.foresight.requests,
                              std::max(of->other, connection.finished.anywhere));
}

bool settle_copies(Connection& connection, uint64_t stream) {
    if (!may_settle(connection, stream)) return false;
    settle(connection, stream, 0, connection.foresight.requests + 1);
    return true;
}

bool settle_copies(Connection& connection, CUevent event, const Finished::Recording& recording) {
    look_at_news(connection);
    const Finished::Stream* const of = find_stream(connection, recording.stream);
    if (!of || !copies_alone(connection, *of, recording.number, recording.other)) return false;
    settle(connection, recording.stream, reinterpret_cast<uint64_t>(event), recording.number);
    return true;
}

}  // namespace gpukernel::shim
