// The program gpukernel-worker: the process that owns one lease's CUDA context on one device.
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "worker/confinement/confinement.h"
#include "worker/lease/facts.h"
#include "worker/server/server.h"
#include "worker/server/validity.h"

using namespace gpukernel;
using namespace gpukernel::worker;

namespace {
constexpr char USAGE[] =
    "gpukernel-worker --list-devices --library PATH\n"
    "gpukernel-worker --describe --library PATH --device INDEX\n"
    "gpukernel-worker --probe --library PATH [--confine RUNGS] [--account UID:GID] [--cgroup DIR]...\n"
    "gpukernel-worker --library PATH --device INDEX --memory BYTES --weight W --lease ID --directory DIR\n"
    "                 [--tcp HOST:PORT] [--tls] [--orphan-seconds N] [--watchdog-seconds N] [--until N]\n"
    "                 [--time-slicing FILE] [--images DIR] [--host-memory BYTES]\n"
    "                 [--confine RUNGS] [--account UID:GID] [--cgroup DIR]...\n"
    "RUNGS, separated by commas: no-new-privileges, limits, landlock, system-calls, real-device.\n"
    "Executes one lease's CUDA calls on one device. The lease's secret comes as one line on standard input.\n"
    "Agents start it; there is no need to do so by hand.\n";

constexpr rlim_t DESCRIPTORS = 4096;

struct Options {
    std::string library, lease, directory, tcp, time_slicing, images;
    int device = 0, resume = -1;
    uint64_t memory = 0, host_memory = HostMemory::USUAL;
    double weight = 1, orphan_seconds = 120, watchdog_seconds = 0;
    bool list = false, describe = false, probe = false, tls = false;
    Confinement confinement;
};

// The state that a restart keeps: the new process image has a new context, but the same listeners and
// accounts.
struct Resumed {
    char secret[65];
    uint64_t limit, peak, calls, launches;
    double gpu_seconds;
    int unix_socket, tcp, control;
    char endpoints[2][256];
};

bool parse(int argc, char** argv, Options& options) {
    static const option known[] = {{"list-devices", no_argument, nullptr, 'l'},
                                   {"describe", no_argument, nullptr, 'f'},
                                   {"library", required_argument, nullptr, 'L'},
                                   {"device", required_argument, nullptr, 'd'},
                                   {"memory", required_argument, nullptr, 'm'},
                                   {"weight", required_argument, nullptr, 'w'},
                                   {"lease", required_argument, nullptr, 'i'},
                                   {"directory", required_argument, nullptr, 'D'},
                                   {"tcp", required_argument, nullptr, 't'},
                                   {"tls", no_argument, nullptr, 's'},
                                   {"orphan-seconds", required_argument, nullptr, 'o'},
                                   {"watchdog-seconds", required_argument, nullptr, 'g'},
                                   {"time-slicing", required_argument, nullptr, 'T'},
                                   {"images", required_argument, nullptr, 'I'},
                                   {"host-memory", required_argument, nullptr, 'H'},
                                   {"resume", required_argument, nullptr, 'r'},
                                   {"until", required_argument, nullptr, 'u'},
                                   {"probe", no_argument, nullptr, 'p'},
                                   {"confine", required_argument, nullptr, 'C'},
                                   {"account", required_argument, nullptr, 'A'},
                                   {"cgroup", required_argument, nullptr, 'G'},
                                   {nullptr, 0, nullptr, 0}};
    for (int c; (c = ::getopt_long(argc, argv, "", known, nullptr)) != -1;) {
        switch (c) {
            case 'l':
                options.list = true;
                break;
            case 'f':
                options.describe = true;
                break;
            case 'L':
                options.library = optarg;
                break;
            case 'd':
                options.device = std::atoi(optarg);
                break;
            case 'm':
                options.memory = std::strtoull(optarg, nullptr, 10);
                break;
            case 'w':
                options.weight = std::atof(optarg);
                break;
            case 'i':
                options.lease = optarg;
                break;
            case 'D':
                options.directory = optarg;
                break;
            case 't':
                options.tcp = optarg;
                break;
            case 's':
                options.tls = true;
                break;
            case 'o':
                options.orphan_seconds = std::atof(optarg);
                break;
            case 'g':
                options.watchdog_seconds = std::atof(optarg);
                break;
            case 'T':
                options.time_slicing = optarg;
                break;
            case 'I':
                options.images = optarg;
                break;
            case 'H':
                options.host_memory = std::strtoull(optarg, nullptr, 10);
                break;
            case 'u':
                validity.extend(std::atof(optarg));
                break;
            case 'r':
                options.resume = std::atoi(optarg);
                break;
            case 'p':
                options.probe = true;
                break;
            case 'C':
                if (!options.confinement.parse(optarg)) return false;
                break;
            case 'A':
                if (!options.confinement.parse_account(optarg)) return false;
                break;
            case 'G':
                options.confinement.cgroups.emplace_back(optarg);
                break;
            default:
                return false;
        }
    }
    options.confinement.library = options.library;
    options.confinement.images = options.images;
    options.confinement.time_slicing = options.time_slicing;
    if (const char* processes = std::getenv("GPUKERNEL_SIMGPU_PROCESSES"))
        options.confinement.processes = processes;
    return !options.library.empty() &&
           (options.list || options.describe || options.probe ||
            (options.memory && !options.lease.empty() && !options.directory.empty()));
}

std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
}

