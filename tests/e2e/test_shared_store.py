"""Two users, two umasks, one store: both submit, both list, neither can harm the other."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import Cluster, User
from tests.cluster.users import lab
from tests.e2e.desk import Desk
from tests.e2e.test_failures import WAITS, let_go, pid_of_code
from tests.envelope import unwrap

QUICK = 'print("done")'


@pytest.fixture
def desks(slurm: Cluster, alice: User, bob: User) -> tuple[Desk, Desk]:
    """alice with umask 077 and bob with umask 002, at a store of their group's."""
    assert alice.cwd is not None
    root = slurm.layout.shared / alice.cwd.parent.name.replace("test_", "store-")
    root.mkdir()
    os.chown(root, alice.uid, lab().gr_gid)
    root.chmod(0o2770)
    env = {"DETSLURM_ROOT": str(root)}
    users = (
        replace(user, env=user.env | env, umask=umask)
        for user, umask in ((alice, 0o077), (bob, 0o002))
    )
    return Desk(next(users)), Desk(next(users))


def listed(desk: Desk) -> dict[int, tuple[str, str]]:
    """Owner and state of each experiment, as this user sees them."""
    done = desk.run("experiment", "list", "--json")
    assert done.stderr == ""
    return {row["id"]: (row["owner"], row["state"]) for row in unwrap(done.stdout)}


@contextmanager
def closed(path: Path) -> Iterator[Path]:
    """A file of mode 000 for as long as this lasts."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0)
    yield path
    path.chmod(mode)


def test_two_users_share_a_store(desks: tuple[Desk, Desk]) -> None:
    """What a user did not make, they can read and not change, secrets apart."""
    alice, bob = desks
    secret = "data: {secrets: {token: hush-hush}}\n"
    setup = "slurm.setup=[export API_TOKEN=hush-hush]"
    hers = alice.submit(alice.project(WAITS, secret), setup)
    pid_of_code(alice, hers)
    his = bob.submit(bob.project(WAITS, secret), setup)
    pid_of_code(bob, his)
    everything = {hers: ("alice", "ACTIVE"), his: ("bob", "ACTIVE")}
    assert listed(alice) == listed(bob) == everything

    for desk, other, owner in ((alice, his, "bob"), (bob, hers, "alice")):
        for verb in ("kill", "cancel", "pause", "delete --yes", "set name", "label add"):
            words = [*verb.split()[:2], str(other), *(["x"] if verb[:3] in ("set", "lab") else [])]
            if verb.startswith("delete"):
                words = ["delete", str(other), "--yes"]
            done = desk.run("experiment", *words, check=False)
            assert done.returncode == 1, verb
            assert f"belongs to {owner}" in done.stderr or "kill it first" in done.stderr, verb
        path = desk.experiment(other).path
        assert desk.user.run("find", str(path), "-writable", check=False).stdout == ""
        desk.user.run("rm", "-rf", str(path), check=False)
        if desk is bob:  # the root is alice's: she may remove it with all that is in it
            desk.user.run("rm", "-rf", str(desk.store.ledger.log.name(1)), check=False)
            desk.user.run("mv", str(path.parent), str(path.parent) + ".away", check=False)
        described = desk.run("experiment", "describe", str(other), "--json").stdout
        shown = desk.run("experiment", "config", str(other)).stdout
        assert "********" in shown and "hush-hush" not in shown + described
        assert "pid" in desk.run("experiment", "logs", str(other), "--tail", "20").stdout
        assert desk.user.run("grep", "-rl", "hush", str(path), check=False).stdout == ""
    assert listed(alice) == listed(bob) == everything

    for desk, number in ((alice, hers), (bob, his)):
        assert "RUNNING" in desk.user.run("squeue", "-h", "-j", desk.job(number), "-o%T").stdout
    let_go(bob, his)
    bob.wait_for_state(his, "COMPLETED")
    alice.run("experiment", "kill", str(hers))
    alice.run("experiment", "wait", str(hers), check=False)
    hidden = bob.store.path / "checkpoints" / "tensorboard" / "experiment" / str(hers) / "trial"
    alice.user.run("mkdir", "-p", str(hidden))  # her training may have ended before it did
    assert bob.run("du", str(hers)).returncode == 0
    assert listed(bob) == {hers: ("alice", "CANCELED"), his: ("bob", "COMPLETED")}
    refused = bob.run("experiment", "delete", str(hers), "--yes", check=False)
    assert refused.returncode == 1 and "belongs to alice" in refused.stderr
    bob.run("experiment", "delete", str(his), "--yes")
    assert listed(alice) == {hers: ("alice", "CANCELED")}


RECORDED = """\
    import detslurm as det
    with det.core.init() as core:
        core.train.report_validation_metrics(1, {"loss": 1.0})
        with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("1")
            (path / "more").mkdir()
