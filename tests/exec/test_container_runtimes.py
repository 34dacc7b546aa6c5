"""The command line of each runtime, as its documentation has it.

Enroot, Pyxis and podman-hpc never ran here.
"""

from __future__ import annotations

import shlex

import pytest

from detslurm.exec.container_runtimes import Container, Mount, command

MOUNTS = [Mount("/home/a b", "/home/a b"), Mount("/raid/data", "/data", read_only=True)]

LINES = {
    "apptainer": """bin exec --no-eval --nv '--bind=/home/a b:/home/a b'
        --bind=/raid/data:/data:ro --own docker://org/torch:2 env PATH=/own/bin""",
    "charliecloud": """env TMPDIR=/tmp bin -b '/home/a b:/home/a b' -b /raid/data:/data --own
        org/torch:2 -- env PATH=/own/bin""",
    "podman": """env TMPDIR=/tmp bin run --rm --label=detslurm.owner=me --pid=host --network=host
        --userns=keep-id --security-opt=label=disable --workdir=/ --device=nvidia.com/gpu=all
        '--volume=/home/a b:/home/a b:rw,rprivate' --volume=/raid/data:/data:ro,rprivate --env=A
        --env=B --own org/torch:2 env PATH=/own/bin""",
    "podman-hpc": """env TMPDIR=/tmp bin run --rm --label=detslurm.owner=me --pid=host
        --network=host --userns=keep-id --security-opt=label=disable --workdir=/ --gpu
        '--volume=/home/a b:/home/a b:rw,rprivate' --volume=/raid/data:/data:ro,rprivate --env=A
        --env=B --own org/torch:2 env PATH=/own/bin""",
    "enroot": """bin start '--mount=/home/a b:/home/a b'
        --mount=/raid/data:/data:none:x-create=auto,rbind,ro --env=A --env=B --own
        org/torch:2 env PATH=/own/bin""",
    "pyxis": """bin --overlap --nodes=1 --ntasks=1 --nodelist=n3 --container-image=org/torch:2
        '--container-mounts=/home/a b:/home/a b,/raid/data:/data:ro' --no-container-mount-home
        --no-container-remap-root --container-workdir=/ --container-env=A,B --own --
        env PATH=/own/bin""",
}


@pytest.mark.parametrize("runtime", LINES)
def test_the_line_of_a_runtime(runtime: str) -> None:
    container = Container(
        runtime, "bin", "org/torch:2", MOUNTS, ["A", "B"], "cuda", ["--own"], "me", "n3",
        {"PATH": "/own/bin"},
    )  # fmt: skip
    words = [word for word in command(container) if not word.startswith("--unset-env=")]
    assert words == shlex.split(LINES[runtime])


@pytest.mark.parametrize("path", ["/a:b", "/a,b"])
def test_a_path_that_no_runtime_mounts_is_refused(path: str) -> None:
    container = Container("podman", "podman", "image", [Mount(path, "/data")], [])
    with pytest.raises(ValueError, match="no container runtime mounts a path with : or ,"):
        command(container)
