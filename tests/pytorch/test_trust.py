"""Checkpoints hold no secrets and no copies of the code; what others can change is not run."""

from __future__ import annotations

import grp
import json
import os
import pickle
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm import pytorch
from detslurm._base.trust import others_can_change
from detslurm.pytorch import Batch
from detslurm.sdk import Client
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression

Load = pytorch.load_trial_from_checkpoint_path

SECRETS = {
    "name": "kept",
    "data": {"url": "s3://me:hush@bucket/x", "classes": 10, "secrets": {"token": "hush"}},
    "environment": {"environment_variables": {"cpu": ["API_TOKEN=hush"]}},
    "bind_mounts": [{"host_path": "/hush", "container_path": "/x"}],
    "entrypoint": "python3 train.py --token=hush",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that everybody may enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="detslurm-test-", dir=os.environ.get("TMPDIR", "/tmp")))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


class TestOthersCanChange:
    """Owner, modes, groups, and the way to the file."""

    def test_by_mode_and_way(self, common: Path) -> None:
        """The file, its directory, and a closed door above both."""
        file = common / "a" / "b" / "file"
        file.parent.mkdir(parents=True)
        file.touch()
        file.parent.chmod(0o755)
        file.chmod(0o644)
        assert not others_can_change(file)
        for place, mode in ((file, 0o646), (file.parent, 0o757)):
            old = stat.S_IMODE(place.stat().st_mode)
            place.chmod(mode)
            assert others_can_change(file)
            (common / "a").chmod(0o700)
            assert not others_can_change(file)
            (common / "a").chmod(0o755)
            place.chmod(old)

    def test_by_owner(self, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What somebody else but root owns is theirs to change."""
        file = common / "file"
        file.touch(mode=0o600)
        if os.getuid() == 0:
            os.chown(file, 12345, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert others_can_change(file)

    @pytest.mark.parametrize(
        ("group", "members", "primary", "shared"),
        [
            ("alice", [], True, False),
            ("alice", ["alice"], True, False),
            ("alice", ["alice", "bob"], True, True),
            ("project", [], True, True),
            ("alice", [], False, True),
            (None, [], True, True),
        ],
    )
    def test_by_group(
        self,
        common: Path,
        monkeypatch: pytest.MonkeyPatch,
        group: str | None,
        members: list[str],
        primary: bool,
        shared: bool,
    ) -> None:
        """Only a user's private group is as good as the user; an unknown one is not."""
        file = common / "file"
        file.touch()
        file.chmod(0o664)
        gid = file.stat().st_gid
        user = SimpleNamespace(pw_name="alice", pw_gid=gid if primary else gid + 1)
        monkeypatch.setattr(pwd, "getpwuid", lambda _: user)

        def getgrgid(_: int) -> Any:
            if group is None:
                raise KeyError
            return SimpleNamespace(gr_name=group, gr_mem=members)

        monkeypatch.setattr(grp, "getgrgid", getgrgid)
        assert others_can_change(file) is shared
        monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
        assert others_can_change(file)


def test_in_a_job(root: Path, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secrets; code by a link to the frozen one, whole again once it is downloaded."""
    config = {"hyperparameters": {"a": 1}, **SECRETS}
    managed = Managed(root, monkeypatch, config)
    code = managed.experiment.code
    code.mkdir()
    (code / "helper.py").write_text("x = 1\n")
    old = os.umask(0o002)
    try:
        in_job(managed, max_length=Batch(5))
    finally:
        os.umask(old)
    (checkpoint,) = managed.view().checkpoints
    folder = root / "checkpoints" / checkpoint.uuid
    kept = json.loads((folder / "load_data.json").read_text())["experiment_config"]
    assert "hush" not in (folder / "load_data.json").read_text()
    assert (kept["name"], kept["data"]["classes"]) == ("kept", 10)
    assert [name for name in checkpoint.resources if name.startswith("code")] == ["code/"]
    assert (folder / "code").is_symlink() and (folder / "code" / "helper.py").exists()
    for place in (folder, folder / "state_dict.pth"):
        assert not place.stat().st_mode & 0o022
    moved = shutil.move(root, common / "moved")
    target = common / "whole"
    trial = Client(moved).trial(1)
    monkeypatch.setattr(
        type(trial.experiment._snapshot.directory), "config",
        lambda _: {"checkpoint_storage": {
            "type": "shared_fs", "host_path": str(Path(moved) / "checkpoints")}},
    )  # fmt: skip
    assert trial.download(checkpoint.uuid, target) == target
    shutil.rmtree(moved)
    assert (target / "code" / "helper.py").read_text() == "x = 1\n"
    assert isinstance(Load(str(target), Regression), Regression)
    moved_away = target / "code"
    moved_away.rename(common / "frozen")
    data = json.loads((target / "load_data.json").read_text())
    frozen = {"code": str(common / "frozen"), "trial_cls_spec": "model_def:Trial"}
    (target / "load_data.json").write_text(json.dumps({**data, **frozen}))
    (common / "frozen" / "model_def.py").write_text(
        "import helper\nfrom tests.pytorch.trials import Regression\nclass Trial(Regression): pass"
    )
    assert type(Load(str(target))).__name__ == "Trial"
    (common / "frozen" / "helper.py").chmod(0o666)
    with pytest.raises(PermissionError, match="others can change the code"):
        Load(str(target))
    Load(str(target), Regression)
    assert type(Load(str(target), torch_load_kwargs={"weights_only": False})).__name__ == "Trial"


def test_what_a_group_can_write_is_not_unpickled(root: Path, common: Path) -> None:
    """Not where the group has other members; a copy of one's own is."""

    class Keeper(pytorch.PyTorchCallback):
        def state_dict(self) -> dict[str, Any]:
            return {"thing": Path("x")}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    class Trial(Regression):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"keeper": Keeper()}

    fit(Trial, max_length=Batch(3))
    (folder,) = (root / "checkpoints").iterdir()
    folder = Path(shutil.copytree(folder, common / "copy"))
    folder.chmod(0o755)
    state = folder / "state_dict.pth"
    for gid, mode, refused in ((-1, 0o644, False), (12345, 0o664, True), (-1, 0o666, True)):
        if gid > 0 and os.getuid() != 0:
            continue
        os.chown(state, -1, gid)
        state.chmod(mode)
        if refused:
            with pytest.raises(pickle.UnpicklingError, match="others can write it"):
                Load(str(folder), Trial)
        else:
            Load(str(folder), Trial)


def test_a_checkpoint_of_others_names_no_module_of_the_readers(
    common: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing a module runs it: only what is in the checkpoint's code, or is the reader's own."""
    (tmp_path / "readers_cleanup.py").write_text("raise ZeroDivisionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = common / "theirs"
    folder.mkdir()
    named = json.dumps({"trial_type": "PyTorchTrial", "trial_cls_spec": "readers_cleanup:Trial"})
    (folder / "load_data.json").write_text(named)
    (folder / "load_data.json").chmod(0o666)
    with pytest.raises(PermissionError, match="names the module readers_cleanup"):
        Load(str(folder))
    for trusting in ({"weights_only": False}, None):
        with pytest.raises(ZeroDivisionError):
            Load(str(folder), torch_load_kwargs=trusting)
        (folder / "load_data.json").chmod(0o600)
