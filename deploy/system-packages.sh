#!/bin/sh
# Installs what pip cannot bring: a C++ compiler, Python's venv module and, where it can, OpenSSL's static libraries, and the packages that are named. Silent when
# nothing is missing.
#
#     system-packages.sh [--optional|--no-compiler] [PACKAGE…]
#         --optional: go on without those that cannot be had    --no-compiler: nothing is to be built
set -eu
optional=
compiler=yes
case ${1-} in
--optional) optional=yes && shift ;;
--no-compiler) compiler= && shift ;;
esac
missing=
if [ -z "$optional" ]; then
    [ -z "$compiler" ] || command -v c++ >/dev/null 2>&1 || missing="$missing g++"
    "${PYTHON:-python3}" -c 'import venv, ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
    # Wanted, not needed: without it there is no TLS between programs and workers, and the build says so.
    # Debian 13's libcrypto.a needs the other two.
    if [ -n "$compiler" ] && [ -z "$(find /usr/lib /usr/local/lib -name libssl.a 2>/dev/null | head -n 1)" ]; then
        "$0" --optional libssl-dev zlib1g-dev libzstd-dev || true
    fi
fi
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing$missing …"
    apt-get update -qq || [ -n "$optional" ]
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || [ -n "$optional" ]
elif [ -z "$optional" ]; then
    echo "Missing:$missing. Install them (Debian, Ubuntu: sudo apt-get install$missing) and run make again." >&2
    exit 1
fi