int refuse(const std::string& sentence) {
    std::printf("{\"ready\":false,\"error\":%s}\n", json_string(sentence).c_str());
    return 1;
}

int list_devices(const Options& options) {
    Driver cuda;
    std::string error;
    if (!cuda.load(options.library, error)) {
        std::fprintf(stderr, "%s\n", error.c_str());
        return 1;
    }
    int count = 0;
    cuda.cuDeviceGetCount(&count);
    std::printf("[");
    for (int i = 0; i < count; ++i) {
        char name[256] = {}, uuid[40];
        CUuuid id{};
        size_t bytes = 0;
        int major = 0, minor = 0, multiprocessors = 0;
        cuda.cuDeviceGetName(name, sizeof name, i);
        cuda.cuDeviceGetUuid_v2(&id, i);
        cuda.cuDeviceTotalMem_v2(&bytes, i);
        cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, i);
        cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, i);
        cuda.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, i);
        for (int b = 0; b < 16; ++b)
            std::snprintf(uuid + 2 * b, 3, "%02x", static_cast<unsigned char>(id.bytes[b]));
        std::printf(
            "%s{\"index\":%d,\"name\":%s,\"uuid\":\"%s\",\"memory_bytes\":%zu,\"compute_capability\":\"%d.%"
            "d\",\"multiprocessors\":%d}",
            i ? "," : "", i, json_string(name).c_str(), uuid, bytes, major, minor, multiprocessors);
    }
    std::printf("]\n");
    return 0;
}

// Writes the device's facts, unchanged, for the table of a slice in direct mode.
int describe(const Options& options) {
    Driver cuda;
    std::string error;
    wire::DeviceFacts facts{};
    if (!cuda.load(options.library, error)) {
        std::fprintf(stderr, "%s\n", error.c_str());
        return 1;
    }
    if (CUresult code = facts_of(cuda, options.device, facts); code != CUDA_SUCCESS) {
        std::fprintf(stderr, "device %d cannot be described: %s\n", options.device,
                     cuda.error_name(code).c_str());
        return 1;
    }
    return std::fwrite(&facts, sizeof facts, 1, stdout) == 1 ? 0 : 1;
}

// What a worker does first, all of which NVIDIA's driver needs more for than to be loaded: a context, memory,
// a kernel that it compiles, and a wait.  Returns the call that failed, or an empty text: also where the
// device has no room now, or not for one process more, which says nothing of rungs, and may pass.
std::string rehearse(Driver& cuda) {
    constexpr char KERNEL[] =
        ".version 7.0\n.target sm_52\n.address_size 64\n"
        ".visible .entry store(.param .u64 to) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [to]; "
        "mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }\n";
    CUcontext context;
    CUmodule module;
    CUfunction store;
    CUdeviceptr memory = 0;
    void* parameters[] = {&memory};
    const auto failed = [&](const char* call, CUresult code) {
        const bool taken = code == CUDA_ERROR_OUT_OF_MEMORY || code == CUDA_ERROR_DEVICE_UNAVAILABLE;
        return taken ? "" : std::string(call) + " failed (" + cuda.error_name(code) + ")";
    };
    if (CUresult code = cuda.cuDevicePrimaryCtxRetain(&context, 0)) return failed("a context", code);
    if (CUresult code = cuda.cuCtxSetCurrent(context)) return failed("a context", code);
    if (CUresult code = cuda.cuMemAlloc_v2(&memory, 4096)) return failed("memory", code);
    if (CUresult code = cuda.cuModuleLoadDataEx(&module, KERNEL, 0, nullptr, nullptr))
        return failed("compiling a kernel", code);
    if (CUresult code = cuda.cuModuleGetFunction(&store, module, "store")) return failed("a kernel", code);
    if (CUresult code = cuda.cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr))
        return failed("a launch", code);
    if (CUresult code = cuda.cuCtxSynchronize()) return failed("waiting for a kernel", code);
    return "";
}

