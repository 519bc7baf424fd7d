#include "shim/managed/page_faults.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <mutex>

#include "libcuda/library.h"
#include "shim/managed/managed.h"
#include "shim/transport/request.h"
#include "shim/transport/threads.h"

namespace gpukernel::shim {

namespace {
// --- requests of handlers, and the thread that serves them ---

// A handler takes a free slot, makes its request in it and waits.  Once served, the slot is free: one that a
// handler left by siglongjmp is not lost, and a handler that misses its answer lets the program access the
// page again.
enum Phase : uint32_t { served, not_managed, taken, asked, phases };
struct alignas(64) Slot {
    std::atomic<uint32_t> state{served};  // a futex: the phase, and above it how often the slot was taken
    uint64_t address = 0;
    std::optional<bool> writing;
    bool reads = false;  // the thread reads answers, and so none comes before it goes on
};
constexpr uint32_t SLOTS = 64;
Slot slots[SLOTS];
std::atomic<uint32_t> next_slot{0}, doorbell{0};  // the bell is a futex
std::atomic<uint64_t> lowest{UINT64_MAX}, highest{0};

void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void serve() {
    for (;;) {
        const uint32_t rung = doorbell.load();
        for (Slot& slot : slots) {
            const uint32_t state = slot.state.load();
            if (state % phases != asked) continue;
            slot.state.store(state - asked +
                             (serve_fault(slot.address, slot.writing, !slot.reads) ? served : not_managed));
            wake(slot.state);
        }
        wait_while(doorbell, rung);
    }
}

// Runs in the handler, with all signals blocked until the request is made.  False where it is not of managed
// memory.
bool ask_server(uint64_t address, std::optional<bool> writing, const sigset_t& usual) {
    Slot* slot;
    uint32_t state;
    for (;;) {
        slot = &slots[next_slot.fetch_add(1) % SLOTS];
        uint32_t was = slot->state.load();
        state = was - was % phases + phases + taken;
        if (was % phases < taken && slot->state.compare_exchange_strong(was, state)) break;
        ::sched_yield();
    }
    slot->address = address, slot->writing = writing, slot->reads = reads_answers;
    state += asked - taken;
    slot->state.store(state);
    doorbell.fetch_add(1);
    wake(doorbell);
    ::pthread_sigmask(SIG_SETMASK, &usual, nullptr);
    uint32_t now;
    while ((now = slot->state.load()) == state) wait_while(slot->state, state);
    return now != state - asked + not_managed;
}

// --- the signal ---

std::mutex installing;
// The handler that was installed before ours, and one that the program installed later, whose predecessor may
// be ours.
struct sigaction first_handler{}, latest_handler{};
bool installed = false, replaced = false;
// The frame in which this thread calls another handler.  A handler that leaves by siglongjmp does not clear
// it; then the address of the next fault's frame shows whether the fault is nested.
GPUKERNEL_STATIC_THREAD_LOCAL const void* passing = nullptr;

struct Access {
    bool of_data = true;
    std::optional<bool> writing;
};
Access access(const ucontext_t* context) {
#ifdef __x86_64__
    const auto bits = context->uc_mcontext.gregs[REG_ERR];  // of the processor: written, instruction fetched
    return {!(bits & 16), (bits & 2) != 0};
#else
    (void)context;
    return {};
#endif
}

void default_action(const siginfo_t* info) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    ::sigaction(SIGSEGV, &plain, nullptr);
    // A faulting instruction runs again; a signal that was sent must be sent again.
    if (info->si_code <= 0) ::pthread_kill(::pthread_self(), SIGSEGV);
}

void pass_on(int signal, siginfo_t* info, void* context, const sigset_t& usual) {
    const void* const frame = __builtin_frame_address(0);
    const bool coming_back = replaced && passing && frame < passing;
    const struct sigaction next = coming_back ? first_handler : latest_handler;
    const bool plain = !(next.sa_flags & SA_SIGINFO);
    if (plain && next.sa_handler == SIG_IGN && info->si_code <= 0) return;
    if (plain && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN)) return default_action(info);
    if (next.sa_flags & SA_RESETHAND) {
        latest_handler = {};
        latest_handler.sa_handler = SIG_DFL;
    }
    sigset_t mask;
    ::sigorset(&mask, &usual, &next.sa_mask);
    if (!(next.sa_flags & SA_NODEFER)) ::sigaddset(&mask, SIGSEGV);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    const void* const outer = passing;
    passing = frame;
    if (plain)
        next.sa_handler(signal);
    else
        next.sa_sigaction(signal, info, context);
    passing = outer;
}

void on_fault(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const auto* interrupted = static_cast<const ucontext_t*>(context);
    const auto address = reinterpret_cast<uint64_t>(info->si_addr);
    const Access how = access(interrupted);
    // A forked child has neither the pages nor the thread that serves them.
    const bool may_be_managed = info->si_code > 0 && how.of_data && address >= lowest.load() &&
                                address < highest.load() && !holds_managed() && process();
    if (may_be_managed && Request::is_open())
        complain(IN_A_CALL);
    else if (may_be_managed && ask_server(address, how.writing, interrupted->uc_sigmask)) {
        errno = error;
        return;
    }
    pass_on(signal, info, context, interrupted->uc_sigmask);
    errno = error;
}
}  // namespace

bool serve_faults() {
    std::lock_guard lock(installing);
    static bool serving = false;
    return serving = serving || start_thread(serve);
}

void widen_faults(uint64_t begin, uint64_t end) {
    lowest = std::min(lowest.load(), begin);
    highest = std::max(highest.load(), end);
}

void watch_faults() {
    std::lock_guard lock(installing);
    struct sigaction now{};
    if (::sigaction(SIGSEGV, nullptr, &now) != 0) return;
    if (installed && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) return;
    if (!installed) first_handler = now;
    replaced = installed;
    latest_handler = now;
    struct sigaction ours{};
    ours.sa_sigaction = on_fault;
    ::sigfillset(&ours.sa_mask);
    // On the stack that the program's own handler uses, which may be there to report a stack overflow.
    ours.sa_flags = SA_SIGINFO | SA_RESTART | (now.sa_flags & SA_ONSTACK);
    if (::sigaction(SIGSEGV, &ours, nullptr) == 0) installed = true;
}

}  // namespace gpukernel::shim
