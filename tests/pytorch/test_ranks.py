"""Two ranks do what one does: gradients, metrics, reducers, wishes and errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.pytorch import _init
from detslurm.store import Store, fold_trial
from tests.launchers.workers import needs_deepspeed
from tests.light import LIGHT
from tests.pytorch.conftest import AS_ROOT, REPOSITORY, Results, on_ranks
from tests.pytorch.rank_trials import Adversaries, Uneven
from tests.pytorch.ranks import Plain, train

pytestmark = pytest.mark.xdist_group("two ranks")

MPIRUN = shutil.which("mpirun")


def close(ours: Any, theirs: Any) -> bool:
    """Equal but for the last bits of double precision."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(close(ours[k], theirs[k]) for k in ours)
    return bool(ours == pytest.approx(theirs, rel=1e-12, abs=1e-15))


def test_two_ranks_are_one_with_twice_the_aggregation(root: Path, two: Results) -> None:
    """Weights and averaged training metrics; 2 ranks x 2 batches are 1 rank x 4."""
    for name, aggregation, batches in (("plain", 2, 16), ("aggregated", 4, 16)):
        one = train(aggregation, batches)
        for rank in two:
            assert close(rank[name]["weights"], one["weights"])
            assert close(rank[name]["training"], one["training"])


def test_gradients_are_exchanged_once_a_step(two: Results) -> None:
    """Batches whose gradients are only gathered send nothing."""
    assert two[0]["plain"]["synced"] == [True] * 8
    assert two[0]["aggregated"]["synced"] == [False, True] * 4


def test_validation_of_uneven_shards_is_that_of_the_whole_set(root: Path, two: Results) -> None:
    """5 batches on 2 ranks: averages and reducers are those of one rank, on both ranks."""
    one = train(2, 16)
    for rank in two:
        assert close(rank["plain"]["validation"], one["validation"])
        (metrics,) = rank["plain"]["validation"]
        assert metrics["loss"] == pytest.approx(metrics["mean_square"], rel=1e-12)


def test_epochs_whose_lengths_differ_between_ranks(root: Path, two: Results) -> None:
    """The chief's counts for all, and every batch is trained on equally often. (A compiled model
    makes no difference.)"""
    one = train(6, 18, Uneven)
    for rank in two:
        assert rank["uneven"]["ends"] == [2, 5, 8]
        assert len(rank["uneven"]["validation"]) == 2
        assert close(rank["uneven"]["weights"], one["weights"])


def test_training_metrics_of_the_chief_alone(two: Results) -> None:
    """average_training_metrics: false reports them; all ranks are told."""
    for rank in two:
        chief, other = rank["chief_only"]["own"]
        (metrics,) = rank["chief_only"]["training"]
        assert metrics["loss"] == chief != other


def test_validations_that_not_all_ranks_have_batches_for(two: Results) -> None:
    """Buffers of the model are the chief's on all ranks, and nobody waits for the others."""
    by_batch, at_once = (two[0][name]["validation"] for name in ("normalized", "at_once"))
    assert len(by_batch) == 2
    assert close(by_batch, at_once)
    for name in ("normalized", "at_once"):
        assert two[0][name]["validation"] == two[1][name]["validation"]
        assert two[0][name]["weights"] == two[1][name]["weights"]


def test_validations_between_exchanges(two: Results) -> None:
    """Buffers are the chief's on all ranks also where DDP has left each its own."""
    assert len(two[0]["drifts"]) == 4
    for metrics in two[0]["drifts"]:
        assert metrics["most"] == metrics["least"]


def test_a_model_that_is_not_called_as_wrapped(two: Results) -> None:
    """Its slots drift apart, which nothing else would tell: the chief says so, once."""
    (said,) = two[0]["calls_the_bare_model"]
    assert "does not call a model that wrap_model() returned" in said
    assert two[1]["calls_the_bare_model"] == []


