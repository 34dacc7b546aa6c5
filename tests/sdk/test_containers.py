"""Reports of a submission on containers: settings without effect, and those no run could obey."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ExperimentConfig, SiteProfile, load_experiment, load_site
from detslurm.config.reading import parse
from detslurm.config.writing import as_yaml
from detslurm.sdk import SubmitError
from detslurm.sdk.provenance.view import container_of
from detslurm.sdk.submission import containers
from detslurm.sdk.submission.containers import runs_in_container
from tests.sdk.scenes import Scene

DATA = {"host_path": "/nfs/data", "container_path": "/data"}
SAME = {"host_path": "/scratch", "container_path": "/scratch"}
BY_TYPE = {"cpu": "determinedai/base:cpu", "cuda": "determinedai/base:cuda"}


def plain(**more: Any) -> dict[str, Any]:
    searcher = {"name": "single", "metric": "loss", "max_length": 10}
    return {"name": "x", "entrypoint": "python3 train.py", "searcher": searcher, **more}


def config(site: SiteProfile | None = None, **more: Any) -> ExperimentConfig:
    return load_experiment(plain(**more), site=site).config


def site_of(folder: Path, keys: dict[str, Any]) -> SiteProfile:
    """A profile as a user has it: in a file."""
    (folder / "site.yaml").write_text(as_yaml(keys))
    return load_site(folder / "site.yaml")


def image(name: Any = "torch:2", **more: Any) -> dict[str, Any]:
    return {"environment": {"image": name, **more}}


def container_problems(one: ExperimentConfig, store: str = "/store") -> list[str]:
    return containers.container_problems(one, Path(store))


def notes(
    one: ExperimentConfig, site: SiteProfile | None = None, slot_type: str = "cuda"
) -> list[str]:
    return containers.container_notes(one, site, slot_type, {})


# -- without a container -------------------------------------------------------------------------


def test_one_message_names_the_paths_of_a_container_and_those_of_the_node() -> None:
    """In the entrypoint, variables and hyperparameters; paths that are the same are not named."""
    (note,) = notes(
        config(
            **image(environment_variables=["HF_HOME=/data/hf", "OTHER=/database:/x/data"]),
            entrypoint="python3 /run/determined/workdir/train.py --cache /scratch",
            hyperparameters={"paths": {"train": "/data", "test": ["x", "/data/t", "/data.old"]}},
            bind_mounts=[DATA, SAME],
        )
    )
    assert note == (
        "environment.image and bind_mounts have no effect: slurm.container is none, and the code"
        " runs on the node. There, /run/determined/workdir (entrypoint) is the working directory,"
        " `.`; /data (HF_HOME, hyperparameters.paths.train, hyperparameters.paths.test) is"
        " /nfs/data. Set slurm.container, or write the paths of the node"
        ' (see "Containers" in docs/on-your-cluster.md)'
    )
    assert containers.container_notes(config(), None, "cuda", {}) == []


@pytest.mark.parametrize(
    ("more", "site", "beginning"),
    [
        (image(), {}, "environment.image has no effect: slurm.container is none"),
        ({"bind_mounts": [DATA]}, {}, "bind_mounts has no effect: slurm.container is none"),
        ({}, {"bind_mounts": [DATA]}, None),
        ({}, {"container": "podman"}, None),
        (
            {"slurm": {"container": "enroot"}},
            {},
            "slurm.container has no effect: environment.image names no image for cuda slots",
        ),
        (
            image({"cpu": "a"}),
            {"container": "podman"},
            "environment.image has no effect: environment.image names no image for cuda slots",
        ),
        ({**image(), "slurm": {"container_prefix": ["x"]}}, {}, None),
    ],
)
def test_keys_of_the_user_need_a_container_and_those_of_the_site_do_not(
    tmp_path: Path, more: dict[str, Any], site: dict[str, Any], beginning: str | None
) -> None:
    profile = site_of(tmp_path, site)
    found = notes(config(profile, **more), profile)
    assert len(found) == (beginning is not None)
    assert beginning is None or found[0].startswith(beginning)


def test_an_entrypoint_that_changes_into_a_container_is_refused() -> None:
    """Only there, and only where the path is another one on the node."""
    work, data = "cd /run/determined/workdir && python3 train.py", "cd '/data/x'; python3 train.py"
    (problem,) = container_problems(config(entrypoint=work))
    assert "it is the working directory, `.`" in problem and "set slurm.container" in problem
    (problem,) = container_problems(config(entrypoint=data, bind_mounts=[DATA]))
    assert problem.startswith("entrypoint: `cd /data` leads to a path of containers")
    assert "/nfs/data" in problem
    for fine in (
        config(entrypoint=data),
        config(entrypoint="cd /database; python3 train.py", bind_mounts=[DATA]),
        config(entrypoint="cd /scratch; python3 train.py", bind_mounts=[SAME]),
        config(entrypoint=work, **image(), slurm={"container": "apptainer"}),
        config(entrypoint=work, slurm={"container_prefix": ["apptainer"]}),
    ):
        assert container_problems(fine) == []


# -- in a container ------------------------------------------------------------------------------


def test_what_a_runtime_can_not_do_is_refused_or_named(tmp_path: Path) -> None:
    (tmp_path / "torch:2").mkdir()
    slurm = {"container": "charliecloud", "image_root": str(tmp_path)}
    made = config(**image(), slurm=slurm, bind_mounts=[{**DATA, "read_only": True}])
    (note,) = notes(made)
    assert note.startswith("bind_mounts: /data can be written to")
    (problem,) = container_problems(config(**image(), slurm={**slurm, "private_tmp": True}))
    assert problem.startswith("slurm.private_tmp: Charliecloud always shows the node's /tmp")
    commas = [{"host_path": "/a:b", "container_path": "/c"}, {**DATA, "container_path": "/c,d"}]
    for runtime in ("podman", "pyxis"):
        other = config(
            **image(), slurm={"container": runtime, "private_tmp": True}, bind_mounts=commas
        )
        found = [problem.split(": ")[1] for problem in container_problems(other, "/s,t")]
        assert found == ["/a:b", "/c,d", "/s,t"]
    assert notes(config(**image(), slurm={"container": "podman"})) == []


def test_an_image_that_is_not_here_is_named(tmp_path: Path) -> None:
    """As a path; by name only for Charliecloud, which pulls none."""
    here, missing = str(tmp_path), str(tmp_path / "none.sif")
    for runtime in ("apptainer", "charliecloud", "enroot", "pyxis"):
        (note,) = notes(config(**image(missing), slurm={"container": runtime}))
        assert note.startswith(f"environment.image: {missing} is not on this machine")
        assert notes(config(**image(here), slurm={"container": runtime})) == []
    slurm: dict[str, Any] = {"container": "charliecloud"}
    assert "slurm.image_root is not set" in notes(config(**image(), slurm=slurm))[0]
    slurm["image_root"] = here
    assert f"{here} has no such directory" in notes(config(**image(), slurm=slurm))[0]
    assert notes(config(**image(), slurm={**slurm, "container": "apptainer"})) == []


@pytest.mark.parametrize("name", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_a_python_in_a_container_is_explained(name: str) -> None:
    """As Tykky's wrappers start it: jobs can't, outside of their image."""
    env = {name: "/apps/tykky/container.sif"}
    (note,) = containers.container_notes(config(), None, "cpu", env)
    assert note.startswith("detslurm itself runs in a container here (/apps/tykky/container.sif).")


def test_a_container_needs_a_runtime_and_an_image_for_the_slots() -> None:
    runtime = {"container": "enroot"}
    assert not runs_in_container(config(**image()), "cuda")
    assert not runs_in_container(config(slurm=runtime), "cuda")
    assert not runs_in_container(config(**image({"cpu": "a"}), slurm=runtime), "cuda")
    assert not runs_in_container(
        config(**image({"cpu": "a"}), slurm={**runtime, "slot_type": "cuda"})
    )
    assert runs_in_container(config(**image({"cpu": "a"}), slurm=runtime), "cpu")
    assert runs_in_container(config(**image({"cpu": "a"}), slurm=runtime))
    assert runs_in_container(config(slurm={"container_prefix": ["x"]}))


def test_the_record_names_runtime_and_image() -> None:
    """Those of the slots that are asked for; a password in a name is masked."""
    slurm = {"container": "apptainer", "slot_type": "cuda"}
    made = config(**image(BY_TYPE), slurm=slurm).to_dict()
    assert container_of(made) == ("apptainer", "determinedai/base:cuda")
    made["slurm"]["slot_type"] = None
    assert container_of(made) == ("apptainer", *BY_TYPE.values())
    made["slurm"]["container"] = "none"
    assert container_of(made) == container_of({}) == ()


# -- Determined's own configurations -------------------------------------------------------------

HF = {"host_path": "/nfs/hf", "container_path": "/hf_cache"}
MEDIA = {"host_path": "/mnt/dataset", "container_path": "/media/dataset"}
# Each with the sentence on its paths where there is no container.
SHAPES: list[tuple[str, dict[str, Any]]] = [
    (
        "on the node. Set slurm.container (see",
        image({"cpu": "determinedai/x:cpu", "gpu": "determinedai/x:gpu"}),
    ),
    (
        "/run/determined/workdir (PYTHONPATH) is the working directory, `.`.",
        image(BY_TYPE, environment_variables=["PYTHONPATH=/run/determined/workdir/src"]),
    ),
    (
        "/run/determined/workdir (entrypoint) is the working directory, `.`;"
        " /data (entrypoint) is /nfs/data.",
        {
            **image(),
            "entrypoint": "python3 -m determined.launch.torch_distributed"
            " python3 /run/determined/workdir/train.py --data /data",
            "bind_mounts": [DATA],
        },
    ),
    (
        "/hf_cache (HF_HOME) is /nfs/hf.",
        {
            **image(
                BY_TYPE,
                environment_variables={"cuda": ["HF_HOME=/hf_cache"], "cpu": []},
                add_capabilities=["IPC_LOCK"],
                force_pull_image=True,
            ),
            "bind_mounts": [HF],
            "resources": {"slots_per_trial": 1, "shm_size": "4g"},
        },
    ),
    (
        "/media/dataset (hyperparameters.data_dir) is /mnt/dataset.",
        {
            **image(),
            "bind_mounts": [{**MEDIA, "read_only": True, "propagation": "rslave"}],
            "hyperparameters": {"data_dir": "/media/dataset/train"},
        },
    ),
]


@pytest.mark.parametrize(("sentence", "shape"), SHAPES)
@pytest.mark.parametrize("runtime", ["none", "charliecloud", "podman"])
def test_determined_s_configurations_are_planned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentence: str,
    shape: dict[str, Any],
    runtime: str,
) -> None:
    """Unmodified, on a site with containers and without: without, a message names the paths."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    site_of(tmp_path, {"container": runtime, "image_root": "/images"})
    monkeypatch.setenv("DETSLURM_SITE", str(tmp_path / "site.yaml"))
    plan = Scene(tmp_path / "store").client.plan(plain(**shape), tmp_path)
    assert runs_in_container(plan.config) == (runtime != "none")
    found = [text for text in plan.warnings if " no effect: " in text]
    assert len(found) == (runtime == "none") and all(sentence in text for text in found)
    ignored = [text for text in plan.warnings if "without effect on Slurm" in text]
    assert len(ignored) == ("resources" in shape)
    assert not any(key in text for key in ("environment.image", "bind_mounts") for text in ignored)


def test_the_example_of_the_guide_runs_in_a_container() -> None:
    """Its image is that of the slots, and its data a mount."""
    text = (Path(__file__).parents[2] / "docs" / "on-your-cluster.md").read_text()
    (example,) = re.findall(r"```yaml\n(slurm: \{container: .*?)```", text, re.DOTALL)
    made = config(**parse(example, "guide").plain())
    assert runs_in_container(made, "cuda") and made.environment.image.cuda == "torch:2"
    assert [mount.container_path for mount in made.bind_mounts] == ["/data"]
    assert container_problems(made) == notes(made) == []


def test_a_submission_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Before anything is queued."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    work = plain(entrypoint="cd /run/determined/workdir && python3 train.py", **image())
    with pytest.raises(SubmitError, match="leads to a path of containers"):
        Scene(tmp_path / "store").client.plan(work, tmp_path)
