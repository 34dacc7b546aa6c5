"""Energy and its CO2 where slot-hours stand."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from detslurm.cli.output.energy import energy_text
from detslurm.config.schema.site import SiteEnergy
from detslurm.sdk.costs.energy import EnergyUse, co2_kg
from detslurm.store.records import Job, Submitted
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene

KWH = 3.6e6


def finished(scene: Scene, *energies: dict[str, Any] | None, jobs: Sequence[str] = ()) -> int:
    """An experiment whose trials each ran an hour on one node with this energy."""
    experiment = scene.experiment(len(energies), job=None, about={"slots": 2})
    for number, energy in enumerate(energies, start=experiment.created().first_trial):
        trial = experiment.trial(number)
        job = {"job": {"ref": jobs[number - 1]}} if jobs else {}
        trial.open_run({"hparams": {}, "time": 1000.0, **job})
        used = {} if energy is None else {"usage": {"node_seconds": 3600.0, "energy": energy}}
        trial.write_end(1, {"outcome": "completed", "time": 4600.0, **used})
    return experiment.id


def test_energy_stands_beside_slot_hours(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In each table, description, CSV and JSON; CO2 as soon as the site profile has a factor."""
    gpus = {"joules": 2 * KWH, "nodes": 1}
    cpus = {"joules": KWH / 4, "nodes": 1}
    number = finished(scene, {"nvml": gpus, "rapl": cpus}, {"nvml": gpus})
    assert "| 4.25 kWh |" in detslurm("usage").out
    site = tmp_path / "site.yaml"
    site.write_text("energy: {co2_g_per_kwh: 400, pue: 1.25}\n")
    monkeypatch.setenv("DETSLURM_SITE", str(site))
    monkeypatch.setattr("detslurm.sdk.costs.energy._READ_AGAIN", 1e-9)
    shown = "2.25 kWh (1.12 kg CO2)"
    assert shown in detslurm("e", "efficiency", number).out
    assert f"{shown}: GPUs 2.00 kWh, CPUs 0.25 kWh" in detslurm("t", "describe", 1).out
    described = detslurm("e", "describe", number)
    assert "4.25 kWh (2.12 kg CO2): GPUs 4.00 kWh, CPUs 0.25 kWh" in described.out
    assert "Slot-Hours : 4.00" in " ".join(described.out.split())
    (row,) = csv.DictReader(io.StringIO(detslurm("usage", "--csv").out))
    assert (row["energy_kwh"], row["co2_kg"], row["energy_at_least"]) == ("4.25", "2.125", "False")
    (data,) = detslurm("usage", "--json").data
    assert data["energy"]["sources"] == {"nvml": 4.0, "rapl": 0.25}
    assert detslurm("t", "describe", 1, "--json").data["efficiency"]["energy"]["kwh"] == 2.25
    assert detslurm("e", "list", "--json").data[0]["energy"] == data["energy"]
    (first, second) = detslurm("e", "describe", number, "--json").data["trials"]
    assert (first["energy"]["kwh"], second["energy"]["co2_kg"]) == (2.25, 1.0)
    assert ",4.25,2.125,False," in detslurm("e", "describe", number, "--csv").out


def test_unknown_energy_is_empty_and_makes_sums_lower_bounds(
    scene: Scene, detslurm: Detslurm
) -> None:
    """A trial of an older version, and one of whose two nodes only one was read to its end."""
    finished(scene, None)
    assert detslurm("usage", "--json").data[0]["energy"] is None
    (row,) = csv.DictReader(io.StringIO(detslurm("e", "efficiency", 1, "--csv").out))
    assert row["energy_kwh"] == row["co2_kg"] == row["energy_at_least"] == ""
    assert "Energy" not in detslurm("e", "describe", 1).out
    finished(scene, {"nvml": {"joules": KWH, "nodes": 1}}, {"nvml": {"joules": KWH, "nodes": 0}})
    assert "at least 1.00 kWh" in detslurm("t", "describe", 3).out
    assert "at least 2.00 kWh" in detslurm("usage").out
    by_experiment = detslurm("usage", "--by", "experiment", "--json").data
    assert [one["energy"] and one["energy"]["at_least"] for one in by_experiment] == [True, None]


def test_slurms_figure_stands_where_nothing_else_is_known(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With `energy.accounting` in the site profile: one question for all trials, and a
    mark that it counts whole nodes. A database that is down costs a warning."""
    site = tmp_path / "site.yaml"
    site.write_text("energy: {accounting: true}\n")
    monkeypatch.setenv("DETSLURM_SITE", str(site))
    monkeypatch.setattr("detslurm.sdk.costs.energy._READ_AGAIN", 1e-9)
    known = {"nvml": {"joules": KWH, "nodes": 1}}
    number = finished(scene, None, known, None, None, jobs=["12_0", "12_1", "12_2", "12_3"])
    scene.queue.joules = {"12_0": 2 * KWH, "12_1": 9 * KWH, "12_2": KWH}
    rows = detslurm("e", "efficiency", number, "--json").data
    found = [one["energy"] and one["energy"]["sources"] for one in rows]
    assert found == [{"slurm": 2.0}, {"nvml": 1.0}, {"slurm": 1.0}, None]
    assert [call[1] for call in scene.queue.calls if call[0] == "energy"] == [
        ["12_0", "12_2", "12_3"]
    ]
    shown = detslurm("t", "describe", 1).out
    assert "about 2.00 kWh: whole nodes by Slurm 2.00 kWh" in shown
    adopted = Submitted(jobs=(Job(job_id="12_2", first_index=3, adopted=True),))
    scene.store.experiment(number).append(adopted)  # it has run two trials since
    rows = detslurm("e", "efficiency", number, "--json").data
    assert [one["energy"] is None for one in rows] == [False, False, True, True]
    scene.queue.down = True
    assert detslurm("e", "efficiency", number, "--json").data[0]["energy"] is None


def test_small_amounts_have_small_units() -> None:
    """An hour of nothing is not 0.00 kWh."""
    assert energy_text(EnergyUse(kwh=0.0123, co2_kg=0.004, sources={})) == "12.30 Wh (4.00 g CO2)"
    assert energy_text(EnergyUse(kwh=0.0, at_least=True, sources={})) == "at least 0.00 kWh"


def test_co2_needs_a_factor() -> None:
    """A site with a PUE alone has no CO2; the PUE is 1 by default."""
    assert co2_kg(2.0, None) is co2_kg(2.0, SiteEnergy(pue=1.5)) is None
    assert co2_kg(2.0, SiteEnergy(co2_g_per_kwh=380)) == pytest.approx(0.76)
