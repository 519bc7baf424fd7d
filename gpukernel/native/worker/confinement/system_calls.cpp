// The allow-list of system calls, as a filter of seccomp (seccomp(2)).
//
// The list is what strace showed of workers under the whole of tests/remoting, tests/kernels and tests/e2e,
// and for each the calls that other versions of the C library make in its place.  It is a plain BPF program:
// libseccomp would be one more library of each GPU server for what is a page here.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

#include "worker/confinement/confinement.h"

namespace gpukernel::worker {

namespace {
constexpr int ALLOWED[] = {
    // waiting, the hot ones first
    SYS_futex,
    SYS_poll,
    SYS_ppoll,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_read,
    SYS_write,
    SYS_recvmsg,
    SYS_recvfrom,
    SYS_sched_yield,
    SYS_madvise,
    SYS_mbind,  // of its own pages: OpenBLAS asks for them close by
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_time,
    SYS_getcpu,
    SYS_restart_syscall,
    // memory
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_brk,
    SYS_msync,
    SYS_mincore,
    SYS_memfd_create,
    SYS_fallocate,
    SYS_ftruncate,
    // threads and signals of its own
    SYS_set_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_gettid,
    SYS_getpid,
    SYS_getppid,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_membarrier,
    SYS_sched_getaffinity,
    SYS_arch_prctl,
    SYS_pause,
    // connections that were accepted
    SYS_accept4,
    SYS_accept,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_epoll_ctl,
    SYS_epoll_create1,
    SYS_eventfd2,
    SYS_pipe2,
    // files that Landlock and the account leave open
    SYS_openat,
    SYS_open,
    SYS_close,
    SYS_lseek,
    SYS_pread64,
    SYS_pwrite64,
    SYS_readv,
    SYS_writev,
    SYS_fstat,
    SYS_stat,
    SYS_lstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_fstatfs,
    SYS_statfs,
    SYS_access,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlink,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_flock,
    SYS_dup,
    SYS_dup2,
    SYS_dup3,
    SYS_link,
    SYS_linkat,
    SYS_unlink,
    SYS_unlinkat,
    SYS_utimensat,
    SYS_umask,
    // what it is, where it runs
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
    SYS_getrlimit,
    SYS_times,
    SYS_getrandom,
    // the restart after a lost context: Landlock says what may be executed
    SYS_execve,
};

// What NVIDIA's driver calls besides, by what strace showed of workers on an H100 with driver 580.
constexpr int ALLOWED_BESIDE_NVIDIA[] = {
    SYS_ioctl,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    // for /dev/char, where the account and Landlock let it
    SYS_mkdir,
    SYS_symlink,
    // the sockets below
    SYS_bind,
    SYS_listen,
};
// The driver offers its descriptor of unified memory to other processes by a socket of this kind.
constexpr uint32_t DRIVERS_SOCKET = SOCK_SEQPACKET | SOCK_CLOEXEC;

// A call that is admitted where an argument is one of `values`; where `mask` is given, its bits are compared.
struct Condition {
    int call, argument;
    uint32_t mask;
    std::vector<uint32_t> values;
};

std::vector<Condition> conditions(bool real_device) {
    const uint32_t everything = ~0u, own = static_cast<uint32_t>(::getpid());
    std::vector<Condition> all{
        // MSG_FASTOPEN would connect a socket anew.
        {SYS_sendmsg, 2, MSG_FASTOPEN, {0}},
        {SYS_sendto, 3, MSG_FASTOPEN, {0}},
        {SYS_clone, 0, CLONE_THREAD, {CLONE_THREAD}},  // threads, no processes
        {SYS_tgkill, 0, everything, {own}},
        {SYS_sched_setaffinity, 0, everything, {0, own}},
        {SYS_prctl, 0, everything, {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_DUMPABLE, 0x53564d41}},
        // Not F_SETOWN and F_SETSIG: they send signals.
        {SYS_fcntl,
         1,
         everything,
         {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETPIPE_SZ, F_GETPIPE_SZ,
          F_ADD_SEALS, F_GET_SEALS}},
    };
    // NVIDIA's compiler locks the index of its cache, where the worker may open that.
    if (real_device)
        all.back().values.insert(all.back().values.end(),
                                 {F_GETLK, F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW});
    if (!real_device) all.push_back({SYS_ioctl, 1, everything, {FIONREAD, SIOCOUTQ, TCGETS, TIOCGWINSZ}});
    return all;
}

constexpr struct {
    int number;
    const char* name;
} NAMES[] = {
#include "system_call_names.inc"
};

std::atomic<uint64_t> reported[1024 / 64];

// Runs inside whatever thread made the call: only what signal-safety(7) allows.
void refused(int, siginfo_t* info, void* context) {
    const unsigned number = info->si_syscall;
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
    if (number >= 1024) return;
    const uint64_t bit = uint64_t{1} << number % 64;
    if (reported[number / 64].fetch_or(bit) & bit) return;
    char line[128] = "the system refused this worker a call that no worker needs: ";
    char* to = line + std::strlen(line);
    const char* name = "number ";
    for (const auto& one : NAMES)
        if (one.number == static_cast<int>(number)) name = one.name;
    to = ::stpcpy(to, name);
    if (name[std::strlen(name) - 1] == ' ') {
        for (unsigned digit = 100; digit; digit /= 10) *to++ = static_cast<char>('0' + number / digit % 10);
    }
    *to++ = '\n';
    const int kept = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, to - line);
    errno = kept;
}

constexpr uint32_t field(size_t at) { return static_cast<uint32_t>(at); }
}  // namespace