// Says which rungs of its confinement this machine has, and whether the driver bears them all.
int probe(const Options& options) {
    const std::string rungs = options.confinement.probe();
    Driver cuda;
    std::string error;
    if (cuda.load(options.library, error) && !cuda.simulated()) error = rehearse(cuda);
    std::printf("{\"rungs\":%s,\"library\":%s}\n", rungs.c_str(), json_string(error).c_str());
    return 0;
}

bool read_secret(std::string& secret) {
    char line[128] = {};
    size_t size = 0;
    while (size < sizeof line - 1 && ::read(STDIN_FILENO, line + size, 1) == 1 && line[size] != '\n') ++size;
    secret.assign(line, size);
    ::explicit_bzero(line, sizeof line);
    return secret.size() == 64;
}

// Restarts the worker after its context was lost: executes itself under the same process id, with the
// listeners open all the while.
[[noreturn]] void restart(char** argv, const Options& options, Lease& lease, Server::Listeners& listeners) {
    Resumed state{};
    std::memcpy(state.secret, lease.secret.c_str(), std::min<size_t>(lease.secret.size(), 64));
    state.limit = lease.memory_limit(), state.peak = lease.memory_peak();
    state.calls = lease.calls, state.launches = lease.launches, state.gpu_seconds = lease.gpu_seconds();
    state.unix_socket = listeners.unix_socket.fd(), state.tcp = listeners.tcp.fd(),
    state.control = listeners.control.fd();
    for (size_t i = 0; i < listeners.endpoints.size() && i < 2; ++i)
        std::snprintf(state.endpoints[i], 256, "%s", listeners.endpoints[i].c_str());
    const int memory = ::memfd_create("gpukernel-worker", 0);
    if (memory < 0 || ::write(memory, &state, sizeof state) != sizeof state) std::_Exit(1);
    ::lseek(memory, 0, SEEK_SET);
    for (int fd : {state.unix_socket, state.tcp, state.control})
        if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
    std::vector<std::string> words{argv[0],
                                   "--library",
                                   options.library,
                                   "--device",
                                   std::to_string(options.device),
                                   "--memory",
                                   std::to_string(state.limit),
                                   "--weight",
                                   std::to_string(lease.time_slicing.weight()),
                                   "--lease",
                                   options.lease,
                                   "--directory",
                                   options.directory,
                                   "--orphan-seconds",
                                   std::to_string(options.orphan_seconds),
                                   "--watchdog-seconds",
                                   std::to_string(options.watchdog_seconds),
                                   "--time-slicing",
                                   options.time_slicing,
                                   "--images",
                                   options.images,
                                   "--host-memory",
                                   std::to_string(options.host_memory),
                                   "--until",
                                   std::to_string(validity.until()),
                                   "--resume",
                                   std::to_string(memory)};
    if (options.tls) words.push_back("--tls");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv("/proc/self/exe", arguments.data());
    std::_Exit(1);
}

bool resume(const Options& options, Lease& lease, Server::Listeners& listeners) {
    Resumed state{};
    if (::read(options.resume, &state, sizeof state) != sizeof state) return false;
    ::close(options.resume);
    lease.secret = state.secret;
    lease.limit(state.limit);
    lease.restore_peak(state.peak);
    lease.calls = state.calls, lease.launches = state.launches;
    lease.restore_gpu_seconds(state.gpu_seconds);
    listeners.unix_socket = wire::Socket(state.unix_socket), listeners.tcp = wire::Socket(state.tcp),
    listeners.control = wire::Socket(state.control);
    for (int fd : {state.unix_socket, state.tcp, state.control})
        if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (const char* endpoint : state.endpoints)
        if (*endpoint) listeners.endpoints.emplace_back(endpoint);
    return true;
}

// The places of programs and strangers together, and what the driver opens.  A program that uses select()
// bears no more than 1024, and this one does not.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= DESCRIPTORS) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, DESCRIPTORS);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool open_listeners(const Options& options, Server::Listeners& listeners, std::string& error) {
    const std::string data = options.directory + "/data.sock";
    listeners.unix_socket = wire::listen_unix(data, 0666, error);  // the handshake protects it
    if (!listeners.unix_socket) return false;
    listeners.endpoints.push_back("unix:" + data);
    if (!options.tcp.empty()) {
        const size_t colon = options.tcp.rfind(':');
        int port = colon == std::string::npos ? 0 : std::atoi(options.tcp.c_str() + colon + 1);
        listeners.tcp = wire::listen_tcp(options.tcp.substr(0, colon), port, error);
        if (!listeners.tcp) return false;
        listeners.endpoints.push_back((options.tls ? "tls:" : "tcp:") + options.tcp.substr(0, colon) + ":" +
                                      std::to_string(port));
    }
    listeners.control = wire::listen_unix(options.directory + "/control.sock", 0600, error);
    return static_cast<bool>(listeners.control);
}
}  // namespace

