// The shim's own threads.
#pragma once

#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace gpukernel::shim {

// Starts a detached thread with all signals blocked, since they are for the program's threads; false where
// the system gives no more.
template <class Function>
bool start_thread(Function&& function) {
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
