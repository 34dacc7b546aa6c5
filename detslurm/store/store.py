"""The store's root: experiments, the ledger, and the index that makes listing cheap."""

from __future__ import annotations

from pathlib import Path

from detslurm.store import fs
from detslurm.store.errors import NotFound
from detslurm.store.experiment import ExperimentDir
from detslurm.store.index import Catalog, ledger_state
from detslurm.store.ledger import Ledger, LedgerState
from detslurm.store.trial import TrialDir
from detslurm.store.views import ExperimentRow


class Store:
    """A state store; any number of processes on any nodes may use the same one at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(path / "ledger")

    @classmethod
    def open(cls, root: fs.AnyPath | None = None) -> Store:
        """The store at `root` (else where the settings point), created for its user alone."""
        path = Path(root if root is not None else _settings_root()).expanduser().absolute()
        if not fs.exists(path / "experiments"):
            fs.ensure_directory(path.parent)
            fs.claim_directory(path, 0o700)
            for name in ("ledger", "experiments"):
                fs.ensure_directory(path / name)
        return cls(path)

    def new_experiment(self) -> ExperimentDir:
        """Claim the next experiment id; it stays invisible until its `created` fact."""
        folder = self.path / "experiments"
        # The listing is a first guess only: it may be old, and mkdir decides.
        number = max((int(name) for name in fs.names_in(folder) if name.isdigit()), default=0) + 1
        while not fs.claim_directory(folder / str(number)):
            number += 1
        experiment = ExperimentDir(self, number)
        fs.ensure_directory(experiment.log.path)
        fs.ensure_directory(experiment.jobs)
        return experiment

    def reserve_trials(self, experiment_id: int, count: int) -> int:
        """Give an experiment `count` consecutive trial ids; returns the first."""
        return self.ledger.reserve(self.ledger_state(), experiment_id, count)

    def ledger_state(self) -> LedgerState:
        """The ledger folded as far as it is written now."""
        return ledger_state(self)

    def catalog(self) -> Catalog:
        """What is finished, as rows, and what is not, as ids: the start of every listing."""
        return Catalog(self)

    def overview(self) -> list[ExperimentRow]:
        """Rows of all experiments but deleted ones, by id, as far as files alone tell."""
        from detslurm.store.overview import overview

        return overview(self)

    def touch(self, experiment_id: int) -> None:
        """Tell the index that this experiment has news."""
        self.ledger.touch(self.ledger_state(), experiment_id)

    def experiment(self, experiment_id: int) -> ExperimentDir:
        """An experiment by id, or NotFound."""
        found = ExperimentDir(self, experiment_id)
        found.created()
        return found

    def find_trial(self, trial_id: int) -> TrialDir:
        """A trial by id, whether it ran yet or not; NotFound where no experiment owns the id."""
        block = self.ledger_state().owner(trial_id)
        if block is None:
            raise NotFound(f"there is no trial {trial_id} in {self.path}")
        return ExperimentDir(self, block.experiment).trial(trial_id)


def _settings_root() -> Path:
    from detslurm.config import store_root  # only here: who is told the root needs no settings

    return store_root()
