#!/bin/sh
# run.sh FUZZER [OPTION…]: one fuzzer of build/fuzz on its corpus, which is begun by seeds.py and kept in build/fuzz.
# A finding is a file beside the corpus and a failure; docs/robustness.md says what to do with it.
set -eu
name=$1
shift
here=$(dirname "$0")
build=${FUZZ_BUILD:-$here/../../../build/fuzz}
corpus=${FUZZ_CORPUS:-$build/corpus-$name}
python "$here/seeds.py" "$name" "$corpus"
# What a worker or a shim tells people would be a line for each input.
case $name in frames | answers) mask=2 ;; *) mask=0 ;; esac
[ -f "$here/$name.dict" ] && set -- -dict="$here/$name.dict" "$@"
# A session takes threads that outlive it; memory that is never given back shows in the limit on what is resident.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1
# An image may say that it unpacks to 1 GiB, which a worker charges to the slice first.
exec "$build/$name" -max_len=16384 -timeout=60 -rss_limit_mb=2500 -malloc_limit_mb=1100 -close_fd_mask=$mask \
    -artifact_prefix="$build/found-$name-" -print_final_stats=1 "$@" "$corpus"
