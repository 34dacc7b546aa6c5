"""Ordinary users of a test cluster, and commands run as them."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.cluster.spec import ClusterSpec, Layout
from tests.cluster.waiting import wait_for

_LAB = "detslurm-lab"


@dataclass(frozen=True)
class User:
    """An account of this machine; `run` runs a command as it, with a home of its own."""

    name: str
    uid: int
    gid: int
    home: Path
    tmp: Path
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    umask: int = 0o022

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a fresh login of this user would see, and nothing of ours."""
        base = {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
        }
        return base | self.env | dict(extra or {})

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a command as this user; standard output and error are pipes of text."""
        return subprocess.Popen(
            argv,
            env=self.environment(env),
            cwd=cwd or self.cwd or self.home,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            umask=self.umask,
            user=None if self._oneself else self.uid,
            group=None if self._oneself else self.gid,
            extra_groups=None if self._oneself else [lab().gr_gid],
        )

    def run(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        input: str | None = None,
        timeout: float = 240.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user; a failure is an error unless `check=False`."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(argv, env=env, cwd=cwd, stdin=stdin) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise AssertionError(
                f"{self.name}$ {' '.join(argv)}: exit {process.returncode}\n{out}\n{err}"
            )
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    @property
    def _oneself(self) -> bool:
        return self.uid == os.geteuid()

    def folder_in(self, parent: Path, name: str) -> Path:
        """A new folder of this user's own in a folder that all may write to."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        return self.own(folder)

    def own(self, path: Path) -> Path:
        """Give `path` and all below it to this user."""
        if not self._oneself:
            for entry in (path, *path.rglob("*")):
                os.chown(entry, self.uid, self.gid, follow_symlinks=False)
        return path


@cache
def lab() -> grp.struct_group:
    """A group that all accounts of the tests are in; only root can make it."""
    return wait_for(lambda: _known_group() or _made_group(), what="a group")


def _known_group() -> grp.struct_group | None:
    try:
        return grp.getgrnam(_LAB)
    except KeyError:
        return None


def _made_group() -> grp.struct_group | None:
    subprocess.run([_administrative("groupadd"), _LAB], check=False, capture_output=True)
    return _known_group()


def _join(name: str) -> bool:
    """Slurm remembers who is in which group: before its daemons hear of the account."""
    if name not in grp.getgrgid(lab().gr_gid).gr_mem:
        argv = [_administrative("usermod"), "--append", "--groups", _LAB, name]
        subprocess.run(argv, check=False, capture_output=True)
    return name in grp.getgrgid(lab().gr_gid).gr_mem


def _administrative(program: str) -> str:
    return shutil.which(program, path="/usr/sbin:/sbin") or program


def local_user(name: str, spec: ClusterSpec, layout: Layout, env: Mapping[str, str]) -> User:
    """The account `name`, made by root where it is missing; without root: oneself."""
    account = _account(name) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    if os.geteuid() == 0:
        wait_for(lambda: _join(name), what=f"{name} in the group {_LAB}")
    home = layout.homes / name
    tmp = home / "tmp" if spec.shared_tmp else layout.var / f"tmp-{name}"
    user = User(
        account.pw_name,
        account.pw_uid,
        account.pw_gid,
        home,
        tmp,
        {**env, **spec.variables},
        umask=spec.umask,
    )
    for folder in (home, tmp):
        if not folder.exists():
            folder.mkdir(mode=0o700)
            user.own(folder)
    return user


def _account(name: str) -> pwd.struct_passwd:
    """Another starter may be making an account at this moment: useradd fails then."""
    return wait_for(lambda: _known(name) or _made(name), what=f"an account {name}")


def _known(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _made(name: str) -> pwd.struct_passwd | None:
    argv = [_administrative("useradd"), "--no-create-home", "--shell", "/bin/bash", name]
    subprocess.run(argv, check=False, capture_output=True)
    return _known(name)
