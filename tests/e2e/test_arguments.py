"""Hyperparameters as arguments of a script that does not know detslurm, through the front door."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.cluster import Cluster
from tests.config.test_arguments import HOSTILE, by_hydra
from tests.e2e.desk import Desk

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

SCRIPT = """\
    import json, os, pathlib, sys
    words = [word for word in sys.argv[1:] if word != "done"]
    files = [path.read_text() for path in map(pathlib.Path, words) if path.is_file()]
    # In one write: two ranks have one pipe.
    os.write(1, f"ARGV {json.dumps([words, files])}\\n".encode())
"""
HPARAMS = {
    "amp": True,
    "api_key": "hush-hush",
    "ema": False,
    "lr": -1e-05,
    "none": None,
    "sizes": [1, -2],
    "texts": dict(zip("abcdefghijk", HOSTILE, strict=True)),
}


def words_of(log: str) -> list[tuple[list[str], list[str]]]:
    """The arguments that each process had, and the files that they name."""
    found = [json.loads(line) for line in re.findall(r"ARGV (.*)", log)]
    assert found, log
    return [(words, files) for words, files in found]


@pytest.mark.slow
def test_hostile_values_arrive_whole_in_each_form(desk: Desk, site: Cluster) -> None:
    """As flags behind a pipe, through two ranks of a launcher, as overrides of Hydra, as a file,
    and in a template of a list; the secret among them is in no log."""
    config = desk.project(SCRIPT, f"hyperparameters: {json.dumps(HPARAMS)}\n")
    launched = "python3 -m detslurm.launch.torch_distributed train.py"
    template = "--key {api_key} {sizes} --lr={lr} <{texts}> {amp}/{ema}/{none}"
    forms = {
        "piped": ("flags", """sh -c 'python3 train.py "$@" 2>&1' - "$@" | cat"""),
        "launched": ("flags", launched),
        "hydra": ("hydra", "python3 train.py"),
        "file": ("{file: conf/h.yaml, option: --config}", "python3 train.py"),
        "template": (json.dumps(template), json.dumps(["python3", "train.py", "done"])),
    }
    two = ("resources.slots_per_trial=2",)
    numbers = {
        name: desk.submit(
            config,
            f"arguments={form}",
            f"entrypoint={json.dumps(entrypoint) if name != 'template' else entrypoint}",
            *(two if name == "launched" else ()),
        )
        for name, (form, entrypoint) in forms.items()
    }
    for number in numbers.values():
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    logs = {name: desk.log(number) for name, number in numbers.items()}
    found = {name: words_of(log) for name, log in logs.items()}

    texts = [f"--texts.{key}={text}" for key, text in zip("abcdefghijk", HOSTILE, strict=True)]
    flags = ["--amp", "--api_key=hush-hush", "--no-ema", "--lr=-1e-05", "--sizes", "1", "-2"]
    flags += texts
    assert found["piped"] == [(flags, [])]
    assert found["launched"] == [(flags, [])] * 2
    assert by_hydra(found["hydra"][0][0]) == HPARAMS
    (words, files) = found["file"][0]
    assert words == ["--config", "conf/h.yaml"]
    assert yaml.safe_load(files[0]) == HPARAMS
    assert found["template"][0][0] == [
        *("--key", "hush-hush", "1", "-2", "--lr=-1e-05"),
        f"<{json.dumps(HPARAMS['texts'], ensure_ascii=False)}>",
        "true/false/null",
    ]
    for name, number in numbers.items():
        ours = [line for line in logs[name].splitlines() if "detslurm: arguments:" in line]
        assert len(ours) >= 1
        assert not any("hush" in line for line in logs[name].splitlines() if "ARGV" not in line)
        assert "hush" not in desk.run("experiment", "config", str(number)).stdout
    assert "deleted with the working directory" not in logs["file"]
