"""A user at work: submits experiments from files and looks at what came of them."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any

from detslurm._base import module_cache, startup
from detslurm.store import (
    ExperimentDir,
    ExperimentView,
    MetricRow,
    Store,
    TrialDir,
    TrialView,
    fold_experiment,
    fold_facts,
    fold_trial,
    trial_metrics,
)
from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.envelope import unwrap

EXAMPLES = Path(__file__).parents[2] / "examples"

# No job of these tests needs longer; a hang fails with what was seen.
PATIENCE = 240.0
ENDINGS = "jobid,jobname,state,exitcode,start,end,reason,nodelist"


@dataclass
class Desk:
    """One user's shell, store and files."""

    user: User

    @property
    def store(self) -> Store:
        return Store(Path(self.user.env["DETSLURM_ROOT"]))

    def run(self, *args: str, check: bool = True, **kwargs: Any) -> CompletedProcess[str]:
        """`detslurm ARGS` as this user."""
        return self.user.run("detslurm", *args, check=check, **kwargs)

    def write(self, name: str, text: str) -> Path:
        """A file of this user's, in the working directory."""
        assert self.user.cwd is not None
        path = self.user.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        self.user.own(path.parent)
        return path

    def project(self, script: str, config: str = "", name: str = "project") -> Path:
        """A directory with train.py and an experiment.yaml for one CPU slot; its configuration."""
        self.write(f"{name}/train.py", script)
        base = """\
            name: test
            entrypoint: python3 train.py
            searcher: {name: single, metric: loss, max_length: 10}
            slurm: {slot_type: cpu}
            """
        return self.write(
            f"{name}/experiment.yaml", textwrap.dedent(base) + textwrap.dedent(config)
        )

    def submit(self, config: Path, *args: str) -> int:
        """Submit and return the experiment's id; key=value become overrides."""
        self.cache_modules()
        words = [w for a in args for w in (("--config", a) if _is_override(a) else (a,))]
        done = self.run("submit", str(config), "--json", *words)
        return int(unwrap(done.stdout)["experiment_id"])

    def cache_modules(self, exchanged: Mapping[str, str] = MappingProxyType({})) -> None:
        """Give a new store the cache of modules that its first submission would write, with
        constants `exchanged` for others of the same length."""
        root = Path(self.user.env["DETSLURM_ROOT"])
        name = Path(startup.cache_path(str(root))).name
        if root.exists() or not root.parent.exists():
            return
        draft = Path(tempfile.mkdtemp(dir=root.parent))
        path = draft / name.replace(f"-{os.geteuid()}-", f"-{self.user.uid}-", 1)
        modules = _modules()
        for old, new in exchanged.items():
            assert len(old) == len(new) and old.encode() in modules
            modules = modules.replace(old.encode(), new.encode())
        path.write_bytes(modules)
        path.chmod(0o600)
        self.user.own(draft)
        try:
            draft.rename(root)
        except OSError:  # another submission was faster
            shutil.rmtree(draft)

    def experiment(self, number: int) -> ExperimentDir:
        return self.store.experiment(number)

    def view(self, number: int) -> ExperimentView:
        return fold_experiment(self.experiment(number))

    def trial_dir(self, number: int, index: int = 0) -> TrialDir:
        experiment = self.experiment(number)
        return experiment.trial(experiment.created().first_trial + index)

    def trial(self, number: int, index: int = 0) -> TrialView:
        """The trial as its files tell."""
        experiment = self.experiment(number)
        trial = self.trial_dir(number, index)
        return fold_trial(trial, fold_facts(experiment).context(trial.id))

    def trial_by_id(self, number: int, trial_id: int) -> TrialView:
        """The trial with that id, as its files tell."""
        experiment = self.experiment(number)
        return fold_trial(experiment.trial(trial_id), fold_facts(experiment).context(trial_id))

    def metrics(self, number: int, group: str | None = None) -> list[MetricRow]:
        return trial_metrics(self.trial_dir(number), group)

    def job(self, number: int) -> str:
        """The newest job of an experiment of one trial."""
        return str(self.view(number).jobs[-1].job_id)

    def log(self, number: int, index: int = 0) -> str:
        """All that the trial printed, over all its runs."""
        trial = self.trial_dir(number, index)
        texts: list[str] = []
        while (path := trial.log_path(len(texts) + 1)).exists():
            texts.append(path.read_text())
        return "".join(texts)

    def wait_for_log(self, number: int, text: str, timeout: float = PATIENCE) -> None:
        """Wait until the trial has printed `text`."""
        self._wait(number, lambda: text in self.log(number), timeout, f"{text!r} in the log")

    def wait_for_steps(self, number: int, steps: int, timeout: float = PATIENCE) -> None:
        """Wait until the trial has reported metrics of a step."""
        self._wait(number, lambda: self.trial(number).steps >= steps, timeout, f"step {steps}")

    def wait_for_a_trial_at(self, number: int, steps: int, timeout: float = PATIENCE) -> None:
        """Wait until any trial of a search has reported metrics of a step."""

        def there() -> bool:
            trials = range(len(self.view(number).trials))
            return any(self.trial(number, index).steps >= steps for index in trials)

        self._wait(number, there, timeout, f"a trial at step {steps}")

    def wait_for_state(self, number: int, *states: str, timeout: float = PATIENCE) -> str:
        """Wait until the experiment is in one of the states."""

        def there() -> str:
            state = self.view(number).state
            return state if state in states else ""

        return str(self._wait(number, there, timeout, f"experiment {number} in {states}"))

    def _wait(self, number: int, condition: Any, timeout: float, what: str) -> object:
        try:
            return wait_for(condition, timeout, what)
        except TimeoutError as err:
            jobs = self.experiment(number).path / "jobs"
            said = "".join(p.read_text() for p in jobs.glob("*.out"))
            queue = self.user.run("sacct", "--duplicates", "-X", "-o", ENDINGS, check=False).stdout
            queue += self.user.run("squeue", "--me", check=False).stdout
            view = self.view(number)
            raise AssertionError(
                f"{err}\nlog:\n{self.log(number)[-3000:]}\n"
                f"jobs said:\n{said[-9000:]}\n{queue}\nstate: {view}"
            ) from None

    def outcomes(self, number: int, index: int = 0) -> list[str | None]:
        """How the trial's runs ended, in order; where a test fails, it shows why."""
        runs = self.trial(number, index).runs
        for run in runs:
            print(f"experiment {number}: {run.outcome}: {run.reason}")
        if "error" in [run.outcome for run in runs]:
            print(self.log(number, index)[-3000:])
        return [run.outcome for run in runs]


@cache
def _modules() -> bytes:
    return module_cache._made_apart()


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")
