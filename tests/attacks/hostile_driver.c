// A driver library for tests: the simulated GPU's, with a door that executes hostile code inside the worker.
//
// It is what an attacker has who has broken into a worker: native code with all of the process's rights.  Tests
// start a whole server whose `simgpu/libcuda.so.1` is this library.  A "module" whose text has a line
//     //HOSTILE VERB WORDS…
// executes that, and is then loaded as a module with two variables: `outcome` (a result, or -errno) and `answer`
// (the first 1024 bytes of a buffer that the act may have filled).
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char answer[1024];

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void *wait_for_the_count(void *nothing) {
    pthread_mutex_lock(&counting);
    pthread_mutex_unlock(&counting);
    return nothing;
}

// How many threads could be started, of at most `most`.
static long threads(long most) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    long count = 0;
    pthread_mutex_lock(&counting);
    for (pthread_t thread; count < most && pthread_create(&thread, &small, wait_for_the_count, NULL) == 0;) ++count;
    pthread_mutex_unlock(&counting);
    usleep(500000);  // the answer needs a thread or two
    return count;
}

// How many bytes of memory could be filled, of at most `most`; where the system ends the process, nobody hears.
static long fill(long most) {
    const long step = 16l << 20;
    for (long bytes = 0; bytes < most; bytes += step) {
        char *memory = mmap(NULL, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return bytes;
        memset(memory, 1, step);
    }
    return most;
}

// system(3)'s act, by the plainest system calls: a shell's first line of output.
static long shell(const char *command) {
    int ends[2];
    if (pipe(ends) != 0) return -errno;
    const pid_t child = fork();
    if (child < 0) return -errno;
    if (child == 0) {
        dup2(ends[1], 1), dup2(ends[1], 2);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(126);
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], answer, sizeof answer - 1);
    int status = 0;
    waitpid(child, &status, 0);
    return got < 0 ? -errno : WEXITSTATUS(status);
}

// syscall NUMBER ARGUMENTS…: integers, @ for the answer's buffer, xHEX for bytes, any other word for a string.
static long any_call(char *words) {
    static char bytes[6][512];
    long arguments[7] = {0};
    int count = 0;
    for (char *word; count < 7 && (word = strsep(&words, " ")) != NULL; ++count) {
        char *end;
        const long number = strtol(word, &end, 0);
        if (*word && !*end) {
            arguments[count] = number;
        } else if (strcmp(word, "@") == 0) {
            arguments[count] = (long)answer;
        } else if (*word == 'x') {
            char *to = bytes[count - 1];
            memset(to, 0, sizeof bytes[0]);
            for (unsigned value; sscanf(++word, "%2x", &value) == 1; ++word) *to++ = (char)value;
            arguments[count] = (long)bytes[count - 1];
        } else {
            snprintf(bytes[count - 1], sizeof bytes[0], "%s", word);
            arguments[count] = (long)bytes[count - 1];
        }
    }
    const long result = syscall(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                                arguments[5], arguments[6]);
    return result == -1 ? -errno : result;
}

// cat PATH: the file's first bytes.
static long cat(const char *path) {
    const int file = open(path, O_RDONLY);
    if (file < 0) return -errno;
    const ssize_t got = read(file, answer, sizeof answer - 1);
    const long result = got < 0 ? -errno : got;
    close(file);
    return result;
}

static long act(char *line) {
    static long count;  // since this program image began
    ++count;
    char *words = line;
    const char *verb = strsep(&words, " ");
    memset(answer, 0, sizeof answer);
    if (strcmp(verb, "syscall") == 0) return any_call(words);
    if (strcmp(verb, "cat") == 0) return cat(words);
    if (strcmp(verb, "shell") == 0) return shell(words);
    if (strcmp(verb, "threads") == 0) return threads(atol(words));
    if (strcmp(verb, "fill") == 0) return fill(atol(words));
    if (strcmp(verb, "pid") == 0) return getpid();
    if (strcmp(verb, "count") == 0) return count;
    return -ENOSYS;
}

static char *module_of(const char *image) {
    static const char mark[] = "//HOSTILE ";
    const char *line = strstr(image, mark);
    if (!line) return NULL;
    line += strlen(mark);
    char *mine = strndup(line, strcspn(line, "\n"));
    const long result = act(mine);
    free(mine);
    char *text = malloc(5 * sizeof answer + 512), *to = text;
    to += sprintf(to, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .u64 outcome = %ld;\n"
                      ".visible .global .align 8 .b8 answer[%zu] = {", result, sizeof answer);
    for (size_t i = 0; i < sizeof answer; ++i) to += sprintf(to, i ? ",%u" : "%u", (unsigned char)answer[i]);
    sprintf(to, "};\n");
    return text;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    static __typeof__(&cuModuleLoadData) next;
    if (!next) next = (__typeof__(next))dlsym(dlopen(SIMGPU, RTLD_NOW | RTLD_NOLOAD), "cuModuleLoadData");
    char *other = module_of(image);
    const CUresult code = next(module, other ? other : image);
    free(other);
    return code;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                            void **values) {
    static __typeof__(&cuModuleLoadDataEx) next;
    if (!next) next = (__typeof__(next))dlsym(dlopen(SIMGPU, RTLD_NOW | RTLD_NOLOAD), "cuModuleLoadDataEx");
    char *other = module_of(image);
    const CUresult code = next(module, other ? other : image, count, options, values);
    free(other);
    return code;
}
