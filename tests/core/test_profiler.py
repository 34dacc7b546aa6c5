"""System metrics while the profiler is on, and none else."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm import core
from detslurm._base.nvml import Nvml
from detslurm.core import DistributedContext, ProfilerContext, _system
from detslurm.core._profiler import averaged
from detslurm.core._system import rates_between
from detslurm.core._trial import NodeRecorder
from detslurm.store import fold_trial
from detslurm.store.profiling import trial_profile
from tests.cluster.waiting import wait_for

from .jobs import Job, enter
from .ranks import on_ranks

pytest.importorskip("psutil")

PATIENCE = 120.0


def running() -> bool:
    """Whether a profiler samples in this process."""
    return any(thread.name == "profiler" for thread in threading.enumerate())


def test_each_group_is_reported_under_the_node(job: Job) -> None:
    """Averages of plausible values; the curve of the training does not know of them."""
    with core.init() as context:
        context.profiler.on(sampling_interval=0.1, samples_per_report=2)
        wait_for(
            lambda: (context._recorder.flush(), len(trial_profile(job.trial, "cpu")))[1] >= 2,
            PATIENCE,
            "two reports",
        )
        context.profiler.off()
        assert not running()
    latest = {row.group: row.metrics for row in trial_profile(job.trial)}
    assert set(latest) - {"gpu"} == {"cpu", "memory", "disk", "network"}
    assert 0 <= latest["cpu"]["cpu_util_simple"] <= 100
    assert 0 < latest["memory"]["memory_free"] < 1e5
    assert 0 <= latest["disk"]["/"]["disk_util"] <= 100
    assert set(latest["network"]) == {"net_throughput_sent", "net_throughput_recv"}
    view = fold_trial(job.trial)
    assert (view.steps, view.problems) == (0, ())


def test_it_is_off_unless_asked_and_ends_with_the_context(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """on() and off() may be called twice; a context that ends takes the thread along."""
    with core.init() as context:
        assert not running()
        context.profiler.off()
        context.profiler.on()
        assert running() and not caplog.records
        context.profiler.on()
        assert "on already" in caplog.text
        context.profiler.off()
        context.profiler.off()
        assert not running()
        context.profiler.on()
    assert not running()


def test_the_configuration_turns_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`profiling: {enabled: true}` is enough; what is left at the end is reported."""
    job = enter(tmp_path, monkeypatch, {"profiling": {"enabled": True}})
    with core.init():
        assert running()
    assert not running()
    job.flag.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("sampling_interval", interval) for interval in (0, 0.05, -1, float("nan"))),
        *(("samples_per_report", samples) for samples in (0, -1, 1.5, True, "3")),
    ],
)
def test_settings_that_make_no_sense_are_refused(job: Job, name: str, value: Any) -> None:
    """An interval of at least a tenth of a second, and a positive number of samples."""
    with core.init() as context, pytest.raises(ValueError, match=name):
        context.profiler.on(**{name: value})


def test_one_process_of_each_node_samples(job: Job) -> None:
    """Other local ranks do nothing; the second node keeps records of its own."""

    def body(dist: DistributedContext) -> bool:
        recording: Any = (
            nullcontext(None) if dist.rank == 0 else NodeRecorder(job.trial, 1, dist.cross_rank)
        )
        profiler = ProfilerContext(f"node{dist.cross_rank}", dist, recording)
        if dist.rank != 0:
            profiler.on(sampling_interval=0.1, samples_per_report=1)
        sampling = profiler._sampling is not None
        if sampling:
            path = job.trial.node_records_path(1, 1)
            assert profiler._recorder is not None
            flush = profiler._recorder.flush
            wait_for(lambda: (flush(), path.exists() and path.stat().st_size > 0)[1], PATIENCE)
        profiler.close()
        return sampling

    assert on_ranks(4, body, nodes=2) == [False, False, True, False]
    assert {row.node for row in trial_profile(job.trial)} == {"node1"}


def test_what_a_driver_does_not_measure_is_left_out() -> None:
    """How busy a slice of a GPU is, and nothing at all of one that was lost; the rest is there."""

    class Refused(Exception):
        pass

    def measured(index: int, **value: int) -> SimpleNamespace:
        if index == 2 or (index == 1 and "gpu" in value):
            raise Refused
        return SimpleNamespace(**value)

    nvml = SimpleNamespace(
        NVMLError=Refused,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}".encode() if gpu else "GPU-0",
        nvmlDeviceGetUtilizationRates=lambda gpu: measured(gpu, gpu=40),
        nvmlDeviceGetMemoryInfo=lambda gpu: measured(gpu, free=7),
    )
    assert _system._gpus(Nvml(nvml)) == {
        "GPU-0": {"gpu_util": 40, "gpu_free_memory": 7},
        "GPU-1": {"gpu_free_memory": 7},
    }


def test_a_sampler_that_fails_ends_the_profiling_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on, with a warning."""

    def fail(_: object) -> dict[str, Any]:
        raise OSError("no such counter")

    monkeypatch.setattr(_system.SystemSampler, "sample", fail)
    with core.init() as context:
        context.profiler.on(sampling_interval=0.1)
        wait_for(lambda: not running(), PATIENCE, "the end of the profiling")
        context.train.report_training_metrics(1, {"loss": 1})
    assert "profiling ends: OSError: no such counter" in caplog.text


def test_rates_and_averages() -> None:
    """Counters become rates, also after a reset; numbers average at any depth."""
    before, now = {"time": 1.0, "x": 10.0, "gone": 1.0}, {"time": 3.0, "x": 30.0, "new": 5.0}
    assert rates_between(before, now) == {"x": 10.0}
    assert rates_between({"time": 1.0, "x": 9.0}, {"time": 2.0, "x": 0.0}) == {"x": 0}
    assert averaged([{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"c": 4, "d": 5}}]) == {
        "a": 2,
        "b": {"c": 3, "d": 5},
    }
