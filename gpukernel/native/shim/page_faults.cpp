#include "page_faults.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <cerrno>
#include <mutex>

#include "managed.h"

namespace gpukernel::shim {

namespace {
std::mutex installing;
// What was there when the first fault could come, and what a program put in our place later, whose own
// predecessor may be us.
struct sigaction first_handler{}, latest_handler{};
bool installed = false, replaced = false;
// The frame in which this thread calls another's handler.  One that leaves by siglongjmp never comes back to
// clear it: then the next fault is told from one inside it by where its frame lies.
thread_local const void* passing = nullptr;

std::optional<bool> writes(const void* context) {
#ifdef __x86_64__
    return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return std::nullopt;
#endif
}

void default_action(const siginfo_t* info) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    ::sigaction(SIGSEGV, &plain, nullptr);
    // A faulting instruction runs again and meets it; what was sent has to be sent again.
    if (info->si_code <= 0) ::pthread_kill(::pthread_self(), SIGSEGV);
}

void pass_on(int signal, siginfo_t* info, void* context) {
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
    sigset_t mask = next.sa_mask, before;
    ::pthread_sigmask(SIG_BLOCK, &mask, &before);
    if (next.sa_flags & SA_NODEFER) {
        ::sigemptyset(&mask);
        ::sigaddset(&mask, SIGSEGV);
        ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
    }
    const void* const outer = passing;
    passing = frame;
    if (plain)
        next.sa_handler(signal);
    else
        next.sa_sigaction(signal, info, context);
    passing = outer;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void on_fault(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    if (info->si_code <= 0 || !serve_fault(reinterpret_cast<uint64_t>(info->si_addr), writes(context)))
        pass_on(signal, info, context);
    errno = error;
}
}  // namespace

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
    ::sigemptyset(&ours.sa_mask);
    // On the stack that the program's own handler wants: it may be there to tell of an overflow of the other.
    ours.sa_flags = SA_SIGINFO | SA_RESTART | (now.sa_flags & SA_ONSTACK);
    if (::sigaction(SIGSEGV, &ours, nullptr) == 0) installed = true;
}

}  // namespace gpukernel::shim