"""


def test_scripts_and_local_jobs_in_a_shared_store(desks: tuple[Desk, Desk]) -> None:
    """Whatever writes there, nobody can change it but its owner, and everybody sees it."""
    for desk in desks:
        script = desk.write("hand.py", RECORDED)
        desk.user.run("python3", str(script))
        desk.user.run("sbatch", "--wait", "-o", "said.txt", "--wrap", "python3 hand.py")
        assert desk.user.cwd is not None
        assert "can't be stored" not in (desk.user.cwd / "said.txt").read_text()
        local = desk.submit(desk.project(QUICK), "--cluster", "local")
        assert desk.run("experiment", "wait", str(local)).returncode == 0
    rows = {n: ("alice" if n < 4 else "bob", "COMPLETED") for n in range(1, 7)}
    assert listed(desks[0]) == listed(desks[1]) == rows
    root = desks[0].store.path
    for desk, other in (desks, desks[::-1]):
        argv = ("find", str(root), "-user", other.user.name, "-writable", "!", "-perm", "-1000")
        assert desk.user.run(*argv, check=False).stdout == ""


FORGED = """\
import sys
from pathlib import Path
from detslurm.store import Store
log = Store(Path(sys.argv[1])).models.log
log.append({"type": "model_changed", "model": int(sys.argv[2]), "fields": {"name": "stolen"}})
"""


def test_models_and_templates_of_a_group(desks: tuple[Desk, Desk]) -> None:
    """All see them; who made one alone changes it, by commands or by hand."""
    alice, bob = desks
    for desk in desks:
        desk.user.run("python3", str(desk.write("hand.py", RECORDED)))
    rows = unwrap(bob.run("checkpoint", "list", "--json").stdout)
    uuids = {row["experiment"]: row["uuid"] for row in rows}
    alice.run("model", "create", "digits")
    alice.run("model", "register-version", "digits", uuids[1])
    found = unwrap(bob.run("model", "describe", "digits", "--version", "1", "--json").stdout)
    assert (found["checkpoint_uuid"], found["username"]) == (uuids[1], "alice")
    bob.run("model", "create", "mine")
    for words, said in (
        (("create", "digits"), "already"),
        (("set", "name", "digits", "x"), "belongs to alice"),
        (("delete", "digits", "--yes"), "belongs to alice"),
        (("register-version", "digits", uuids[2]), "belongs to alice"),
        (("register-version", "mine", uuids[1]), "belongs to alice"),
    ):
        done = bob.run("model", *words, check=False)
        assert (done.returncode, said in done.stderr) == (1, True), (words, done.stderr)
    bob.run("checkpoint", "delete", uuids[2], "--yes")  # no refused registration protects it
    forger, root = bob.write("forge.py", FORGED), str(alice.store.path)
    bob.user.run("python3", str(forger), root, "1")
    listed_models = alice.run("model", "list", "--json")
    assert {row["name"] for row in unwrap(listed_models.stdout)} == {"digits", "mine"}
    assert "belongs to alice" in listed_models.stderr

    parts = [desk.write("part.yaml", f"max_restarts: {n}\n") for n, desk in enumerate(desks)]
    alice.run("template", "create", "both", str(parts[0]), "--shared")
    assert bob.run("template", "describe", "both").stdout == "max_restarts: 0\n"
    refused = bob.run("template", "set", "both", str(parts[1]), "--shared", check=False)
    assert refused.returncode == 1 and "belongs to alice" in refused.stderr
    bob.run("template", "create", "both", str(parts[1]))
    assert bob.run("template", "describe", "both").stdout == "max_restarts: 1\n"
    assert alice.run("template", "describe", "both").stdout == "max_restarts: 0\n"


HOSTILE = """\
import os, sys
from pathlib import Path
from detslurm.store import Store
from detslurm.store.frame import frame
from detslurm.store.records import Created
from detslurm.store.root_access import prepare

os.umask(0o027)
prepare(Path(sys.argv[1]))
store, private = Store(Path(sys.argv[1])), Path(sys.argv[2])

def made(**about):
    found = store.new_experiment()
    first = store.reserve_trials(found.id, 1)
    found.prepare_trials(first, 1)
    found.write_config({"searcher": {"name": "single", "metric": "loss"}}, "")
    found.create(Created(**{"name": "bad", "first_trial": first, "trials": 1, **about}))
    trial = found.trial(first)
    trial.open_run({"job": {"cluster": "slurm", "ref": "1"}, "time": 1.0, "hparams": {}})
    return found, trial

