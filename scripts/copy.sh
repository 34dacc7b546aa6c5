#!/bin/bash
# Copies the working tree (not what git ignores) to a folder, which keeps its .venv: scripts/copy.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
umask 022
mkdir -p "$target"
chmod 755 "$target"
find "$target" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done |
        tar --create --null --files-from=- --file=-
else
    tar --create --exclude=./.venv --file=- .
fi | tar --extract --no-same-owner --directory="$target"
chmod -R a+rX "$target" 2>/dev/null || true