def test_parameters_that_take_no_part(two: Results) -> None:
    """Torch's error gets the advice that can be followed here."""
    for rank in two:
        assert "backward_passes_per_step=2" in rank["unused"][0]


def test_a_parameter_that_no_slot_uses_stays(two: Results) -> None:
    """As on one slot: AdamW changes what has a gradient, if it were zero. One slot's counts."""
    for rank in two:
        before, after = rank["idle"]["idle"]
        assert before == after
        assert rank["idle"]["seldom"] == two[0]["idle"]["seldom"] != 1.0


def test_attributes_of_a_wrapped_model(two: Results) -> None:
    """They are read and set where one slot would; what DDP has of its own goes before."""
    for rank in two:
        found = rank["reaches"]
        assert found["same"] and found["forward"] and found["state"] and found["deleted"]
        assert found["set"] == [[1], "new", True, 1]
        assert found["missing"] == [False, False, False]
        assert found["ddp"]
        assert found["pickled"] == [3.0, True, 2.0]


@pytest.mark.skipif(MPIRUN is None, reason="MPI: there is no mpirun")
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="MPI: mpi4py is not installed")
def test_ranks_that_mpirun_has_started(two: Results, tmp_path: Path) -> None:
    """They find each other, and compute what torchrun's do."""
    assert MPIRUN is not None
    mpirun = [MPIRUN, "--oversubscribe", "-n", "2", sys.executable, "-m", "mpi4py"]
    environment = {**AS_ROOT, "DETSLURM_ROOT": str(tmp_path)}
    found = on_ranks(2, mpirun, "aggregated", tmp_path / "out", **environment)
    for rank in (0, 1):
        assert found[rank]["weights"] == two[rank]["aggregated"]["weights"]


IN_A_STEP = """\
    import json
    from detslurm import core, get_cluster_info, pytorch
    from tests.pytorch.ranks import Plain

    with pytorch.init(distributed=core.DistributedContext.from_slurm()) as context:
        trial = Plain(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(2))
        seen = [context.distributed.size, get_cluster_info().trial.trial_id, trial.own]
        found = context.distributed.allgather(seen)
    if context.distributed.rank == 0:
        print(json.dumps(found))
"""


def own_step(rank: int, count: int, root: Path) -> dict[str, str]:
    """What srun gives a process in a batch script of the user's own, on one node."""
    numbers = {
        "SLURM_STEP_ID": 0, "SLURM_NTASKS": count, "SLURM_NODEID": 0, "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank, "SLURM_TASKS_PER_NODE": count, "SLURM_NNODES": 1,
        "SLURM_JOB_ID": os.getpid(),  # ranks of one job meet: another suite may run beside this one
    }  # fmt: skip
    nodes = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "localhost")
    ours = {"DETSLURM_ROOT": str(root), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **nodes, **ours, **{name: str(n) for name, n in numbers.items()}}


def test_ranks_of_a_step_of_ones_own(tmp_path: Path) -> None:
    """Those that the script names are the ranks, and they train together in one trial."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(IN_A_STEP))
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=own_step(rank, 2, tmp_path / "store"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    found = json.loads(outputs[0])
    assert [size for size, *_ in found] == [2, 2]
    assert [trial for _, trial, _ in found] == [1, 1]
    assert found[0][2] != found[1][2]  # each its own part of a batch


def test_horovodrun_in_a_batch_script_has_the_ranks_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run that they joined by themselves has no slots that there had to be as many of."""
    asked: list[int | None] = []

    def connect(slots: int | None) -> SimpleNamespace:
        asked.append(slots)
        return SimpleNamespace(size=2)

    monkeypatch.setenv("USE_HOROVOD", "1")
    monkeypatch.setattr(_init, "_horovod", lambda: SimpleNamespace(connect=connect))
    monkeypatch.setattr(_init, "on_close", lambda: lambda outcome, reason: None)
    info: Any = SimpleNamespace(slot_ids=[0], _rendezvous_info=None)
    dist = _init.ranks_of(info, None)
    assert dist is not None
    assert (dist.size, asked) == (2, [None])


