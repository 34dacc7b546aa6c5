"""`detslurm experiment provenance`: what an experiment ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, experiment_id
from detslurm.cli.experiment.description import properties
from detslurm.cli.output.printing import Document, UserData, describes
from detslurm.sdk.provenance.view import code_text, hardware_text, software_text

if TYPE_CHECKING:
    from detslurm.sdk.parts import CodeVersion, Software
    from detslurm.sdk.provenance.view import Provenance

# A result depends on these first; the text names them, and counts the others.
_MAIN_PACKAGES = frozenset(
    {
        "accelerate", "deepspeed", "detslurm", "flax", "horovod", "hydra-core", "jax", "keras",
        "lightning", "mlflow", "mpi4py", "numpy", "optuna", "pytorch-lightning", "scikit-learn",
        "tensorflow", "timm", "torch", "torchvision", "transformers", "wandb", "xgboost",
    }
)  # fmt: skip
_UNSURE = "the software is that of the submission; jobs may have another, by {}"


@click.command()
@experiment_id
@click.option("--diff", is_flag=True, help="Print the uncommitted changes alone, as a patch.")
@click.option("--packages", is_flag=True, help="Print all packages alone, with their versions.")
@click.option(
    "--ro-crate",
    "crate",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the record as a Process Run Crate into the new directory DIR instead.",
)
@describes
def provenance(experiment_id: int, diff: bool, packages: bool, crate: Path | None) -> Document:
    """Show what an experiment ran: code, packages, modules, hardware and options of sbatch.

    Secrets are masked. A Process Run Crate (RO-Crate) describes the same for archives.

    \b
    Examples:
      detslurm experiment provenance 7
      detslurm experiment provenance 7 --json
      detslurm experiment provenance 7 --diff
      detslurm experiment provenance 7 --packages
      detslurm experiment provenance 7 --ro-crate crate
    """
    if sum((diff, packages, crate is not None)) > 1:
        raise click.UsageError("--diff, --packages and --ro-crate can't be combined")
    found = client().stored(experiment_id)
    if crate is not None:
        path = str(found.write_ro_crate(crate))
        return Document(lambda: f"Wrote {path}", lambda: path)
    record = found.provenance()
    if diff:
        patch = "" if record.code is None else record.code.diff.rstrip("\n")
        return Document(lambda: patch, lambda: patch)
    if packages:
        versions = {} if record.software is None else _versions(record.software)
        return Document(lambda: "\n".join(_lines(versions)), lambda: UserData(versions))
    return Document(lambda: _text(record), lambda: UserData(record.to_dict()))


def _text(record: Provenance) -> str:
    rows: list[tuple[str, Any]] = [
        ("Submitted from", record.host),
        ("detslurm", record.detslurm),
        ("Optuna", record.optuna),
        *(() if record.code is None else _code_rows(record.code)),
        *(() if record.software is None else _software_rows(record.software)),
        ("Other software", "\n".join(map(software_text, record.other_software))),
        ("Unsure", None if record.unsure is None else _UNSURE.format(record.unsure)),
        ("Container", " ".join(record.container)),
        *((f"Node {name}", hardware_text(one)) for name, one in record.hardware.items()),
        ("sbatch", "\n".join(record.sbatch)),
    ]
    if all(value in (None, "") for _, value in rows):
        return "Nothing is recorded of what this experiment ran."
    return properties(rows)


def _code_rows(code: CodeVersion) -> Iterator[tuple[str, Any]]:
    yield "Code", code_text(code)
    yield "Repository", code.repository
    yield "Remotes", "\n".join(f"{name} {url}" for name, url in code.remotes.items())
    names = list(code.changed)
    more = (code.changed_count or 0) - len(names)
    yield "Changed", "\n".join([*names, *([f"and {more} more"] if more > 0 else [])])
    yield "Patch", f"{len(code.diff.splitlines())} lines (--diff)" if code.diff else None
    if code.commit is not None:
        yield "Unknown", code.problem


def _software_rows(software: Software) -> Iterator[tuple[str, Any]]:
    yield "Software", software_text(software)
    yield "Modules", "\n".join(software.modules)
    versions = _versions(software)
    main = {name: version for name, version in versions.items() if name in _MAIN_PACKAGES}
    more = len(versions) - len(main)
    rest = [f"and {more} more (--packages)"] if more else []
    yield "Packages", "\n".join([*_lines(main), *rest])


def _versions(software: Software) -> dict[str, str]:
    return software.packages | software.conda_packages


def _lines(versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {version}".rstrip() for name, version in versions.items()]
