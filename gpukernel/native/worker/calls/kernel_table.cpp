// What the simulated GPU says of the lease's kernels, for whoever holds the lease's secret.
#include "common/kernel_table.h"

#include <deque>
#include <string>

#include "worker/session/session.h"

namespace gpukernel::worker {
namespace {

// Names and sentences are as long as a program wants them; an answer is not.
constexpr size_t MOST_NAME = LONGEST_KERNEL_NAME, MOST_REASON = 256, MOST_FILE = 64;

double seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }
// A copy as long as the answer is made: the table's own texts may change.
std::string_view keep(std::deque<std::string>& texts, std::string_view text, size_t most) {
    return texts.emplace_back(text.substr(0, most));
}

}  // namespace

CUresult serve_kernels(Session& session, Reader&, Writer& out) {
    const ReadKernels read = session.cuda().read_kernels;
    if (!read) return CUDA_ERROR_NOT_SUPPORTED;
    struct Found {
        std::deque<std::string> texts;
        wire::KernelsAnswer answer;
    } found;
    found.answer.others = read(
        [](void* to, const KernelUse& one) {
            auto& [texts, answer] = *static_cast<Found*>(to);
            answer.kernels.push_back({keep(texts, one.name, MOST_NAME), keep(texts, one.reason, MOST_REASON),
                                      one.compiled, one.launches, one.compiled_launches, one.failed,
                                      seconds(one.nanoseconds), seconds(one.compile_nanoseconds)});
        },
        &found);
    found.answer.write(out);
    return CUDA_SUCCESS;
}

CUresult serve_profile(Session& session, Reader& in, Writer& out) {
    const auto action = wire::ProfileRequest::read(in).action;
    if (in.failed() || action > static_cast<uint8_t>(Profiling::end)) return CUDA_ERROR_INVALID_VALUE;
    const ProfileKernels profile = session.cuda().profile_kernels;
    if (!profile) return CUDA_ERROR_NOT_SUPPORTED;
    struct Found {
        std::deque<std::string> texts;
        wire::ProfileAnswer answer;
    } found;
    found.answer.others = profile(
        static_cast<Profiling>(action),
        [](void* to, const KernelProfile& one) {
            auto& [texts, answer] = *static_cast<Found*>(to);
            wire::ProfileRecord& record = answer.profiles.emplace_back();
            record.name = keep(texts, one.name, MOST_NAME);
            record.range = keep(texts, one.range, MOST_RANGE);
            record.reason = keep(texts, one.reason, MOST_REASON);
            record.limit = keep(texts, one.limit, MOST_REASON);
            record.compiled = one.compiled;
            record.block_x = one.block[0], record.block_y = one.block[1], record.block_z = one.block[2];
            record.registers = one.registers, record.shared_memory_bytes = one.shared_memory_bytes;
            record.resident_blocks = one.resident_blocks, record.most_warps = one.most_warps;
            record.launches = one.launches, record.failed = one.failed, record.blocks = one.blocks;
            record.seconds = seconds(one.nanoseconds);
#define GPUKERNEL_COUNT(name) record.name = one.counts.name;
            GPUKERNEL_KERNEL_COUNTS(GPUKERNEL_COUNT)
#undef GPUKERNEL_COUNT
            for (size_t n = 0; n < one.line_count; ++n)
                record.lines.push_back({keep(texts, one.lines[n].file, MOST_FILE), one.lines[n].line,
                                        one.lines[n].instructions});
        },
        &found);
    found.answer.write(out);
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::worker
