"""The store's root: experiments, the ledger, and the index that makes listing cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base import access
from detslurm.store import fs
from detslurm.store.errors import NotFound, StoreError
from detslurm.store.experiment import ExperimentDir
from detslurm.store.trial import TrialDir

if TYPE_CHECKING:
    from detslurm.store.index import Catalog
    from detslurm.store.ledger import Ledger, LedgerState
    from detslurm.store.records import Created
    from detslurm.store.registry import ModelRegistry


class Store:
    """A state store; any number of processes on any nodes may use the same one at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def ledger(self) -> Ledger:
        """The owners of ids."""
        from detslurm.store.ledger import Ledger  # only here: a thousand runners start without it

        return Ledger(self.path / "ledger")

    @cached_property
    def models(self) -> ModelRegistry:
        """The checkpoints that have names."""
        from detslurm.store.registry import ModelRegistry

        return ModelRegistry(self.path / "models", self.own("models.json"))

    @classmethod
    def open(cls, root: fs.AnyPath | None = None) -> Store:
        """The store at `root` (else where the settings point), ready for new experiments.

        Where there is none it is created, for its user alone. Raises `StoreError` where others
        could harm it, or it is another user's.
        """
        from detslurm.store.root_access import prepare  # only here: readers take it as it is

        path = Path(root if root is not None else _settings_root()).expanduser().absolute()
        prepare(path)
        return cls(path)

    def own(self, name: str) -> Path:
        """The place in the root of something of which each user of a shared store has their own."""
        try:
            return self.path / access.own_name(str(self.path), name)
        except PermissionError as error:
            raise StoreError(str(error)) from error

    def create_experiment(
        self,
        created: Created,
        config: Mapping[str, Any],
        text: str = "",
        *,
        masked: Mapping[str, Any] | None = None,
        freeze: Callable[[Path], object] | None = None,
        prepare: Callable[[ExperimentDir, int], object] | None = None,
    ) -> ExperimentDir:
        """A new experiment with the trial ids that `created` asks for, its code and configuration.

        `freeze` copies the code into a directory; `prepare` gets the experiment and its first trial
        and adds what else has to be there from the start. The experiment is visible with the last
        step: a crash before that leaves an invisible id.
        """
        from concurrent.futures import ThreadPoolExecutor  # only here: runners create none

        experiment = self.new_experiment()
        if freeze is not None:
            with experiment.freeze_code() as stage:
                freeze(Path(stage))
        first = self.reserve_trials(experiment.id, created.trials)
        # A hundred directories, one after the other: the file server makes them meanwhile.
        with ThreadPoolExecutor(1) as pool:
            prepared = pool.submit(experiment.prepare_trials, first, created.trials)
            experiment.write_config(config, text, masked)
            if created.search:
                fs.claim_directory(experiment.search)
            if prepare is not None:
                prepare(experiment, first)
            prepared.result()
        from msgspec import structs  # only here: agents start without it

        experiment.create(structs.replace(created, first_trial=first))
        return experiment

    def new_experiment(self) -> ExperimentDir:
        """Claim the next experiment id; it stays invisible until its `created` fact."""
        folder = self.path / "experiments"
        # The listing is a first guess only: it may be old, and mkdir decides.
        number = max((int(name) for name in fs.names_in(folder) if name.isdigit()), default=0) + 1
        while not fs.claim_directory(folder / str(number)):
            number += 1
        experiment = ExperimentDir(self, number)
        fs.ensure_directory(experiment.log.path)
        # Batch scripts hold what the configuration sets up, and Slurm writes there by the umask.
        fs.ensure_directory(experiment.jobs, secret=True)
        return experiment

    def reserve_trials(self, experiment_id: int, count: int) -> int:
        """Give an experiment `count` consecutive trial ids; returns the first."""
        state = self.ledger_state(thorough=True)
        if not state.unknown:
            self._refuse_lost_tail(state, experiment_id - 1)
        return self.ledger.reserve(state, experiment_id, count)

    def _refuse_lost_tail(self, state: LedgerState, experiment_id: int) -> None:
        """Raise `StoreError` where the ledger lacks the ids of the newest experiment: a restored
        store may lack the last fact, and no later fact shows that."""
        try:
            first = (ExperimentDir(self, experiment_id).log.read(1) or {}).get("first_trial")
        except StoreError:
            return  # another user's, who keeps it private
        if not isinstance(first, int) or first < state.next_trial:
            return
        # Another process may have given them since the ledger was read.
        if first >= self.ledger_state(thorough=True).next_trial:
            raise StoreError(
                f"the last facts in {self.ledger.log.path} are missing: they gave trial {first} to"
                f" experiment {experiment_id}. No trial ids are given. `detslurm gc` rebuilds the"
                " facts from the experiments"
            )

    def ledger_state(self, *, thorough: bool = False) -> LedgerState:
        """The ledger folded as far as it is written now, with the last of its blocks.

        `thorough` as for `FactLog.facts`.
        """
        from detslurm.store.index import ledger_state

        return ledger_state(self._index, self.ledger, thorough=thorough)

    def catalog(self) -> Catalog:
        """Finished experiments as rows, others as ids: the start of every listing."""
        from detslurm.store.index import Catalog

        return Catalog(self._index, self.ledger)

    def newest_first(self) -> Iterator[int]:
        """The ids of all experiments, the newest first."""
        for one in self.catalog().newest_first():
            yield one if isinstance(one, int) else one.id

    @property
    def _index(self) -> Path:
        return self.own("index.json")

    def make_room(self) -> bool:
        """Remove files that are written again when needed, some megabytes; False if there are none
        that this user may remove."""
        room = False
        for name in fs.names_in(self.path):
            if name.startswith("module-cache-"):
                fs.discard(str(self.path / name))
                room = room or not fs.exists(self.path / name)
        return room

    def touch(self, experiment_id: int) -> None:
        """Record for the index that this experiment has changed."""
        self.ledger.touch(self.ledger_state(), experiment_id)

    def experiment(self, experiment_id: int) -> ExperimentDir:
        """An experiment by id, or NotFound."""
        found = ExperimentDir(self, experiment_id)
        found.created()
        return found

    def find_trial(self, trial_id: int) -> TrialDir:
        """A trial by id, whether it ran yet or not; NotFound where no experiment owns the id."""
        from detslurm.store.index import owner

        block = owner(self._index, self.ledger, trial_id)
        if block is None:
            raise NotFound(f"there is no trial {trial_id} in {self.path}")
        return ExperimentDir(self, block.experiment).trial(trial_id)


def _settings_root() -> Path:
    from detslurm.config import store_root  # only here: with a root given no settings are needed

    return store_root()
