#include "nvml/slice.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/lease_file.h"
#include "wire/body.h"
#include "wire/handshake.h"
#include "wire/lease_wait.h"

namespace {
using Clock = std::chrono::steady_clock;
using gpukernel::wire::CustomCall;
using gpukernel::wire::FrameHeader;
using gpukernel::wire::Reader;

constexpr int ANSWER_SECONDS = 2;
constexpr auto LOST_TIME =
    std::chrono::seconds(1);  // a worker that did not answer is not asked again at once
constexpr uint32_t MOST_ANSWER = 1 << 20;

unsigned users = 0;  // nvmlInit less nvmlShutdown
// Never destroyed: threads may be inside at exit.
auto& known = *new std::vector<std::unique_ptr<nvmlDevice_st>>;
size_t present = 0;  // the first so many of them are the lease's devices
}  // namespace

void nvmlDevice_st::belong_to(unsigned place, std::vector<std::string> endpoints, std::string secret) {
    index = place;
    endpoints_ = std::move(endpoints), secret_ = std::move(secret);
    lost_ = {}, knows_facts_ = false;
    table_.close();
}

void nvmlDevice_st::forget() {
    channel_ = {};
    table_.close();
}

std::string nvmlDevice_st::directory() const {
    constexpr std::string_view KIND = "direct:";
    return !endpoints_.empty() && endpoints_[0].starts_with(KIND) ? endpoints_[0].substr(KIND.size()) : "";
}

bool nvmlDevice_st::connect() {
    if (channel_) return true;
    if (lost_ != Clock::time_point{} && Clock::now() - lost_ < LOST_TIME) return false;
    std::string reason;
    channel_ = gpukernel::wire::connect_to_worker(endpoints_, secret_, ANSWER_SECONDS, reason);
    lost_ = channel_ ? Clock::time_point{} : Clock::now();
    return static_cast<bool>(channel_);
}

bool nvmlDevice_st::ask_once(CustomCall question, std::vector<char>& answer) {
    const FrameHeader request{0, static_cast<uint16_t>(question), 0};
    struct {
        FrameHeader header;
        gpukernel::wire::AnswerHead answer;
    } head;
    if (!channel_.write(&request, sizeof request) || !channel_.read(&head, sizeof head)) return false;
    if (head.header.call != request.call || head.header.length < sizeof head.answer ||
        head.header.length > MOST_ANSWER || head.answer.result || head.answer.printed)
        return false;
    answer.resize(head.header.length - sizeof head.answer);
    return channel_.read(answer.data(), answer.size());
}

nvmlReturn_t nvmlDevice_st::ask(CustomCall question, std::vector<char>& answer) {
    for (bool fresh : {!channel_, true}) {
        if (!connect()) break;
        if (ask_once(question, answer)) return NVML_SUCCESS;
        forget();
        if (fresh) break;
    }
    if (lost_ == Clock::time_point{}) lost_ = Clock::now();
    return NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nvmlDevice_st::facts(const gpukernel::wire::DeviceFacts*& facts) {
    if (const std::string place = directory(); !place.empty()) {
        if (!table_.open(place)) return NVML_ERROR_GPU_IS_LOST;
        facts_ = (*table_).facts;
        facts_.memory_bytes = (*table_).limit;
    } else if (!knows_facts_) {
        std::vector<char> answer;
        if (nvmlReturn_t error = ask(CustomCall::device, answer)) return error;
        if (answer.size() != sizeof facts_) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        std::memcpy(&facts_, answer.data(), sizeof facts_);
        knows_facts_ = true;
    }
    facts = &facts_;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDevice_st::usage(gpukernel::nvml::Usage& usage) {
    if (const std::string place = directory(); !place.empty()) {
        if (!table_.open(place)) return NVML_ERROR_GPU_IS_LOST;
        table_.usage(usage);
        return NVML_SUCCESS;
    }
    std::vector<char> answer;
    if (nvmlReturn_t error = ask(CustomCall::usage, answer)) return error;
    Reader in(answer.data(), answer.size());
    const auto told = gpukernel::wire::UsageAnswer::read(in);
    usage.memory_limit = told.memory_limit;
    usage.memory_used = told.memory_used;
    usage.gpu_seconds = told.gpu_seconds;
    usage.gpu_share = told.gpu_share;
    usage.programs.clear();
    for (const auto& program : told.programs)
        usage.programs.push_back({program.pid, program.memory, std::string(program.command)});
    return in.failed() ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_SUCCESS;
}

namespace gpukernel::nvml {

std::mutex state_mutex;

namespace {
// A forked child has its parent's sockets; it makes its own.
void before_fork() { state_mutex.lock(); }
void in_parent() { state_mutex.unlock(); }
void in_child() {
    for (auto& device : known) device->forget();
    state_mutex.unlock();
}

// A job of Slurm has its slice as long as it runs, whether it computes or not; in its first moment it may not
// be there yet.
void wait_for_slice_of_job() {
    wire::LeaseFile lease;
    std::string reason;
    if (!wire::find_lease(lease, reason) && wire::lease_of_job(lease))
        wire::wait_for_lease(lease.socket, lease.kernel, reason);
}
}  // namespace

nvmlReturn_t begin() {
    wait_for_slice_of_job();
    std::lock_guard lock(state_mutex);
    static const int registered = ::pthread_atfork(before_fork, in_parent, in_child);
    (void)registered;
    if (users) return ++users, NVML_SUCCESS;
    wire::LeaseFile lease;
    std::string reason;
    if (!wire::find_lease(lease, reason)) return NVML_ERROR_DRIVER_NOT_LOADED;
    for (present = 0; present < lease.devices.size(); ++present) {
        if (present == known.size()) known.push_back(std::make_unique<nvmlDevice_st>());
        nvmlDevice_st& device = *known[present];
        device.belong_to(static_cast<unsigned>(present), lease.devices[present], lease.secret);
    }
    ++users;
    return NVML_SUCCESS;
}

nvmlReturn_t end() {
    std::lock_guard lock(state_mutex);
    if (!users) return NVML_ERROR_UNINITIALIZED;
    if (--users == 0)
        for (auto& device : known) device->forget();
    return NVML_SUCCESS;
}

nvmlReturn_t devices(std::vector<nvmlDevice_t>& devices) {
    if (!users) return NVML_ERROR_UNINITIALIZED;
    devices.clear();
    for (size_t i = 0; i < present; ++i) devices.push_back(known[i].get());
    return NVML_SUCCESS;
}

nvmlReturn_t check(nvmlDevice_t device) {
    if (!users) return NVML_ERROR_UNINITIALIZED;
    const auto end = known.begin() + static_cast<ptrdiff_t>(present);
    const bool found = std::any_of(known.begin(), end, [&](auto& one) { return one.get() == device; });
    return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace gpukernel::nvml
