#!/bin/bash
# Installs detslurm into bare Debians, with the Python of each, and runs a trial there without Slurm:
# scripts/roots.sh [bookworm|trixie|sid ...]. Needs root, mmdebstrap and a network; the Debians are thrown away.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh
umask 022
export LC_ALL=C.UTF-8

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie sid)
is_root || { say "only root can make a Debian and enter it"; exit 3; }
install_packages mmdebstrap
scripts/bootstrap.sh dist
work=$(mktemp -d /var/tmp/detslurm-roots-XXXXXX)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m scripts.dist "$work/dist" >&2

# What a user does in there: install, ask, train. The sdist is built by the Python of the root.
cat >"$work/try.sh" <<'EOF'
set -eu
for kind in whl tar.gz; do
    python3 -m venv "/venv-$kind"
    "/venv-$kind/bin/pip" install --quiet --disable-pip-version-check /dist/detslurm-*."$kind"
    "/venv-$kind/bin/detslurm" --version
done
export PATH=/venv-whl/bin:$PATH DETSLURM_ROOT=/root/store
detslurm doctor || echo "doctor: $?"
mkdir -p /root/code && cd /root/code
cat >train.py <<'END'
import detslurm as det

with det.core.init() as core:
    core.train.report_validation_metrics(1, {"loss": 0.5})
END
printf '%s\n' 'name: bare' 'entrypoint: python3 train.py' 'searcher: {name: single, metric: loss}' >bare.yaml
detslurm submit bare.yaml --cluster local
detslurm experiment wait last
detslurm experiment list
EOF

try_in() {
    local suite=$1 root=$work/$1
    mmdebstrap --mode=root --variant=minbase --dpkgopt=force-unsafe-io --include=python3,python3-venv,ca-certificates \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$root" || return 1
    cp -r "$work/dist" "$work/try.sh" "$root/"
    cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
    # As this machine trusts and asks package indexes, so does the root.
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do [ ! -e "$file" ] || cp "$file" "$root$file"; done
    unshare --mount --pid --fork --kill-child bash -c 'mount -t proc proc "$0/proc" && mount -t tmpfs none "$0/tmp" &&
        exec chroot "$0" bash /try.sh' "$root"
}

failed=0
for suite in "${suites[@]}"; do
    if (try_in "$suite") >"$work/$suite.log" 2>&1 </dev/null; then
        said=$(chroot "$work/$suite" python3 -c 'import platform; print("Python", platform.python_version())')
        echo "$suite: $said: installed from the wheel and the sdist; a trial has trained"
    else
        failed=1
        tail -n 30 "$work/$suite.log" >&2
        echo "$suite: failed"
    fi
    rm -rf --one-file-system "${work:?}/$suite"
done
exit "$failed"
