#include "shim/transport/memo.h"

#include <array>

#include "shim/transport/request.h"

namespace gpukernel::shim {

std::optional<uint64_t> recall(Connection& connection, const Question& question) {
    std::lock_guard lock(connection.mutex);
    const auto found = connection.memo.answers.find(question);
    if (found == connection.memo.answers.end() || !connection.alive()) return std::nullopt;
    return found->second;
}

void remember(Connection& connection, uint64_t request, const Question& question, uint64_t answer) {
    std::lock_guard lock(connection.mutex);
    Memo& memo = connection.memo;
    if (memo.changed > request) return;
    if (memo.answers.size() >= Memo::MOST) memo.answers.clear();
    memo.answers[question] = answer;
}

void remember_others(Connection& connection, Question question, size_t varies, Request& request) {
    for (;;) {
        const auto [value, answer] = request.get<wire::OtherAnswer>();
        if (request.failed()) return;  // older workers send none
        question.words[varies] = value;
        remember(connection, request.number(), question, static_cast<uint64_t>(answer));
    }
}

namespace {
constexpr bool may_change_kernels(uint16_t call) {
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
// Whether a handle of a function is a library's kernel: what is set by it is the function's, which has
// another.
bool names_a_kernel(Connection& connection, CUfunction function) {
    Request request(connection, wire::DriverCall::cuKernelGetFunction);
    request.put(reinterpret_cast<uint64_t>(function));
    return request.send() == CUDA_SUCCESS;
}
}  // namespace

constinit const std::array<bool, static_cast<size_t>(wire::DriverCall::end)> CHANGING = [] {
    std::array<bool, static_cast<size_t>(wire::DriverCall::end)> all{};
    for (size_t call = 0; call < all.size(); ++call)
        all[call] = may_change_kernels(static_cast<uint16_t>(call));
    return all;
}();

std::optional<CUresult> foreseen_cuFuncSetAttribute(Connection& connection, CUfunction function,
                                                    CUfunction_attribute attribute, int value) {
    auto& settings = connection.memo.settings;
    const Question which{static_cast<uint16_t>(wire::DriverCall::cuFuncSetAttribute),
                         {reinterpret_cast<uint64_t>(function), static_cast<uint64_t>(attribute)}};
    bool is_new;
    {
        std::lock_guard lock(connection.mutex);
        const auto found = settings.find(which);
        is_new = found == settings.end();
        if (!is_new && found->second.value == value && connection.alive()) return CUDA_SUCCESS;
    }
    if (is_new && names_a_kernel(connection, function)) {
        std::lock_guard lock(connection.mutex);
        settings.clear();
        return std::nullopt;
    }
    Request request(connection, wire::DriverCall::cuFuncSetAttribute);
    if (settings.size() >= Memo::MOST) settings.clear();
    settings[which] = {request.number(), std::nullopt};
    request.put(reinterpret_cast<uint64_t>(function)), request.put(attribute), request.put(value);
    const CUresult result = request.send();
    std::lock_guard lock(connection.mutex);
    const auto found = settings.find(which);
    if (result == CUDA_SUCCESS && found != settings.end() && found->second.request == request.number())
        found->second.value = value;
    return result;
}

}  // namespace gpukernel::shim