void report_refused_system_calls() {
    struct sigaction action{};
    action.sa_sigaction = refused;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    ::sigaction(SIGSYS, &action, nullptr);
}

bool restrict_system_calls(bool real_device, std::string& error) {
    std::vector<sock_filter> program;
    const auto load = [&](size_t at) { program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field(at))); };
    const auto answer = [&](uint32_t value) { program.push_back(BPF_STMT(BPF_RET | BPF_K, value)); };
    const auto unless_equal_skip = [&](uint32_t value, size_t count) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, static_cast<uint8_t>(count)));
    };
    load(offsetof(seccomp_data, arch));
    unless_equal_skip(AUDIT_ARCH_X86_64, 1);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0));
    answer(SECCOMP_RET_KILL_PROCESS);  // another architecture's numbers
    load(offsetof(seccomp_data, nr));
    for (const Condition& one : conditions(real_device)) {
        // The lower half of the argument: flags, commands and process ids are 32 bits wide.
        unless_equal_skip(one.call, 3 + 2 * one.values.size());
        load(offsetof(seccomp_data, args) + 8 * one.argument);
        program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, one.mask));
        for (uint32_t value : one.values) {
            unless_equal_skip(value, 1);
            answer(SECCOMP_RET_ALLOW);
        }
        answer(SECCOMP_RET_TRAP);
    }
    // Signals to itself; of others it may only ask whether they live.
    unless_equal_skip(SYS_kill, 6);
    load(offsetof(seccomp_data, args));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(::getpid()), 2, 0));
    load(offsetof(seccomp_data, args) + 8);
    unless_equal_skip(0, 1);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_TRAP);
    unless_equal_skip(SYS_clone3, 1);  // its flags lie in memory; the C library then uses clone
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    // Limits are read, never set: both halves of the pointer to new ones are zero.
    unless_equal_skip(SYS_prlimit64, 6);
    load(offsetof(seccomp_data, args) + 16);
    unless_equal_skip(0, 3);
    load(offsetof(seccomp_data, args) + 20);
    unless_equal_skip(0, 1);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_TRAP);
    // The policy of the thread itself, which that makes no more urgent; of no other worker's.
    unless_equal_skip(SYS_sched_setscheduler, 6);
    load(offsetof(seccomp_data, args));
    unless_equal_skip(0, 3);
    load(offsetof(seccomp_data, args) + 8);
    unless_equal_skip(SCHED_BATCH, 1);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_TRAP);
    for (int call : ALLOWED) {
        unless_equal_skip(call, 1);
        answer(SECCOMP_RET_ALLOW);
    }
    if (real_device) {
        for (int call : ALLOWED_BESIDE_NVIDIA) {
            unless_equal_skip(call, 1);
            answer(SECCOMP_RET_ALLOW);
        }
        // It looks for MPS, and hears that there is none.  No connection is made: even one that was accepted
        // could be dissolved and made anew, to anywhere.
        unless_equal_skip(SYS_connect, 1);
        answer(SECCOMP_RET_ERRNO | ENOENT);
        unless_equal_skip(SYS_socket, 6);
        load(offsetof(seccomp_data, args));
        unless_equal_skip(AF_UNIX, 3);
        load(offsetof(seccomp_data, args) + 8);
        unless_equal_skip(DRIVERS_SOCKET, 1);
        answer(SECCOMP_RET_ALLOW);
        answer(SECCOMP_RET_TRAP);
    }
    answer(SECCOMP_RET_TRAP);

    report_refused_system_calls();
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    // Without the flag, kernels before 5.16 slow all speculation of a filtered process down.
    unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    long done = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (done != 0) done = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    if (done == 0) return true;
    error = std::string("system calls cannot be filtered: ") + std::strerror(errno);
    return false;
}

}  // namespace gpukernel::worker
