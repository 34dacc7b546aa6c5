"""The judgement of `doctor --container`: from the facts of a node to findings with remedies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from detslurm.sdk.doctor import Finding, Level
from detslurm.store import ContainerFacts, InsideFacts

_PODMAN: Final = ("podman", "podman-hpc")
_OLDEST: Final = (3, 11)
_MOUNTS: Final = (
    "Bind it with `bind_mounts`, or take the option out of slurm.container_args that hides it."
)


def container_findings(facts: ContainerFacts) -> Iterator[Finding]:
    """Yield the findings of a node's `facts`, each with a remedy where one is needed."""
    yield _runtime(facts)
    yield from _node(facts)
    yield _start(facts)
    if facts.started:
        yield from _python(facts)
    if facts.inside is not None:
        yield from _mounts(facts.inside)
        yield from _gpus(facts, facts.inside)
        yield _pmix(facts)


def _runtime(facts: ContainerFacts) -> Finding:
    if facts.version is None:
        text = f"{facts.runtime} is not in the PATH of {facts.node}"
        advice = "Load its module with slurm.modules, or choose another one with --runtime."
        return Finding("runtime", "broken", text, advice)
    return Finding("runtime", "ok", f"{facts.version} on {facts.node}")


def _node(facts: ContainerFacts) -> Iterator[Finding]:
    """The needs of the runtime; a lack counts only where the image does not start."""
    lacks: Level = "note" if facts.started else "broken"
    if facts.namespaces is not None:
        yield (
            Finding("node", "ok", "user namespaces can be made")
            if facts.namespaces
            else Finding(
                "node", lacks, "an ordinary user can't make user namespaces",
                "Ask the administrator for user.max_user_namespaces > 0, or a setuid Apptainer.",
            )
        )  # fmt: skip
    if facts.runtime in _PODMAN:
        yield (
            Finding("node", "ok", "you have subordinate ids in /etc/subuid")
            if facts.subuids
            else Finding(
                "node", lacks, "you have no subordinate ids in /etc/subuid",
                "Ask the administrator for `usermod --add-subuids ... --add-subgids ...`.",
            )
        )  # fmt: skip
    if facts.image.partition(" (")[0].endswith((".sif", ".sqsh", ".sqfs", ".squashfs")):
        yield (
            Finding("node", "ok", "/dev/fuse can be opened: it mounts image files")
            if facts.fuse
            else Finding(
                "node", lacks, "/dev/fuse can't be opened, which image files may need",
                "Unpack the image into a directory, such as by `apptainer build --sandbox`.",
            )
        )  # fmt: skip


def _start(facts: ContainerFacts) -> Finding:
    if facts.started:
        return Finding("image", "ok", f"{facts.image} starts")
    output = facts.output or "the runtime printed nothing"
    advice = "Check the image's path, and try its command by hand in a job of yours."
    if facts.gpus and facts.runtime == "podman":
        advice += " Its GPUs need CDI on the node: `nvidia-ctk cdi generate`, by the administrator."
    return Finding("image", "broken", f"{facts.image} does not start:\n{output}", advice)


def _python(facts: ContainerFacts) -> Iterator[Finding]:
    inside = facts.inside
    if inside is None:
        line = facts.output.rpartition("\n")[2]
        yield Finding(
            "python", "broken", f"python3 does not run in the image: {line or 'no output'}",
            "Add Python 3.11 or later to the image. Entrypoints without Python work as they are.",
        )  # fmt: skip
        return
    which = f"Python {inside.python} at {inside.executable}"
    if tuple(map(int, inside.python.split(".")[:2])) < _OLDEST:
        yield Finding(
            "python", "warning", f"{which}: `import detslurm` needs 3.11 or later",
            "Scripts without detslurm work: with `preempt_signal`, `outputs`, `metrics_from_log`.",
        )  # fmt: skip
        return
    yield Finding("python", "ok", which)
    if inside.problem is None:
        yield Finding("python", "ok", "detslurm can be imported")
        return
    advice = "The lines above and below show what the container does not see."
    if "msgspec" in inside.problem:
        advice = "Install msgspec (0.21 or later) in the image: detslurm's own is for its Python."
    yield Finding("python", "broken", f"detslurm can't be imported: {inside.problem}", advice)


def _mounts(inside: InsideFacts) -> Iterator[Finding]:
    if seen := [name for name, can_write in inside.written.items() if can_write]:
        yield Finding("mounts", "ok", f"writable inside: {', '.join(seen)}")
    for name, can_write in inside.written.items():
        if not can_write:
            level: Level = "warning" if name == "HOME" else "broken"
            yield Finding("mounts", level, f"{name} is not writable inside", _MOUNTS)


def _gpus(facts: ContainerFacts, inside: InsideFacts) -> Iterator[Finding]:
    if not facts.gpus:
        yield Finding("gpus", "note", "the job has no GPUs")
    elif inside.gpus:
        yield Finding("gpus", "ok", "\n".join(inside.gpus))
    else:
        yield Finding(
            "gpus", "broken", f"the job has {facts.gpus} GPUs, and the container sees none",
            "Set slurm.slot_type to the kind of the GPUs: cuda or rocm.",
        )  # fmt: skip


def _pmix(facts: ContainerFacts) -> Finding:
    if facts.pmix is None:
        text = "`srun --mpi=pmix` started no container"
        return Finding("mpi", "note", text, "Only MPI between nodes needs it: slurm.mpi names it.")
    if facts.pmix:
        return Finding("mpi", "ok", f"PMIx reaches the ranks ({len(facts.pmix)} variables)")
    return Finding(
        "mpi", "warning", "the ranks have no variables of PMIx",
        "MPI between nodes needs them: set slurm.mpi to a type that `srun --mpi=list` names.",
    )  # fmt: skip
