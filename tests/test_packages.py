"""What packages promise: the same bytes from everyone, and recipes that name what is required."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from detslurm import __version__
from scripts.dist import build

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"


def required() -> dict[str, str]:
    """The required packages, and the lowest version of each."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    pairs = (re.match(r"([\w-]+) >= ([\d.]+)", line) for line in lines if line)
    return {found[1].lower(): found[2] for found in pairs if found}


def same(versions: dict[str, str]) -> dict[str, list[int]]:
    """Versions that can be compared: 6 is 6.0."""
    return {
        name: [int(part) for part in re.sub(r"(\.0)+$", "", version).split(".")]
        for name, version in versions.items()
    }


def test_recipes_require_what_detslurm_requires() -> None:
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
    run = [re.match(r"([\w-]+) >=([\d.]+)", line) for line in recipe["requirements"]["run"]]
    conda = {found[1]: found[2] for found in run if found}
    assert conda.pop("python") == "3.11"
    spack = dict(re.findall(r'"py-([\w-]+)@([\d.]+):', _spack().read_text()))
    assert spack.pop("setuptools") == "70"
    assert same(conda) == same(spack) == same(required())


def test_recipes_are_of_this_version() -> None:
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    easyconfigs = [path.name for path in (PACKAGING / "easybuild").iterdir()]
    assert recipe["context"]["version"] == cited["version"] == __version__
    assert f'version("{__version__}")' in _spack().read_text()
    assert [name for name in easyconfigs if name.startswith(f"detslurm-{__version__}-")]


def test_an_easyconfig_names_the_extensions_that_others_lack() -> None:
    """Its bundle of Python has the others; EasyBuild is not asked here."""
    (path,) = (PACKAGING / "easybuild").iterdir()
    found: dict[str, Any] = {}
    exec(compile(path.read_text(), path, "exec"), found)
    extensions = {name for name, *_ in found["exts_list"]}
    bundled = {"click", "pathspec", "rich"}  # in Python-bundle-PyPI 2024.06
    modules = {name.lower() for name, *_ in found["dependencies"]}
    assert extensions | modules | bundled >= {*required(), "detslurm"}


@pytest.mark.nightly
def test_a_distribution_has_the_same_bytes_everywhere_and_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number, (umask, zone) in enumerate([(0o022, "UTC"), (0o077, "Asia/Tokyo")]):
        sources = tmp_path / f"{number}"
        subprocess.run([ROOT / "scripts" / "copy.sh", sources], check=True)
        monkeypatch.setenv("TZ", zone)
        before = os.umask(umask)
        try:
            made.append(build(tmp_path / f"dist{number}", sources, 1_700_000_000))
        finally:
            os.umask(before)
    assert [file.read_bytes() for file in made[0]] == [file.read_bytes() for file in made[1]]
    for file in made[0]:
        prefix = tmp_path / file.name.replace(".", "-")
        installs = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
        subprocess.run([sys.executable, "-m", *installs, prefix, file], check=True)
        assert _version(prefix / "bin" / "detslurm", prefix) == f"detslurm, version {__version__}"


def borrowing_python(folder: Path) -> Path:
    """A Python whose environments see the packages of this one: the index is not asked here."""
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\n"{sys.executable}" "$@" || exit\n'
        'case "$*" in "-m venv "*) for lib in "$3"/lib/python3*/site-packages; do '
        f'echo "{sysconfig.get_path("purelib")}" >"$lib/zz-borrowed.pth"; done ;; esac\n'
    )
    python.chmod(0o755)
    return python


@pytest.mark.nightly
def test_an_installation_for_all_is_a_module(tmp_path: Path) -> None:
    """By Environment Modules, where they are installed; without them the files alone are seen."""
    sources = tmp_path / "sources"
    subprocess.run([ROOT / "scripts" / "copy.sh", sources], check=True)
    wheel = build(tmp_path / "dist", sources, 1_700_000_000)[1]
    install = [PACKAGING / "module" / "install.sh", tmp_path / "apps", tmp_path / "modules", wheel]
    python = str(borrowing_python(tmp_path))
    env = {**os.environ, "PYTHON": python, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    said = subprocess.run(install, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"module load detslurm/{__version__}" in said
    again = subprocess.run(install, env=env, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "is there already" in again.stderr
    place = tmp_path / "apps" / "detslurm" / __version__
    assert sorted(path.name for path in (place / "only").iterdir()) == ["detslurm"]
    assert (place / "share" / "man" / "man1" / "detslurm-submit.1").exists()
    modules = Path("/usr/share/modules/init/bash")
    if not modules.exists():
        pytest.skip("Environment Modules are not installed")
    script = f". {modules}; {said.strip()}; command -v detslurm; command -v python3"
    shell = ["bash", "-c", script]
    found = subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert found == [str(place / "only" / "detslurm"), shutil.which("python3")]


def _version(command: Path, prefix: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(prefix)}
    argv = [sys.executable, str(command), "--version"]
    return subprocess.run(
        argv, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def _spack() -> Path:
    return PACKAGING / "spack" / "package.py"