def fact(experiment, **fields):
    experiment.log.name(2).write_bytes(frame({"v": 1, "type": "trials", **fields}))

_, endless = made()
endless.records_path(1).symlink_to("/dev/zero")
endless.log_path(1).symlink_to(private / "slurm-1.out")
_, hole = made()
hole.records_path(1).touch()
os.truncate(hole.records_path(1), 2 << 40)
fact(made()[0], v=[1], first_trial=1, trials=1)
fact(made()[0], first_trial=1, trials=10**12)
fact(made()[0], first_trial="a", trials=[1], time={"a": 1})
_, ended = made()
ended.end_path(1).write_bytes(frame({"outcome": [1], "time": "x", "exclude": 3}))
moved, trial = made()
(trial.path / "run-1.log").write_text("sound")
moved.jobs.rmdir()
moved.jobs.symlink_to(private)
trial.path.rename(trial.path.with_name("away"))
trial.path.symlink_to(private)
number = 1
while store.ledger.log.name(number).exists():
    number += 1
ledger = {"v": 1, "type": "trials", "id": 1, "first_trial": 10**15, "trials": 10**12}
store.ledger.log.name(number).write_bytes(frame(ledger))
"""


def test_a_member_who_writes_what_they_like_stops_nobody(desks: tuple[Desk, Desk]) -> None:
    """Links, holes, wrong types and counts in one user's records: others list, submit and read."""
    alice, bob = desks
    private = bob.write("private/run-1.log", "bob's own\n").parent
    for name in ("slurm-1.out", "run-1.start.json"):
        bob.write(f"private/{name}", "bob's own\n")
    bob.user.run("chmod", "-R", "go=", str(private))
    hostile = alice.write("hostile.py", HOSTILE)
    alice.user.run("python3", str(hostile), str(alice.store.path), str(private))
    his = bob.submit(bob.project(QUICK))
    assert bob.run("experiment", "wait", str(his)).returncode == 0
    shown = bob.run("experiment", "list", "--json")
    rows = unwrap(shown.stdout)
    assert {row["id"] for row in rows} == set(range(1, his + 1)) and his == 8
    assert next(row for row in rows if row["id"] == his)["state"] == "COMPLETED"
    for number in range(1, his):
        for words in (("experiment", "describe"), ("experiment", "logs"), ("trial", "describe")):
            done = bob.run(*words, str(number), check=False)
            said = done.stdout + done.stderr
            assert "bob's own" not in said and "Traceback" not in said, (words, number, said)
    assert bob.experiment(his).created().first_trial < 100_000_000


@pytest.mark.nightly
def test_a_file_that_cant_be_read_harms_no_other_experiment(desk: Desk) -> None:
    """A fact of the ledger, an experiment's fact, a trial's record of mode 000."""
    first = desk.submit(desk.project(WAITS, name="first"))
    second = desk.submit(desk.project(WAITS, name="second"))
    for number in (first, second):
        pid_of_code(desk, number)
    start = desk.trial_dir(second).start_path(1)
    ledger = desk.store.ledger.log
    ours = next(fact["n"] for fact in ledger.facts() if fact["id"] == second)
    with closed(start), closed(ledger.name(ours)) as block:
        done = desk.run("experiment", "list", "--json")
        assert first in [row["id"] for row in unwrap(done.stdout)]
        assert "left out" in done.stderr and str(block) in done.stderr
        described = desk.run("experiment", "describe", str(second)).stdout
        assert "UNKNOWN" in described and str(start) in described
        desk.run("experiment", "kill", str(first))
        third = desk.submit(desk.project(QUICK, name="third"))
        assert desk.run("experiment", "wait", str(third)).returncode == 0
        with closed(desk.write("third/data.bin", "secret")) as file:
            for args in ((), ("--dry-run",)):
                refused = desk.run(
                    "submit", "../third/experiment.yaml", *args, cwd=file.parent, check=False
                )
                assert refused.returncode == 1 and ".detignore" in refused.stderr
                assert str(file.name) in refused.stderr
    with closed(desk.experiment(first).log.name(2)) as fact:
        done = desk.run("experiment", "list", "--json")
        assert [row["id"] for row in unwrap(done.stdout)] == [second, third]
        assert str(fact) in done.stderr
        refused = desk.run("experiment", "kill", str(first), check=False)
        assert refused.returncode == 1 and str(fact) in refused.stderr
        with closed(start):
            desk.run("experiment", "kill", str(second))
    desk.run("experiment", "wait", str(second), check=False)
    rows = unwrap(desk.run("experiment", "list", "--json").stdout)
    assert [row["state"] for row in rows] == ["CANCELED", "CANCELED", "COMPLETED"]
