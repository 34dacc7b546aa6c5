"""`doctor --container` says what a container lacks, and what helps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detslurm.sdk.container_findings import container_findings
from detslurm.store.container_facts import ContainerFacts, InsideFacts

INSIDE = InsideFacts(
    python="3.12.1",
    executable="/usr/bin/python3",
    written={"store": True, "HOME": True, "TMPDIR": True},
)
GOOD = ContainerFacts(
    node="n1",
    runtime="apptainer",
    version="/usr/bin/apptainer apptainer version 1.4.5",
    image="/images/torch.sif (SIF 1)",
    namespaces=True,
    subuids=True,
    fuse=True,
    started=True,
    inside=INSIDE,
    pmix=("PMIX_RANK",),
)


def found(changed: dict[str, Any] | None = None, **changes: Any) -> dict[str, tuple[str, ...]]:
    """Level, text and advice of the findings that need a remedy, by area; `changed` is inside."""
    seen = msgspec.structs.replace(INSIDE, **(changed or {}))
    facts = msgspec.structs.replace(GOOD, **{"inside": seen, **changes})
    return {f.area: (f.level, f.text, f.advice) for f in container_findings(facts) if f.advice}


def test_a_good_container_needs_no_remedy() -> None:
    """Each thing is named once, and the job had no GPUs."""
    assert found() == {}
    areas = [finding.area for finding in container_findings(GOOD)]
    assert areas == [
        "runtime", "node", "node", "image", "python", "python", "mounts", "gpus", "mpi",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "area", "level", "text", "advice"),
    [
        ({"version": None}, "runtime", "broken", "not in the PATH of n1", "slurm.modules"),
        ({"output": "FATAL: no such image"}, "image", "broken", "FATAL: no", "by hand"),
        ({"runtime": "podman", "gpus": 1}, "image", "broken", "printed nothing", "nvidia-ctk"),
        ({"namespaces": False}, "node", "broken", "user namespaces", "max_user_namespaces"),
        ({"fuse": False}, "node", "broken", "/dev/fuse", "sandbox"),
        ({"runtime": "podman", "subuids": False}, "node", "broken", "/etc/subuid", "usermod"),
    ],
)
def test_a_container_that_does_not_start(
    changes: dict[str, Any], area: str, level: str, text: str, advice: str
) -> None:
    """The runtime's own words, and what the node lacks."""
    given = found(**changes, started=False, inside=None, pmix=None)[area]
    assert given[0] == level and text in given[1] and advice in given[2]


def test_what_a_node_lacks_is_a_note_where_the_image_starts() -> None:
    """A setuid installation needs neither namespaces nor FUSE of an ordinary user."""
    assert found(namespaces=False)["node"][0] == found(fuse=False)["node"][0] == "note"


def test_a_directory_needs_no_fuse() -> None:
    """Only files are mounted by it."""
    assert found(image="/images/torch (modified)", fuse=False) == {}


@pytest.mark.parametrize(
    ("inside", "area", "level", "text", "advice"),
    [
        ({"python": "3.8.10"}, "python", "warning", "needs 3.11", "Scripts without detslurm work"),
        ({"problem": "ImportError: msgspec"}, "python", "broken", "msgspec", "Install msgspec"),
        ({"problem": "SystemExit: the flag"}, "python", "broken", "the flag", "does not see"),
        ({"written": {"store": False}}, "mounts", "broken", "store is not", "bind_mounts"),
        ({"written": {"HOME": False}}, "mounts", "warning", "HOME is not", "bind_mounts"),
    ],
)
def test_what_the_container_lacks(
    inside: dict[str, Any], area: str, level: str, text: str, advice: str
) -> None:
    """Python that is too old leaves something that works; HOME need not be writable."""
    given = found(inside)[area]
    assert given[0] == level and text in given[1] and advice in given[2]


def test_an_image_without_python() -> None:
    """The last line of its output says what was missing."""
    level, text, advice = found(inside=None, output="x\nsh: 1: exec: python3: not found")["python"]
    assert level == "broken" and text.endswith("exec: python3: not found") and "3.11" in advice


def test_gpus_and_mpi() -> None:
    """GPUs of the job that are not seen are a fault; PMIx is only for MPI between nodes."""
    assert found(gpus=2)["gpus"][0] == "broken"
    assert found({"gpus": ("GPU 0: H200",)}, gpus=1) == {}
    assert found(pmix=())["mpi"][0] == "warning"
    assert found(pmix=None)["mpi"][0] == "note"
