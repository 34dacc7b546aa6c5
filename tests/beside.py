"""Frameworks for single tests, beside the environment: what else is in that finds them by their
names (DeepSpeed does), and imports seconds of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HUGGING_FACE = (
    "transformers==5.24.0",
    "accelerate==1.15.0",
    "tokenizers==0.23.3",
    "safetensors==0.8.0",
    "regex==2026.11.19",
    "huggingface_hub==2.4.0",
)
KERAS = ("keras==3.15.1", "absl-py==2.5.1", "ml-dtypes==0.6.0", "namex==0.1.0", "optree==0.20.0")
HYDRA = ("hydra-core==1.3.8", "omegaconf==2.3.1", "antlr4-python3-runtime==4.9.3")
LIGHTNING = ("lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0")

# What is not there for them. PyPI's torchvision can't be imported beside a CPU build of torch; the
# others are a third of what Lightning and Keras import, and a fifth of what Transformers does:
# nothing here plots, needs a table or DeepSpeed.
# For some a package is there where there is a module, for others where there is a distribution.
HIDDEN = """\
import importlib.metadata
import sys

hidden = {"torchvision", "matplotlib", "scipy", "pandas", "deepspeed"}
sys.modules.update(dict.fromkeys(hidden))
found = importlib.metadata.distribution

def distribution(name):
    if name in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.distribution = distribution
"""

# Compiling it would cost as much as a training.
NOT_IMPORTED = (
    r"/transformers/models/(?!auto/)\w+/|_test\.py$"
    r"|/keras/src/(applications|backend/(jax|openvino|tensorflow))/"
)


@pytest.fixture(scope="session")
def hugging_face() -> Path:
    """A directory for PYTHONPATH, with Hugging Face's transformers."""
    return _installed("hugging-face", HUGGING_FACE)


@pytest.fixture(scope="session")
def hydra() -> Path:
    """A directory for PYTHONPATH, with Hydra."""
    return _installed("hydra", HYDRA)


@pytest.fixture(scope="session")
def keras() -> Path:
    """A directory for PYTHONPATH, with Keras, which computes with torch there."""
    return _installed("keras", KERAS)


@pytest.fixture(scope="session")
def lightning() -> Path:
    """A directory for PYTHONPATH, with Lightning."""
    return _installed("lightning", LIGHTNING)


def _installed(name: str, packages: tuple[str, ...]) -> Path:
    found = Path(sys.prefix, "-".join([name, *(p.partition("==")[2] for p in packages)]))
    if not found.exists():
        folder = Path(tempfile.mkdtemp(dir=found.parent, prefix=f"{name}-"))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command = [*pip, "--target", str(folder), *packages]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        compiles = [sys.executable, "-m", "compileall", "-qq", "-x", NOT_IMPORTED, str(folder)]
        subprocess.run(compiles, check=False)
        (folder / "sitecustomize.py").write_text(HIDDEN)
        folder.chmod(0o755)
        try:
            folder.rename(found)
        except OSError:  # another worker of the suite was faster
            shutil.rmtree(folder)
    return found
