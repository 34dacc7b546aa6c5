"""Build the sdist and the wheel, the same bytes everywhere: python -m scripts.dist [FOLDER].

`make dist` writes to `dist`. The sources are those of the last commit, times are that commit's, and
setuptools' version is in the line that is printed: with the same one, every machine gets the same
digests. The wheel is built from the sdist.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
_SUFFIX = {"sdist": "tar.gz", "wheel": "whl"}


def build(target: Path, sources: Path, epoch: int) -> list[Path]:
    """Write the sdist and the wheel of a directory; return their paths.

    Args:
        target: The folder that gets them.
        sources: A copy of the repository; the build writes to it.
        epoch: The time of all files, in seconds since 1970.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        raw = _built("sdist", sources, Path(folder), epoch)
        sdist = target / raw.name
        sdist.write_bytes(_normal(raw, epoch))
        subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
        unpacked = Path(folder) / raw.name.removesuffix(".tar.gz")
        return [sdist, _built("wheel", unpacked, target, epoch)]


def _built(kind: str, sources: Path, target: Path, epoch: int) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", target, sources],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        stdout=subprocess.DEVNULL,
        check=True,
        umask=0o022,  # a wheel keeps the modes of its files
    )
    return max(target.glob(f"*.{_SUFFIX[kind]}"), key=lambda path: path.stat().st_ctime_ns)


def _normal(sdist: Path, epoch: int) -> bytes:
    """An sdist whose order, owners, times and modes are not those of the machine."""
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as given,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(given.getmembers(), key=lambda one: one.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.linkname = member.linkname
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            written.addfile(plain, given.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def main(argv: list[str]) -> int:
    """Build the last commit, and check the descriptions as a package index does."""
    target = Path(argv[0] if argv else "dist").absolute()
    said = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=REPOSITORY)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", "HEAD"], cwd=REPOSITORY)
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        files = build(target, Path(folder), int(said))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    for file in files:
        print(hashlib.sha256(file.read_bytes()).hexdigest(), file)
    print(f"built with setuptools {version('setuptools')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
