"""The counters of energy: NVIDIA's and the kernel's, with all that makes them unknown."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm._base.nvml import Nvml
from detslurm.exec import energy
from detslurm.exec.energy import EnergyCounter, EnergyMeter, joules_between, package_counters
from detslurm.exec.run_processes import Used
from detslurm.exec.usage_sampler import Sample, UsageSampler
from tests.exec.test_usage_sampler import PATIENCE, Scripted, samples


def zone(root: Path, name: str, title: str, joules: float | None, span: float = 262.0) -> Path:
    """A zone of the kernel's `powercap`; None for a counter that only root may read."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "name").write_text(f"{title}\n")
    (path / "max_energy_range_uj").write_text(f"{round(span * 1e6)}\n")
    if joules is None:
        (path / "energy_uj").mkdir()  # unreadable for root, too
    else:
        (path / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    return path


def test_a_counter_wraps_around() -> None:
    """It begins again behind its range; without one a smaller reading is of a new driver."""
    assert joules_between(10.0, 25.0) == 15.0
    assert joules_between(250.0, 5.0, 262.0) == 17.0
    assert (
        joules_between(250.0, 5.0) is joules_between(None, 5.0) is joules_between(5.0, None) is None
    )


def test_each_joule_of_a_package_counts_once(tmp_path: Path) -> None:
    """Cores are a part of their package, and two more zones have the packages again."""
    for number in (0, 1):
        zone(tmp_path, f"intel-rapl:{number}", f"package-{number}", 100.0 + number)
        zone(tmp_path, f"intel-rapl:{number}:0", "core", 50.0)
    zone(tmp_path, "intel-rapl:2", "psys", 300.0)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 100.0)
    (tmp_path / "intel-rapl").mkdir()
    assert [one.reading for one in package_counters(tmp_path)] == [100.0, 101.0]
    meter = EnergyMeter({"rapl": package_counters(tmp_path)})
    zone(tmp_path, "intel-rapl:0", "package-0", 110.0)
    zone(tmp_path, "intel-rapl:1", "package-1", 1.0)  # 161 up to its range
    assert meter.advance() == {"rapl": 10.0 + 162.0}
    assert meter.complete == {"rapl"}


def test_an_unreadable_counter_is_left_out(tmp_path: Path) -> None:
    """No directory, and a counter of root's: nothing. One that fails for a while: a lower bound."""
    assert package_counters(tmp_path / "none") == []
    zone(tmp_path, "intel-rapl:0", "package-0", None)
    nothing = EnergyMeter({"rapl": package_counters(tmp_path), "nvml": []})
    assert (nothing.advance(), nothing.complete) == ({}, set())
    readings: Iterator[float | None] = iter([0.0, 5.0, None, 20.0, 22.0])
    meter = EnergyMeter({"nvml": [EnergyCounter(lambda: next(readings))]})
    found = [meter.advance() for _ in range(4)]
    assert found == [{"nvml": 5.0}, {}, {}, {"nvml": 2.0}] and meter.complete == set()


@pytest.mark.parametrize(
    "cpus, whole", [("{all}", True), ("{all}(x2)", True), ("1,{all}", False), ("", False)]
)
def test_a_package_counts_only_for_a_whole_node(cpus: str, whole: bool) -> None:
    """Slurm names the CPUs of each node; one that is shared has the energy of others, too."""
    count = os.sysconf("SC_NPROCESSORS_ONLN")
    if count == 1:
        pytest.skip("one CPU is all of this node")
    given = {"SLURM_JOB_CPUS_PER_NODE": cpus.format(all=count)}
    assert energy.has_whole_nodes(given) is whole


class Gpu:
    """A GPU whose counter gains a joule at each reading."""

    def __init__(self, pids: set[int] | None = None) -> None:
        self.joules, self.pids = 1000, pids or set()
        self.hangs: threading.Event | None = None

    def counter(self, _: Any) -> int:
        if self.hangs is not None:
            self.hangs.wait()
        self.joules += 1
        return self.joules * 1000

    @property
    def nvml(self) -> Nvml:
        running = [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self.pids]
        return Nvml(
            SimpleNamespace(
                NVMLError=RuntimeError,
                nvmlDeviceGetHandleByIndex=lambda index: index,
                nvmlDeviceGetComputeRunningProcesses=lambda gpu: running,
                nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50),
                nvmlDeviceGetTotalEnergyConsumption=self.counter,
            )
        )


def sampled(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, count: int = 3) -> list[Sample]:
    """The samples of a run on this GPU, its last among them."""
    monkeypatch.setattr(Nvml, "load", lambda: gpu.nvml)
    processes = Scripted(Used(1.0, 1000, 0, 0, frozenset({10})))
    with UsageSampler(processes, ["0"], interval=0.01) as sampler:
        assert processes.asked.wait(PATIENCE)
        found: list[Sample] = []
        while len(found) < count:
            found += sampler.take()
    return [*found, *sampler.take()]


def test_a_run_has_the_energy_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the first sample to behind the last: each interval once."""
    found = sampled(Gpu({10}), monkeypatch)
    assert [one["energy"] for one in found] == [{"nvml": 1.0}] * len(found)
    assert found[-1]["metered"] == ["nvml"] and found[-1]["last"]


def test_a_gpu_with_processes_of_others_has_unknown_energy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its counter has their joules, too."""
    found = sampled(Gpu({10, 99}), monkeypatch)
    assert not any("energy" in one for one in found) and found[-1]["metered"] == []


def test_a_driver_without_the_counter_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before Volta, and old versions of the package; other figures stay."""
    monkeypatch.setattr(Nvml, "joules", lambda self, gpu: None)
    found = sampled(Gpu({10}), monkeypatch)
    assert found[0]["gpus"] == [{"memory": 1, "percent": 50}] and "energy" not in found[0]


def test_a_driver_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's end waits a second, and has its CPU time all the same."""
    gpu = Gpu()
    gpu.hangs = threading.Event()
    monkeypatch.setattr(Nvml, "load", lambda: gpu.nvml)
    try:
        with UsageSampler(Scripted(Used(1.0, 1, 0, 0, frozenset())), ["0"], 0.01) as sampler:
            pass
        (last,) = sampler.take()
        assert last["last"] and "energy" not in last and "cpu" in last
    finally:
        gpu.hangs.set()


def test_packages_are_read_with_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job with the whole node has its CPUs' energy."""
    zone(tmp_path, "intel-rapl:0", "package-0", 5.0)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    for whole in (True, False):
        monkeypatch.setattr(energy, "has_whole_nodes", lambda whole=whole: whole)
        found = samples(Scripted(Used(1.0, 1, 0, 0, frozenset())), [])
        assert ("energy" in found[0]) is whole
