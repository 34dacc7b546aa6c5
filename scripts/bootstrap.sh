#!/bin/bash
# Makes .venv with what a target needs: scripts/bootstrap.sh demo|test|lint|docs|dist. A second call does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh
umask 022 # ordinary users run in this environment too

case "${1:-}" in
demo) extras=examples,look,torch ;;
test) extras=test ;;
lint) extras=test,lint ;; # mypy reads the tests, too
docs) extras=docs ;;
dist) extras=dist ;;
*) say "usage: bootstrap.sh demo|test|lint|docs|dist"; exit 2 ;;
esac

# Settled when the same recipe has been installed with these or wider extras.
recipe=$(cat setup.cfg pyproject.toml constraints.txt | sha256sum | cut -c1-16)
stamp=.venv/.installed-$1-$recipe
[ -e "$stamp" ] && .venv/bin/python -c 'import detslurm' 2>/dev/null && exit 0

make_venv() {
    local python
    if ! python=$(find_python); then
        install_packages python3 python3-venv || true
        python=$(find_python) || { say "Python 3.11 or newer is needed"; exit 1; }
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        install_packages "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" ||
            { say "$python has no venv module; Debian has it in python3-venv"; exit 1; }
    fi
    say "making .venv with $python"
    "$python" -m venv .venv
}

[ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null || { rm -rf .venv; make_venv; }
say "installing detslurm[$extras] into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable ".[$extras]"
rm -f .venv/.installed-"$1"-*
touch "$stamp"