@needs_deepspeed
def test_ranks_that_deepspeed_has_started(two: Results, tmp_path: Path) -> None:
    """The same by DeepSpeed's launcher, in a trial that does not use DeepSpeed."""
    launcher = [sys.executable, "-m", "detslurm.launch.deepspeed", "--num_gpus=2", "--quiet", "--"]
    path = f"{LIGHT['PYTHONPATH']}:{REPOSITORY}"
    environment = LIGHT | {"DETSLURM_ROOT": str(tmp_path), "PYTHONPATH": path}
    found = on_ranks(2, launcher, "aggregated", tmp_path / "out", **environment)
    for rank in (0, 1):
        assert found[rank]["weights"] == two[rank]["aggregated"]["weights"]


def test_ranks_keep_the_same_weights(two: Results) -> None:
    """To the last bit, in each scenario."""
    for name in ("plain", "aggregated", "twice", "adversaries", "scaled"):
        assert two[0][name]["weights"] == two[1][name]["weights"]


def test_one_rank_overflows_and_none_steps(two: Results) -> None:
    """With a scaler of the trial's own: all skip that step, and all halve the scale."""
    for rank in two:
        scales = [metrics["scale"] for metrics in rank["scaled"]["training"]]
        assert scales == [4.0] * 3 + [2.0] * 5


def test_several_backward_passes_a_batch(two: Results) -> None:
    """Two halves of the loss are the whole; averages over the ranks are what is clipped."""
    for rank in two:
        assert close(rank["twice"]["weights"], rank["plain"]["weights"])
        losses = [metrics["loss"] for metrics in rank["plain"]["training"]]
        assert close([metrics["loss"] for metrics in rank["twice"]["training"]], losses)


def test_several_models_and_optimizers(root: Path, two: Results) -> None:
    """A generator, a discriminator and a frozen model give the losses of one rank."""
    for name, aggregation in (("adversaries", 2), ("aggregated_adversaries", 4)):
        one = train(aggregation, 16, Adversaries)
        assert close(two[0][name]["training"], one["training"])


def test_compressed_gradients(two: Results) -> None:
    """Half precision on the way costs digits, and both ranks still agree."""
    ours, exact = two[0]["compressed"]["weights"], two[0]["plain"]["weights"]
    assert ours == two[1]["compressed"]["weights"]
    assert not close(ours, exact)
    assert ours == [pytest.approx(values, abs=1e-3) for values in exact]


def test_ranks_that_go_on_between_two_steps(two: Results) -> None:
    """To the last bit: each rank has the gradients that it had gathered."""
    for rank in two:
        assert rank["halfway"]["weights"] == rank["aggregated"]["weights"]


