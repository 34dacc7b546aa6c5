"""How a shell is opened, by what its job has published."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tasks.document import read_document
from detslurm.sdk.tasks.programs import shell_entrypoint
from detslurm.sdk.tasks.shell import Shell, login_node
from detslurm.store.address import Address

SSHD = Address(run=1, job="5", host="n3", port=2222, key="/store/detslurm-shell-7")
NO_TERMINALS = Address(run=1, job="5", host="n3", port=2222, key="/k", problem="no terminals")
NO_SSHD = Address(run=1, job="5", host="n3", key="/k", problem="no sshd")


def test_a_session_takes_ssh_unless_it_can_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    by_ssh = ["ssh", "-F", "/store/detslurm-shell-7/config", "detslurm-shell-7"]
    assert Shell(7, SSHD).open_command() == by_ssh
    assert Shell(7, SSHD).open_command(["-L", "1:a:2"]) == [*by_ssh, "-L", "1:a:2"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LifecycleError, match=r"no sshd: install OpenSSH's server"):
        Shell(7, NO_SSHD).open_command()
    (tmp_path / "srun").touch(0o755)
    for address in (NO_SSHD, NO_TERMINALS):
        assert Shell(7, address).open_command()[:3] == ["srun", "--quiet", "--jobid=5"]
    assert Shell(7, NO_TERMINALS).open_command(["ls"])[0] == "ssh"
    assert Shell(7, NO_TERMINALS, has_srun=False).open_command()[0] == "ssh"
    with pytest.raises(LifecycleError, match="srun takes no options of ssh"):
        Shell(7, NO_SSHD).open_command(["-v"])


def test_a_laptop_goes_through_the_login_node() -> None:
    shell = Shell(7, SSHD)
    assert "ProxyJump me@login" in shell.laptop("me@login").block()
    assert shell.fetch_command("me@login") == "scp -rp me@login:/store/detslurm-shell-7 ~/.ssh/"
    with pytest.raises(LifecycleError, match=r"On the login node `detslurm shell open 7`"):
        Shell(7, NO_SSHD).laptop("me@login")
    job = {"SLURM_JOB_ID": "5", "SLURM_SUBMIT_HOST": "login1"}
    assert login_node(job).endswith("@login1")


def test_the_site_and_the_configuration_reach_the_job() -> None:
    document = read_document("shell", overrides=["idle_timeout=90s", "work_dir=/scratch"])
    words = shell_entrypoint(document, sshd=False)
    assert words[3:] == ["--idle", "90.0", "--work-dir", "/scratch", "--sshd", "no"]
    forever = read_document("shell", overrides=["idle_timeout=0"])
    assert shell_entrypoint(forever, "/opt/sshd")[3:] == ["--sshd", "/opt/sshd"]
    assert shell_entrypoint(forever, True)[3:] == []
