"""Hugging Face's transformers for the tests, beside the environment: what else is in that finds it
by its name (DeepSpeed does), and imports seconds of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PACKAGES = (
    "transformers==5.24.0",
    "accelerate==1.15.0",
    "tokenizers==0.23.3",
    "safetensors==0.8.0",
    "regex==2026.11.19",
    "huggingface_hub==2.4.0",
)
FOLDER = Path(sys.prefix, "-".join(["hugging-face", *(p.partition("==")[2] for p in PACKAGES)]))

# PyPI's torchvision can't be imported beside a CPU build of torch, and transformers imports it
# where there is one.
HIDDEN = "import sys\nsys.modules['torchvision'] = None\n"


@pytest.fixture(scope="session")
def hugging_face() -> Path:
    """A directory for PYTHONPATH."""
    if not FOLDER.exists():
        folder = Path(tempfile.mkdtemp(dir=FOLDER.parent, prefix="hugging-face-"))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*pip, str(folder), *PACKAGES], check=True, stdin=subprocess.DEVNULL)
        (folder / "sitecustomize.py").write_text(HIDDEN)
        folder.chmod(0o755)
        try:
            folder.rename(FOLDER)
        except OSError:  # another worker of the suite was faster
            shutil.rmtree(folder)
    return FOLDER
