# shellcheck shell=bash
# What the scripts ask of the system: which Python, and Debian's packages. Sourced.

say() { echo "[$(basename "$0")] $*" >&2; }

is_root() { [ "$(id -u)" = 0 ]; }

# Whether any user of this machine can run or read $1: root's own files may lie under a closed folder.
open_to_all() {
    is_root || return 0
    setpriv --reuid=65534 --regid=65534 --clear-groups -- test -r "$1" 2>/dev/null
}

# One that is new enough and that ordinary users can run too: their jobs run in its venv.
find_python() {
    local candidate path
    for candidate in /usr/bin/python3 python3.11 python3.12 python3.13 python3.14 python3; do
        path=$(command -v "$candidate") || continue
        "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        open_to_all "$("$path" -c 'import sys; print(sys.executable)')" || continue
        echo "$path"
        return 0
    done
    return 1
}

# Installs the packages named that are missing. Needs root and Debian; 1 where it can't.
install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    command -v apt-get >/dev/null || { say "not installed: ${missing[*]} (no apt-get here)"; return 1; }
    is_root || { say "not installed: ${missing[*]} (only root can install)"; return 1; }
    say "installing ${missing[*]}"
    without_starting_services apt_install "${missing[@]}"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    if ! { apt-get update -q && apt-get install -yq --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# The suite runs daemons of its own, with its own settings; the packages' services stay off.
without_starting_services() {
    local policy=/usr/sbin/policy-rc.d rc=0
    if [ -e "$policy" ]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    "$@" || rc=$?
    rm -f "$policy"
    return "$rc"
}
