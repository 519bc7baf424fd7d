#include "shim/transport/memo.h"

#include "calls.h"
#include "shim/transport/connection.h"

namespace gpukernel::shim {

std::optional<uint64_t> recall(Connection& connection, const Question& question) {
    std::lock_guard lock(connection.mutex);
    const auto found = connection.memo.answers.find(question);
    if (found == connection.memo.answers.end() || !connection.alive()) return std::nullopt;
    return found->second;
}

void remember(Connection& connection, const Question& question, uint64_t answer) {
    std::lock_guard lock(connection.mutex);
    if (connection.memo.answers.size() >= Memo::MOST) connection.memo.answers.clear();
    connection.memo.answers[question] = answer;
}

bool changes_kernels(uint16_t call) {
    using wire::CustomCall;
    using wire::DriverCall;
    switch (call) {
        case static_cast<uint16_t>(CustomCall::reset):
        case static_cast<uint16_t>(DriverCall::cuModuleUnload):
        case static_cast<uint16_t>(DriverCall::cuLibraryUnload):
        case static_cast<uint16_t>(DriverCall::cuFuncSetAttribute):
        case static_cast<uint16_t>(DriverCall::cuFuncSetCacheConfig):
        case static_cast<uint16_t>(DriverCall::cuKernelSetAttribute):
        case static_cast<uint16_t>(DriverCall::cuKernelSetCacheConfig):
        case static_cast<uint16_t>(DriverCall::cuCtxSetLimit):
            return true;
        default:
            return false;
    }
}

}  // namespace gpukernel::shim
