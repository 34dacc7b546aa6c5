"""Less to import for the processes of DeepSpeed's tests: half of their CPU time was that."""

from __future__ import annotations

from pathlib import Path

LIGHT = {
    # Where this folder comes first, there is no MLflow, which DeepSpeed's autotuner looks for.
    "PYTHONPATH": str(Path(__file__).parent),
    # DeepSpeed compiles its optimizer Muon when it is imported: with all of torch's compiler.
    "TORCHDYNAMO_DISABLE": "1",
}
LIGHT_JOBS = [f"{name}={value}" for name, value in LIGHT.items()]
"""The same for `environment_variables` of an experiment's configuration."""