def test_one_rank_goes_on_where_two_were(
    root: Path, two: Results, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gradients of both are there; random numbers can't be the same, which is said."""
    folder = store / "checkpoints" / two[0]["halfway"]["saved"]
    one = train(2, 8, lambda context: Plain(context, 8), latest_checkpoint=str(folder))
    assert close(one["weights"], two[0]["aggregated"]["weights"])
    assert "saved by 2 ranks and is read by 1" in caplog.text


def test_a_full_disk_ends_no_rank(two: Results) -> None:
    """All go on without a checkpoint, whoever found no space, and save the next."""
    for rank in two:
        assert len(rank["full_disk"]["checkpoints"]) == 1
        assert rank["full_disk"]["weights"] == rank["aggregated"]["weights"]
    # The hook that may add to a checkpoint is the chief's.
    assert [bool(rank["full_disk"]["begun"]) for rank in two] == [True, False]


def test_one_rank_asks_to_stop_and_all_do(two: Results) -> None:
    """After the same batch: the next report finds out."""
    for rank in two:
        assert len(rank["asks_to_stop"]["training"]) == 2


def test_one_rank_fails_to_evaluate_and_all_know(two: Results) -> None:
    """No rank waits for another in vain, and all say what went wrong."""
    for rank in two:
        assert "must return a dict of metrics, not list" in rank["fails_to_evaluate"]


def test_one_rank_refuses_hyperparameters_and_all_know(two: Results) -> None:
    """The chief tells the search: a mere error would start the trial again."""
    assert [rank["refuses"] for rank in two] == ["left with 0"] * 2


def test_averaging_waits_for_no_gpu_where_all_have_gradients(monkeypatch: Any) -> None:
    """What copies from the host, or to it, stops each step until all kernels are done."""
    import torch

    from detslurm.pytorch._data_parallel import average_gradients

    data_parallel: Any = SimpleNamespace(all_reduce_sum=lambda flat: flat.mul_(2))

    def wait(*_: Any) -> None:
        raise AssertionError("a GPU would have to be waited for")

    one, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    one.grad = torch.full((3,), 4.0)
    average_gradients([one, other], data_parallel, 2, compressed=False)
    assert one.grad.tolist() == [4.0] * 3 and other.grad is None
    for name in ("new_tensor", "tolist", "item"):
        monkeypatch.setattr(torch.Tensor, name, wait)
    other.grad = torch.zeros(3)
    average_gradients([one, other], data_parallel, 2, compressed=True)


def test_nccl_is_given_the_device(monkeypatch: Any) -> None:
    """By torchrun's environment, and by an address that the chief has found."""
    import torch

    from detslurm.pytorch import _ddp

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **how: calls.append(how))
    # Another test of this process may have left a group.
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    dist: Any = SimpleNamespace(
        size=2, rank=1, cross_size=1, broadcast=lambda _: "tcp://127.0.0.1:5"
    )
    gpu = torch.device("cuda", 1)
    for size in ("", "2"):
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        assert _ddp.start_process_group(dist, gpu, "127.0.0.1")
    assert [call["device_id"] for call in calls] == [gpu, gpu]
    assert [call.get("init_method") for call in calls] == ["tcp://127.0.0.1:5", None]
    _ddp.start_process_group(dist, torch.device("cpu"), "127.0.0.1")
    assert calls[-1] == {"backend": "gloo"}


WITHOUT_A_LOSS = """\
    import sys
    from detslurm import pytorch
    from tests.pytorch.trials import Regression

    class Accurate(Regression):
        def evaluate_batch(self, batch, batch_idx):
            return {"accuracy": -len(self.losses)}

    metric = {"metric": "accuracy", "smaller_is_better": False}
    exp_conf = {"searcher": metric} if "metric" in sys.argv else None
    with pytorch.init(exp_conf=exp_conf, hparams={}) as context:
        trainer = pytorch.Trainer(Accurate(context), context)
        trainer.fit(max_length=pytorch.Batch(6), validation_period=pytorch.Batch(2))
"""


LAUNCHER = ("-m", "detslurm.launch.torch_distributed", "--")


@pytest.mark.parametrize(
    ("launcher", "arguments", "saved"),
    [((), (), [2, 4, 6]), (LAUNCHER, ("metric",), [2, 6])],
)
def test_a_script_of_ones_own_chooses_its_metric(
    tmp_path: Path, launcher: tuple[str, ...], arguments: tuple[str, ...], saved: list[int]
) -> None:
    """Nobody has configured one: it saves after each validation, or after those it calls better."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(WITHOUT_A_LOSS))
    argv = [sys.executable, *launcher, str(script), *arguments]
    subprocess.run(argv, env=own_step(0, 1, tmp_path / "store"), cwd=tmp_path, check=True)
    view = fold_trial(Store(tmp_path / "store").experiment(1).trial(1))
    assert [one.steps for one in view.checkpoints] == saved
