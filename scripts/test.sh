#!/bin/bash
# Runs the suite, and installs first what it needs: scripts/test.sh [pytest's arguments].
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh

packages=(
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurmdbd slurm-wlm-mysql-plugin
    munge mariadb-server openmpi-bin strace passwd
    locales # a user whose shell speaks German
    libpmix-dev # srun --mpi=pmix loads libpmix.so, which libpmix2 has under its full name only
    bubblewrap # stands in for containers
    charliecloud-runtime podman uidmap runc mmdebstrap # containers, and what makes their images
    tmux # a terminal whose screen a test can read
    zsh fish # shells that complete with Tab, as bash does
    chromium chromium-driver firefox-esr # where reports are opened
    openssh-server openssh-client libapache2-mod-passenger # how live pages are reached
    g++ make cmake python3-dev # Horovod is compiled, against Python.h too
    glusterfs-server fuse3 # a network file system for the store; its client comes with it
)

# Tests act as ordinary users. Where those can't reach this checkout, a copy that they can reach is
# tested instead; it stays, so that the next run is fast.
if ! open_to_all "$PWD/setup.cfg"; then
    copy=/var/tmp/detslurm-suite-$(pwd -P | sha256sum | cut -c1-12)
    say "other users can't enter $PWD: testing a copy in $copy"
    scripts/copy.sh "$copy"
    exec "$copy/scripts/test.sh" "$@"
fi

# Tests write ten thousand small files, and wait for the disk at each: where there is memory to spare,
# and the right to mount, they are kept there. A container's limit counts, not its machine's memory.
in_memory() {
    local folder gigabytes rc=0
    gigabytes=$({
        awk '/MemAvailable/ { print $2 * 1024 }' /proc/meminfo
        cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true
    } | awk '$1 ~ /^[0-9.e+]+$/ && (least == "" || $1 < least) { least = $1 } END { print int(least / 2 ^ 30) }')
    folder=$(mktemp -d)
    if [ -z "${TMPDIR-}" ] && [ "$gigabytes" -ge 16 ] && is_root &&
        unshare --mount mount -t tmpfs none "$folder" 2>/dev/null; then
        unshare --mount bash -c '
            mount -t tmpfs -o mode=1777 none "$0" && TMPDIR=$0 exec "$@"' "$folder" "$@" || rc=$?
    else
        "$@" || rc=$?
    fi
    rmdir "$folder"
    return "$rc"
}

notes=()
install_packages "${packages[@]}" ||
    notes+=("Slurm, MPI, strace and compilers: not all installed, and $(is_root && echo 'apt-get could not install them' || echo 'only root can install them'); tests that need them are skipped")
is_root || notes+=("several users: only root can act as them; tests that need them are skipped")
! is_root || locale -a | grep -qi "^de_DE.utf-\?8$" || localedef -i de_DE -f UTF-8 de_DE.UTF-8 ||
    notes+=("the locale de_DE.UTF-8: it could not be made; users who ask for it get C")
scripts/bootstrap.sh test

# Processes of the suite, and no others in this environment, import less of torch: see tests/startup.
site_packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ln -sfn "$PWD/tests/startup" "$site_packages/detslurm_suite"
echo 'import os; "DETSLURM_SUITE" in os.environ and __import__("detslurm_suite")' >"$site_packages/detslurm_suite.pth"

# Else every process compiles what it imports: where Python is told to keep no bytecode, where its
# user may not write any beside the sources, and of DeepSpeed, whose installation leaves none.
.venv/bin/python -m compileall -qq -j 0 detslurm sdk launchers tests .venv/lib/python3*/site-packages/deepspeed || true
.venv/bin/python -m scripts.rewrite_tests || true # pytest may have changed

# Tests of clusters wait most of the time, so there are more workers than cores; tests/scheduling.py
# says which runs what. ARGS="-n0" runs one test after the other.
workers=$(($(nproc) < 3 ? 3 * $(nproc) : 8))
rc=0
in_memory .venv/bin/python -m pytest -n "$workers" --durations=20 "$@" </dev/null || rc=$?
for note in "${notes[@]}"; do say "$note"; done
exit "$rc"
