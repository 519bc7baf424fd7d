#!/bin/sh
# A compiler of C and C++ for glibc 2.28 and newer, whatever glibc this machine has: zig, from PyPI's package ziglang, which brings
# stubs of each glibc and Clang's libc++. tools/wheels.py builds with it.
#
#     ZIG=…/zig zig.sh cc|c++ ARGUMENT…
set -eu
language=$1
shift
# It says the processor's level in its own way, and links C++'s library into each file unasked.
for argument; do
    shift
    case $argument in
    -march=x86-64-v*) argument=-mcpu=x86_64_v${argument##*v} ;;
    -static-libstdc++ | -static-libgcc) continue ;;
    esac
    set -- "$@" "$argument"
done
exec "$ZIG" "$language" -target x86_64-linux-gnu.2.28 "$@"
