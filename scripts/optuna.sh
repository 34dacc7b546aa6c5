#!/bin/bash
# Runs the tests of samplers with other versions of Optuna: scripts/optuna.sh [VERSION ...]. They are kept in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh test

[ $# -gt 0 ] || set -- 4.0.0 4.9.0
for version; do
    there=${XDG_CACHE_HOME:-$HOME/.cache}/detslurm/optuna/$version
    [ -e "$there" ] || .venv/bin/python -m pip install --quiet --no-deps --target "$there" "optuna==$version"
    echo "Optuna $version"
    PYTHONPATH=$there .venv/bin/python -m pytest -q -n0 tests/searcher/test_optuna.py tests/searcher/test_model.py
done
