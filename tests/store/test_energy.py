"""Sums of energy, and their marks where a part is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.store.energy import Energy, SourceEnergy
from detslurm.store.run_usage import Requested, RunUsage, energy_of, parse_usage


def observed(*samples: dict[str, Any], nodes: int = 1) -> RunUsage:
    """A run with these samples."""
    usage = RunUsage(requested=Requested(nodes=nodes))
    for sample in samples:
        usage.add({"seconds": 15.0, **sample}, 1.0)
    return usage


def test_a_run_adds_up_the_joules_of_its_nodes() -> None:
    """Each source by itself; all is known once each node has been read to its end."""
    first = observed({"energy": {"nvml": 10.0, "rapl": 1.0}}, {"energy": {"nvml": 5.0}}, nodes=2)
    assert energy_of([first]) == Energy({"nvml": 15.0, "rapl": 1.0}, at_least=True)
    first.add({"seconds": 1.0, "energy": {"nvml": 1.0}, "metered": ["nvml"]}, 2.0)
    assert energy_of([first]) == Energy({"nvml": 16.0, "rapl": 1.0}, at_least=True)
    ended = {"seconds": 1.0, "energy": {"nvml": 1.0, "rapl": 1.0}, "metered": ["nvml", "rapl"]}
    only = observed(ended)
    assert energy_of([only]) == Energy({"nvml": 1.0, "rapl": 1.0})
    assert parse_usage(only.to_dict()) == only


def test_a_killed_agent_leaves_a_lower_bound() -> None:
    """It has sent all samples but its last."""
    killed = observed({"energy": {"nvml": 7.0}})
    assert energy_of([killed]) == Energy({"nvml": 7.0}, at_least=True)


def test_unknown_is_not_zero() -> None:
    """Records of older versions, runs without counters, and runs that nobody observed."""
    old = parse_usage({"node_seconds": 5.0, "cpu_seconds": 1.0})
    assert old is not None
    assert energy_of([old]) is energy_of([observed({})]) is energy_of([None]) is None
    assert energy_of([]) is None
    idle = observed({"energy": {"nvml": 0.0}, "metered": ["nvml"]})
    assert energy_of([idle]) == Energy({"nvml": 0.0})


@pytest.mark.parametrize("lacking", [None, Energy({"nvml": 1.0}, at_least=True)])
def test_a_sum_without_a_part_is_a_lower_bound(lacking: Energy | None) -> None:
    """GPUs of one trial and CPUs of another are both known."""
    known = [Energy({"nvml": 1.0}), Energy({"rapl": 2.0, "nvml": 1.0})]
    whole = Energy.sum(known)
    assert whole == Energy({"nvml": 2.0, "rapl": 2.0}) and whole.total == 4.0
    partly = Energy.sum([*known, lacking])
    assert partly is not None and partly.at_least and partly.total >= 4.0


def test_a_forged_source_counts_nothing() -> None:
    """The record of a run has a bound."""
    usage = observed({"energy": {f"source {n}": 1.0 for n in range(1000)}})
    assert usage.energy == {}
    assert SourceEnergy(1.0, 1).after(2.0, ended=True) == SourceEnergy(3.0, 2)