int main(int argc, char** argv) {
    Options options;
    if (!parse(argc, argv, options)) {
        std::fputs(USAGE, stderr);
        return 2;
    }
    if (options.list) return list_devices(options);
    if (options.describe) return describe(options);
    if (options.probe) return probe(options);
    ::signal(SIGPIPE, SIG_IGN);
    ::prctl(PR_SET_DUMPABLE, 0);  // the secret is in this process's memory
    ::mallopt(M_ARENA_MAX, 2);    // fifty workers share a machine with a class's notebooks
    ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
    // The usual choice of NVIDIA's driver: code that nobody uses takes neither memory nor time.
    ::setenv("CUDA_MODULE_LOADING", "LAZY", 0);

    auto lease = std::make_unique<Lease>();
    Server::Listeners listeners;
    std::string error;
    raise_descriptor_limit();
    listeners.tls = options.tls;
    const auto make_tls = [&] {  // OpenSSL prepares itself once
        return !options.tls || wire::Tls::make(wire::Tls::End::worker, lease->secret, error);
    };
    lease->id = options.lease;
    lease->device = options.device;
    lease->limit(options.memory);
    lease->host_memory.limit(options.host_memory);
    lease->time_slicing.set_weight(options.weight);
    if (options.resume >= 0) {
        report_refused_system_calls();  // all else of the confinement has outlasted the restart
        if (!resume(options, *lease, listeners)) return 1;
        if (!make_tls()) return refuse(error);
    } else {
        if (!options.confinement.enter(error)) return refuse(error);
        if (!read_secret(lease->secret))
            return refuse("the lease's secret must be one line of 64 hexadecimal digits on standard input");
        if (!open_listeners(options, listeners, error)) return refuse(error);
        if (!options.time_slicing.empty()) TimeSlicing::prepare(options.time_slicing);
        if (!make_tls())
            return refuse(error);  // before anything confines this process: the library is a file
        if (!options.confinement.close(error)) return refuse(error);
    }
    validity.enforce();  // its thread is confined like all others, which it must not precede
    if (!options.images.empty()) lease->images.open(options.images, options.resume >= 0);
    if (!lease->cuda.load(options.library, error)) return refuse(error);
    lease->cuda.bound(lease->host_memory);
    CUresult code = lease->cuda.cuDevicePrimaryCtxRetain(&lease->context, options.device);
    if (code == CUDA_SUCCESS) code = lease->cuda.cuCtxSetCurrent(lease->context);
    if (code != CUDA_SUCCESS)
        return refuse("device " + std::to_string(options.device) +
                      " gave no context: " + lease->cuda.error_name(code));

    lease->footprint.use_device(lease->cuda, options.device);
    if (!lease->cuda.simulated()) lease->freed.use_device(options.device);
    lease->footprint_at_first = lease->footprint.bytes().value_or(0);
    lease->loads_lazily = lease->cuda.loads_lazily();
    lease->local_memory_on_device = lease->cuda.local_memory_on_device();
    if (!options.time_slicing.empty() &&
        !lease->time_slicing.open(
            options.time_slicing, [&] { return lease->cuda.cuCtxSynchronize(); },
            [&] { lease->cuda.cuCtxSetCurrent(lease->context); }, lease->stray_error,
            [&](const ExecutionGate& gate) {
                return lease->cuda.set_execution_gate &&
                       lease->cuda.set_execution_gate(options.device, &gate) == CUDA_SUCCESS;
            }))
        return refuse(options.time_slicing +
                      " could not be opened, where the workers of this device take turns");

    if (options.resume < 0) {
        std::string ready = "{\"ready\":true,\"pid\":" + std::to_string(::getpid()) + ",\"endpoints\":[";
        for (size_t i = 0; i < listeners.endpoints.size(); ++i)
            ready += (i ? "," : "") + json_string(listeners.endpoints[i]);
        std::printf("%s]}\n", ready.c_str());
        std::fflush(stdout);
    }
    capture_output();

    auto* server = new Server(*lease, std::move(listeners), options.orphan_seconds, options.watchdog_seconds);
    const Server::Ending ending = server->run();
    if (ending == Server::Ending::poisoned) restart(argv, options, *lease, server->listeners());
    if (ending == Server::Ending::orphaned)  // or nobody would know why it is gone
        std::fprintf(stderr,
                     "gpukernel: this worker ends: it has not heard of its agent for %.0f s, or of the pool "
                     "for too long\n",
                     options.orphan_seconds);
    // The process's end frees the device; threads of programs may still be inside the driver.
    ::unlink((options.directory + "/data.sock").c_str());
    ::unlink((options.directory + "/control.sock").c_str());
    std::_Exit(0);
}
