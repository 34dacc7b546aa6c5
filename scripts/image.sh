#!/bin/bash
# Prints the path of a container image, a tar of a small Debian with Python: scripts/image.sh bookworm|trixie.
# Without a registry: mmdebstrap makes it in about a minute, and it is kept in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh
umask 022 # ordinary users run in there, too
export LC_ALL=C.UTF-8

suite=$1
packages=(python3 base-files base-passwd bash dash coreutils libc-bin) # what a shell and Python need, and no more
# Another Python than detslurm's own: msgspec is compiled, so the image has one that fits.
[ "$suite" = bookworm ] || packages+=(python3-msgspec)
recipe=$(sha256sum <scripts/image.sh | cut -c1-12)
images=${XDG_CACHE_HOME:-$HOME/.cache}/detslurm/images
image=$images/$suite-$recipe.tar
root=$images/$suite

cut_short() {
    tail -n 20 "$root.log" >&2
    ! grep -q "Failed to fetch\|Could not resolve\|Could not connect" "$root.log" ||
        { say "no image for containers: its packages could not be fetched"; exit 3; }
    exit 1
}

# Packages are unpacked and not configured: half of the time, and of the size.
make_root() {
    is_root && command -v mmdebstrap >/dev/null ||
        { say "no image for containers: root makes it, with mmdebstrap"; exit 3; }
    say "making $image, which takes a minute"
    rm -rf "$root"
    mmdebstrap --mode=root --format=directory --variant=extract --include="$(IFS=,; echo "${packages[*]}")" \
        --aptopt='Apt::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --aptopt='Acquire::Check-Valid-Until "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*' \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr "$suite" "$root" >"$root.log" 2>&1 </dev/null ||
        cut_short
}

# Charliecloud binds the host's files over these, and makes no new ones in an image.
complete_root() {
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    touch "$root/etc/hosts" "$root/etc/resolv.conf"
    mkdir -p "$root/mnt"
}

mkdir -p "$images"
exec {lock}>"$images/$suite.lock"
flock "$lock"
if [ ! -e "$image" ]; then
    rm -f "$images/$suite"-*.tar
    make_root
    complete_root
    # Ordinary users unpack it, who make no devices.
    tar --create --directory "$root" --exclude './dev/?*' --file "$root.tar.new" .
    mv "$root.tar.new" "$image"
    rm -rf "$root"
fi
echo "$image"
