#!/bin/sh
# sanitized.sh PREFIX SANITIZERS PYTHON…: runs PYTHON with the native part of PREFIX, which was built with SANITIZERS.
# Python is not, so the sanitizer's library must be there before it.  A report ends the process that made it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$1" && pwd)
sanitizers=$2
export GPUKERNEL_TEST_SANITIZED="$sanitizers"
shift 2
export GPUKERNEL_NATIVE_DIR="$prefix/gpukernel/native"
if [ "$sanitizers" = thread ]; then
    export GPUKERNEL_TEST_MEMORY_FACTOR=8  # it keeps a history of each thread
    # Python's own threads are none of ours: only the worker and the device in it are watched, programs take the libraries that
    # are installed.
    installed=$(env -u GPUKERNEL_NATIVE_DIR "$1" -c 'from gpukernel import native; print(native.shim_dir().parent)')
    for part in shim cudart compilers ptxas libraries direct; do
        if [ -d "$installed/$part" ]; then cp -r "$installed/$part" "$GPUKERNEL_NATIVE_DIR/"; fi
    done
else
    # The sanitizer's dlopen does not know where NVRTC looks for the library beside it.
    builtins=$("$1" -c 'import glob, importlib.util as u
spec = u.find_spec("nvidia.cuda_nvrtc")
print(*(f for p in (spec.submodule_search_locations if spec else []) for f in glob.glob(p + "/lib/libnvrtc-builtins.so.*") if "alt" not in f))')
    LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so) $builtins"
    export LD_PRELOAD
fi
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0:abort_on_error=1:quarantine_size_mb=8
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="halt_on_error=1:suppressions=$here/thread_sanitizer.supp"
exec "$@"
