#!/bin/bash
# Installs Horovod for .venv's torch and MPI, built for minutes and then kept in the user's cache:
# scripts/horovod.sh. A second call waits for the first, and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh
umask 022 # ordinary users run in this environment too

version=0.28.1
python=$PWD/.venv/bin/python
recipe=$(cat scripts/horovod.sh scripts/horovod.cmake | sha256sum | cut -c1-12)
key=$("$python" -c 'if True:
    import importlib.metadata, sys
    print(sys.implementation.cache_tag, importlib.metadata.version("torch"), sep="-")
')-$(uname -m)-$recipe
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/detslurm/horovod/$key
stamp=.venv/.installed-horovod-$key

# Debian's Python has its headers apart.
has_headers() {
    "$python" -c 'if True:
        import os, sys, sysconfig
        sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
    '
}

build() {
    local packages=(g++ make cmake)
    has_headers || packages+=(python3-dev)
    install_packages "${packages[@]}" && has_headers || {
        say "Horovod is built from source: g++, make, cmake and Python.h are needed"
        exit 3
    }
    say "building Horovod $version, which takes minutes; its log is $wheels/log"
    export PATH=$PWD/.venv/bin:$PATH MAKEFLAGS=-j$(nproc)
    export CMAKE_TOOLCHAIN_FILE=$PWD/scripts/horovod.cmake CMAKE_POLICY_VERSION_MINIMUM=3.5
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_NVTX=1
    "$python" -m pip wheel --disable-pip-version-check --use-pep517 --no-build-isolation --no-deps \
        --no-binary horovod --wheel-dir "$wheels" "horovod==$version" >"$wheels/log" 2>&1 </dev/null || {
        tail -n 40 "$wheels/log" >&2
        return 1
    }
}

[ -e "$stamp" ] && exit 0
mkdir -p "$wheels"
exec {lock}>"$wheels/lock"
flock "$lock"
[ -e "$stamp" ] && exit 0 # whoever held the lock; another installation would pull it from under tests
compgen -G "$wheels/*.whl" >/dev/null || build
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall \
    "$wheels"/*.whl
rm -f .venv/.installed-horovod-*
touch "$stamp"
