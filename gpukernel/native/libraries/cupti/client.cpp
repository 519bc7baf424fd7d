// CUPTI in the user's program: profilers find it, ask for records and get none, since the driver that would
// make them is the server's.  One sentence says so.  What does not answer "nothing" answers "not supported".
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "libraries/library.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = 27;  // CUPTI_ERROR_NOT_SUPPORTED
}

namespace gpukernel::libraries::cupti {

namespace {
constexpr uint32_t VERSION = GPUKERNEL_MAJOR == 12 ? 28 : 130001;  // cupti_version.h's, of 12.9 and 13.0
constexpr char NOTHING[] =
    "CUPTI records nothing on a slice: a profile has what the program does, and no times of the device";

enum Status {
    SUCCESS = 0,
    INVALID_PARAMETER = 1,
    MAX_LIMIT_REACHED = 12,
    QUEUE_EMPTY = 18,
    NOT_SUPPORTED = 27,
    MULTIPLE_SUBSCRIBERS = 39
};

struct State {
    std::mutex mutex;
    bool subscribed = false;
    uint32_t thread_ids = 0;  // CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT
};
State& state() {
    static State* const instance = new State;  // threads may be inside at exit
    return *instance;
}
bool is_subscriber(const void* subscriber) {
    std::lock_guard lock(state().mutex);
    return state().subscribed && subscriber == &state();
}
// By kind what a thread has pushed; gone with the last one, and not with the thread: profilers come while the
// process ends.
thread_local std::map<uint32_t, std::vector<uint64_t>>* correlations = nullptr;
int nothing() {
    complain(NOTHING);
    return SUCCESS;
}
}  // namespace

GPUKERNEL_EXPORT int cuptiGetVersion(uint32_t* version) {
    if (!version) return INVALID_PARAMETER;
    *version = VERSION;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cuptiGetResultString(int status, const char** text) {
    if (!text) return INVALID_PARAMETER;
    switch (status) {
        case SUCCESS:
            *text = "CUPTI_SUCCESS";
            return SUCCESS;
        case INVALID_PARAMETER:
            *text = "CUPTI_ERROR_INVALID_PARAMETER";
            return SUCCESS;
        case MAX_LIMIT_REACHED:
            *text = "CUPTI_ERROR_MAX_LIMIT_REACHED";
            return SUCCESS;
        case QUEUE_EMPTY:
            *text = "CUPTI_ERROR_QUEUE_EMPTY";
            return SUCCESS;
        case NOT_SUPPORTED:
            *text = "CUPTI_ERROR_NOT_SUPPORTED";
            return SUCCESS;
        case MULTIPLE_SUBSCRIBERS:
            *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
            return SUCCESS;
        default:
            *text = "CUPTI_ERROR_UNKNOWN";
            return INVALID_PARAMETER;
    }
}
GPUKERNEL_EXPORT int cuptiGetErrorMessage(int status, const char** text) {
    return cuptiGetResultString(status, text);
}
GPUKERNEL_EXPORT int cuptiGetLastError() { return SUCCESS; }

GPUKERNEL_EXPORT int cuptiGetTimestamp(uint64_t* nanoseconds) {
    if (!nanoseconds) return INVALID_PARAMETER;
    timespec now;
    ::clock_gettime(CLOCK_REALTIME, &now);
    *nanoseconds = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cuptiFinalize() {
    std::lock_guard lock(state().mutex);
    state().subscribed = false;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cuptiSetThreadIdType(uint32_t type) {
    if (type > 1) return INVALID_PARAMETER;
    std::lock_guard lock(state().mutex);
    state().thread_ids = type;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cuptiGetThreadIdType(uint32_t* type) {
    if (!type) return INVALID_PARAMETER;
    std::lock_guard lock(state().mutex);
    *type = state().thread_ids;
    return SUCCESS;
}

// --- callbacks, which are never made ---

GPUKERNEL_EXPORT int cuptiSubscribe(void** subscriber, void*, void*) {
    if (!subscriber) return INVALID_PARAMETER;
    std::lock_guard lock(state().mutex);
    if (state().subscribed) return MULTIPLE_SUBSCRIBERS;
    state().subscribed = true;
    *subscriber = &state();
    return SUCCESS;
}
GPUKERNEL_EXPORT int cuptiUnsubscribe(void* subscriber) {
    if (!is_subscriber(subscriber)) return INVALID_PARAMETER;
    return cuptiFinalize();
}
GPUKERNEL_EXPORT int cuptiSupportedDomains(size_t* count, const uint32_t** domains) {
    if (!count || !domains) return INVALID_PARAMETER;
    static constexpr uint32_t none = 0;
    *count = 0, *domains = &none;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cuptiEnableCallback(uint32_t enable, void* subscriber, uint32_t, uint32_t) {
    if (!is_subscriber(subscriber)) return INVALID_PARAMETER;
    return enable ? nothing() : SUCCESS;
}
GPUKERNEL_EXPORT int cuptiEnableDomain(uint32_t enable, void* subscriber, uint32_t) {
    return cuptiEnableCallback(enable, subscriber, 0, 0);
}
GPUKERNEL_EXPORT int cuptiEnableAllDomains(uint32_t enable, void* subscriber) {
    return cuptiEnableCallback(enable, subscriber, 0, 0);
}

// --- records, of which there are none ---

GPUKERNEL_EXPORT int cuptiActivityRegisterCallbacks(void* requested, void* completed) {
    return requested && completed ? SUCCESS : INVALID_PARAMETER;
}
GPUKERNEL_EXPORT int cuptiActivityRegisterTimestampCallback(void* clock) {
    return clock ? SUCCESS : INVALID_PARAMETER;
}
GPUKERNEL_EXPORT int cuptiActivitySetAttribute(uint32_t, size_t* size, const void* value) {
    return size && value ? SUCCESS : INVALID_PARAMETER;
}
GPUKERNEL_EXPORT int cuptiActivityEnable(uint32_t) { return nothing(); }
GPUKERNEL_EXPORT int cuptiActivityEnableAndDump(uint32_t) { return nothing(); }
GPUKERNEL_EXPORT int cuptiActivityDisable(uint32_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityEnableContext(void*, uint32_t) { return nothing(); }
GPUKERNEL_EXPORT int cuptiActivityDisableContext(void*, uint32_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityEnableRuntimeApi(uint32_t, uint8_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityEnableDriverApi(uint32_t, uint8_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityEnableLatencyTimestamps(uint8_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityFlush(void*, uint32_t, uint32_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityFlushAll(uint32_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityFlushPeriod(uint32_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cuptiActivityGetNextRecord(const uint8_t*, size_t, void**) { return MAX_LIMIT_REACHED; }
GPUKERNEL_EXPORT int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
    if (!dropped) return INVALID_PARAMETER;
    *dropped = 0;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
    if (!correlations) correlations = new std::map<uint32_t, std::vector<uint64_t>>;
    (*correlations)[kind].push_back(id);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t* last) {
    if (!correlations) return QUEUE_EMPTY;
    const auto own = correlations->find(kind);
    if (own == correlations->end()) return QUEUE_EMPTY;
    if (last) *last = own->second.back();
    own->second.pop_back();
    if (own->second.empty()) correlations->erase(own);
    if (correlations->empty()) delete std::exchange(correlations, nullptr);
    return SUCCESS;
}

#include "cupti_unsupported.inc"

}  // namespace gpukernel::libraries::cupti
