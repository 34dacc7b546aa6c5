#!/bin/bash
# Runs the tests of clusters on newer Slurms and Pythons, each inside a Debian of its own:
# scripts/versions.sh [trixie|sid ...] [-- PYTEST ARGS]. Needs root. The Debians are kept in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh
umask 022 # ordinary users run in there, too
export LC_ALL=C.UTF-8

cache=${XDG_CACHE_HOME:-$HOME/.cache}/detslurm
roots=$cache/debian
images=$cache/images
packages=(
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurmdbd slurm-wlm-mysql-plugin munge mariadb-server
    openmpi-bin libpmix-dev python3 python3-venv python3-torch strace procps iproute2 passwd locales ca-certificates
    mount hostname bubblewrap
)
# Debian 13 has no Apptainer, which reads /etc/localtime and mounts images with squashfuse.
declare -A more_packages=([sid]="apptainer squashfuse tzdata")
recipe=$(cat setup.cfg constraints.txt scripts/versions.sh | sha256sum | cut -c1-16)
# What depends on Slurm, on the shell of a job and on Python's version.
tests=(tests/cluster tests/slurm tests/exec tests/launchers tests/e2e)

suites=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do suites+=("$1"); shift; done
[ ${#suites[@]} -gt 0 ] || suites=(trixie sid)
[ "${1:-}" != -- ] || shift
is_root || { say "only root can make a Debian and enter it"; exit 3; }

# A minimal Debian with Slurm; made beside its place, so that one cut short is not taken for whole.
make_root() {
    local root=$1 suite=$2
    install_packages mmdebstrap || return 1
    say "making $root, which takes minutes"
    rm -rf "$root" "$root.new"
    mmdebstrap --mode=root --variant=apt --include="$(IFS=,; echo "${packages[*]}")" \
        --aptopt='Apt::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        "$suite" "$root.new" >"$root.log" 2>&1 </dev/null || { tail -n 20 "$root.log" >&2; return 1; }
    chroot "$root.new" localedef -i de_DE -f UTF-8 de_DE.UTF-8
    mkdir "$root.new/suite"
    mv "$root.new" "$root"
}

# Runs a command in the root, with namespaces of its own, so that all it starts ends with it; the tree $copy
# lies at /suite. With "net" it is on the host's network, for installations; else on an empty one.
enter() {
    local root=$1 network=$2 copy=$3 own=(--mount --pid --fork --kill-child --ipc --uts)
    shift 3
    [ "$network" = net ] || own+=(--net)
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root TERM=dumb \
        DETSLURM_SUITE_ROOT="$root" DETSLURM_SUITE_COPY="$copy" DETSLURM_SUITE_IMAGES="$images" \
        unshare "${own[@]}" --propagation private bash -c '
set -e
root=$DETSLURM_SUITE_ROOT
mount --bind "$root" "$root"
mount --bind "$DETSLURM_SUITE_COPY" "$root/suite"
# There is no network to make images of containers with: those of this machine serve.
mkdir -p "$root$HOME/.cache/detslurm/images"
mount --bind "$DETSLURM_SUITE_IMAGES" "$root$HOME/.cache/detslurm/images"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
# Ordinary users may not open that of every host.
[ ! -e /dev/fuse ] || mknod -m 666 "$root/dev/fuse" c 10 229
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%%:*}" "$root/dev/${number#*:}"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
# Clusters in a folder of another run would seem to have no owner here.
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=1777 tmpfs "$root/var/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
ip link set lo up || true
# Daemons since 24.11 and Open MPI want a network that is not the loopback interface.
if [ -z "$(ip -o link show up | grep -v ": lo:")" ]; then
    ip link add net0 type veth peer name net1
    ip address add 10.97.0.1/24 dev net0
    ip link set net0 up
    ip link set net1 up
fi
hostname lab
printf "127.0.0.1 localhost\n127.0.1.1 lab\n" >"$root/run/hosts"
touch "$root/run/resolv.conf"
cp /etc/resolv.conf "$root/run/resolv.conf" 2>/dev/null || true
mount --bind "$root/run/hosts" "$root/etc/hosts"
mount --bind "$root/run/resolv.conf" "$root/etc/resolv.conf"
# Not chroot: the kernel refuses user namespaces to those that live in one.
mkdir "$root/run/host"
cd "$root"
pivot_root . run/host
umount -l /run/host
cd /suite
# No exec: this shell is process 1 in there, and collects the daemons that others leave behind.
"$@"
exit $?' bash "$@"
}

# The packages that a newer recipe names, and the project's environment beside Debian's own torch.
install() {
    local root=$1 copy=$2 bundle=/etc/ssl/certs/ca-certificates.crt more
    read -ra more <<<"${more_packages[$(basename "$root")]:-}"
    say "installing detslurm[suite] in $root"
    touch "$root/etc/hosts" "$root/etc/resolv.conf"
    [ ! -e "$bundle" ] || cp "$bundle" "$root$bundle"
    enter "$root" net "$copy" sh -c 'apt-get -o Acquire::Check-Valid-Until=false update -q &&
        DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "$@"' sh \
        "${packages[@]}" "${more[@]}" >"$root.log" 2>&1 </dev/null || { tail -n 20 "$root.log" >&2; return 1; }
    # Debian builds torch without libuv, and its torchrun asks for libuv all the same.
    local torch=$root/usr/lib/python3/dist-packages/torch/distributed
    sed -i 's/multi_tenant=True,$/multi_tenant=True, use_libuv=False,/' "$torch"/elastic/rendezvous/*.py
    sed -i 's/is_master=False,$/is_master=False, use_libuv=False,/' "$torch/rendezvous.py"
    sed -i 's/"USE_LIBUV", "1"/"USE_LIBUV", "0"/' "$torch/rendezvous.py" "$torch/elastic/utils/distributed.py"
    [ -x "$root/venv/bin/python" ] || enter "$root" net "$copy" python3 -m venv --system-site-packages /venv
    enter "$root" net "$copy" /venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable '.[suite]'
    echo "$recipe" >"$root/installed"
}

copy=$(mktemp -d /var/tmp/detslurm-suite-XXXXXX)
trap 'rm -rf "$copy"' EXIT
scripts/copy.sh "$copy"
mkdir -p "$roots" "$images"

# One line of the table: what runs in this root, and how its tests ended.
row() {
    local root=$1 copy=$2 result=$3
    local slurm python mpi
    slurm=$(chroot "$root" slurmctld -V | cut -d' ' -f2)
    python=$(chroot "$root" python3 -c 'import platform; print(platform.python_version())')
    mpi=$(compgen -G "$root/usr/lib/*/slurm-wlm/mpi_pmix.so" >/dev/null && echo pmix || echo "no pmix")
    printf '| %-8s | %-10s | %-7s | %s |\n' "$slurm" "$python" "$mpi" "$result"
}

rc=0
rows=()
for suite in "${suites[@]}"; do
    root=$roots/$suite
    # Whoever runs tests holds the lock shared; whoever installs, alone.
    exec {lock}>"$root.lock"
    if [ ! -e "$root/suite" ] || [ "$(cat "$root/installed" 2>/dev/null)" != "$recipe" ]; then
        flock "$lock"
        [ -e "$root/suite" ] || make_root "$root" "$suite"
        [ "$(cat "$root/installed" 2>/dev/null)" = "$recipe" ] || install "$root" "$copy"
    fi
    flock --shared "$lock"
    # Where they can't be made, the tests that need them are skipped.
    for image in bookworm trixie; do scripts/image.sh "$image" >/dev/null || true; done
    [ $# -gt 0 ] && argv=("$@") || argv=(-n 4 "${tests[@]}")
    log=$(mktemp)
    status=0
    enter "$root" none "$copy" /venv/bin/python -m pytest "${argv[@]}" </dev/null | tee "$log" || status=1
    [ $status = 0 ] || rc=1
    rows+=("$(row "$root" "$copy" "$(tail -n 1 "$log" | tr -d =)")")
    rm -f "$log"
    flock --unlock "$lock"
done

echo
echo "| Slurm    | Python     | MPI     | tests |"
echo "|---|---|---|---|"
printf '%s\n' "${rows[@]}"
exit "$rc"
