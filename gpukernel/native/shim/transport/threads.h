// The shim's own threads.
#pragma once

#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace gpukernel::shim {

// A function of the program's may end the thread that calls it: Python does so with one that comes back to it
// at its end.  The system then unwinds the shim's frames with the unwinder that is linked into the shim,
// which knows the registers only from its first exception on, and would abort the program before.
inline void know_registers() {
    static const bool known = [] {
        try {
            throw 0;
        } catch (int) {
            return true;
        }
    }();
    (void)known;
}

// Starts a detached thread with all signals blocked, since they are for the program's threads; false where
// the system gives no more.
template <class Function>
bool start_thread(Function&& function) {
    know_registers();
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        std::thread(std::forward<Function>(function)).detach();
    } catch (const std::system_error&) {
        started = false;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

}  // namespace gpukernel::shim
