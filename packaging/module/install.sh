#!/bin/bash
# Installs one version for all users of a cluster, beside others: install.sh APPS MODULES [WHEEL]
#   APPS/detslurm/VERSION     an environment with detslurm, its man pages and completion
#   MODULES/detslurm/VERSION  its module file, for Lmod and for Environment Modules
# PYTHON chooses the Python, 3.11 or newer, which all nodes must have under the same path.
set -euo pipefail
umask 022
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
apps=$(realpath -m "$1") modules=$(realpath -m "$2") here=$(dirname "$(realpath "$0")")
wheel=${3:-$(ls -t "$here"/../../dist/detslurm-*.whl 2>/dev/null | head -1)}
[ -f "$wheel" ] || { echo "no wheel: run \`make dist\` first, or name one" >&2; exit 1; }
version=$(basename "$wheel" | cut -d- -f2)
place=$apps/detslurm/$version
[ ! -e "$place" ] || { echo "$place is there already: jobs may use it, so it is left as it is" >&2; exit 1; }

mkdir -p "$apps/detslurm" "$modules/detslurm"
# Scripts name the place, so it can't be made elsewhere and moved. The module file comes last.
trap 'rm -rf "$place"; exit 1' ERR INT TERM
"${PYTHON:-python3}" -m venv "$place"
"$place/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
"$place/bin/python" -m compileall -qq "$place"/lib || true
mkdir -p "$place/only" "$place/share/bash-completion/completions" "$place/share/fish/vendor_completions.d" \
    "$place/share/zsh/site-functions"
ln -s ../bin/detslurm "$place/only/detslurm" # for PATH: no python3 and no pip of ours
"$place/bin/detslurm" completion bash >"$place/share/bash-completion/completions/detslurm"
"$place/bin/detslurm" completion fish >"$place/share/fish/vendor_completions.d/detslurm.fish"
"$place/bin/detslurm" completion zsh >"$place/share/zsh/site-functions/_detslurm"
(cd "$here/../.." && "$place/bin/python" -m scripts.man_pages "$place/share/man")

# Users' Pythons find detslurm here, and msgspec where they have none. Both are all that a job's code needs.
library=$place/share/detslurm/library
mkdir -p "$library"
origin() { "$place/bin/python" -I -c "import $1; print($1.__path__[0])"; }
ln -s "$(realpath --relative-to="$library" "$(origin detslurm)")" "$library/detslurm"
required=$("$place/bin/python" -c 'from importlib.metadata import version; print(version("msgspec"))')
for minor in 11 12 13 14; do
    folder=$library/cpython-3$minor
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version "3.$minor" --target "$folder" "msgspec==$required" 2>/dev/null && continue
    echo "no msgspec $required for Python 3.$minor: code in such a Python needs a msgspec of its own" >&2
done
folder=$library/$("$place/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
[ -d "$folder/msgspec" ] || { mkdir -p "$folder" && cp -r "$(origin msgspec)" "$folder/"; }

sed -e "s|@PLACE@|$place|g" -e "s|@VERSION@|$version|g" "$here/modulefile" >"$modules/detslurm/.$version.new"
mv "$modules/detslurm/.$version.new" "$modules/detslurm/$version"
echo "module use $modules && module load detslurm/$version"
