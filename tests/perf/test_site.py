"""The simulator of a site: nothing is lost or done twice in it, and its costs are of this code."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.calls import available
from benchmarks.rows.startup import Startup
from benchmarks.site.__main__ import main
from benchmarks.site.costs import kept
from benchmarks.site.decisions import FileServer, crowd
from benchmarks.site.engine import Process, Server, Simulation
from benchmarks.site.model import Site, Workload, World
from benchmarks.site.outcome import outcome
from tests.perf.test_searches import calls_of_a_decision

BUSY = Site(
    nodes=20, slots=4, metadata_rate=2000, failures=0.5, preemptions=0.5, requeue_seconds=10
)
GRID = Workload(trials=400, minutes=10, checkpoint_minutes=2, top=3, listings=60)


def test_a_server_shares_what_it_can_do() -> None:
    """Two that come at once take twice as long; one alone is no faster than one may be."""
    simulation = Simulation()
    server = Server(simulation, capacity=100, each=80)
    ends: list[float] = []

    def user(amount: float) -> Process:
        yield server.use(amount)
        ends.append(simulation.now)

    for amount in (100, 100, 260):
        simulation.start(user(amount))
    simulation.run()
    assert ends == [pytest.approx(3), pytest.approx(3), pytest.approx(5)]
    assert server.done == pytest.approx(sum(server.by_second.values())) == pytest.approx(460)
    assert max(server.by_second.values()) <= 100


@pytest.mark.parametrize("load", [GRID, dataclasses.replace(GRID, search="asha")])
def test_what_is_asked_is_done(load: Workload) -> None:
    """Every trial ends once, all slots are free again, each server has done what it was asked, no
    more than it can, and all time in slots was trained, lost, or spent on starts and ends."""
    world = World(BUSY, load, seed=1)
    world.run()
    world.simulation.run()  # what the last trial's end has left
    seen = world.seen
    assert seen.ended == load.trials
    assert world.places.free == BUSY.nodes * BUSY.slots
    assert seen.interrupted > 0
    assert len(seen.first_lines) == seen.ended + seen.interrupted
    for server in (world.metadata, world.controller, world.transfer, world.scheduler, *world.cores):
        assert server.users == 0
        assert server.done == pytest.approx(server.asked) == pytest.approx(
            sum(server.by_second.values())
        )  # fmt: skip
        assert server.peak <= server.capacity * 1.0001
    held = world.places.held
    assert held <= BUSY.nodes * BUSY.slots * world.simulation.now
    assert seen.trained + seen.lost + seen.stalled + sum(seen.first_lines) <= held


def test_a_seed_gives_one_outcome() -> None:
    """And more of what saturates makes nothing slower."""

    def run(site: Site) -> World:
        world = World(site, GRID, seed=2)
        world.run()
        return world

    slow, again = outcome(run(BUSY)), outcome(run(BUSY))
    assert slow == again
    assert slow.first == "metadata server"
    fast = outcome(run(dataclasses.replace(BUSY, metadata_rate=200_000)))
    assert fast.storm < slow.storm
    assert fast.last_first_line < slow.last_first_line


@pytest.mark.parametrize("rate", [2_000, 1_000_000])
def test_workers_at_once_decide_as_the_logs_own_code_does(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search whose workers begin together, where the metadata server is the limit and where not:
    their first decisions take what as many threads with a log each take, within a third."""
    monkeypatch.setattr(os, "urandom", random.Random(1).randbytes)  # the pauses of both
    workers = 100
    site = Site(nodes=workers, slots=1, metadata_rate=rate)
    world = World(site, Workload(trials=workers, search="asha", top=0, listings=0))
    world.run()
    server = FileServer(site.metadata_latency, 1 / rate)
    seen = crowd(workers, decisions=1, server=server)
    mean = sum(seen.waits) / workers
    assert sum(world.seen.decisions[:workers]) / workers == pytest.approx(mean, rel=1 / 3)


def test_a_worker_asks_for_its_next_trial_where_its_last_one_ends() -> None:
    """A decision for each trial, and for each worker that begins."""
    site, load = Site(nodes=2, slots=2), Workload(trials=20, search="asha", rungs=1, top=0)
    world = World(site, load)
    world.run()
    assert len(world.seen.decisions) <= 20 + 4


def test_a_staged_environment_is_read_once_by_each_node() -> None:
    """And imports ask the metadata server for nothing then, but for the experiment's own files."""
    site = Site(nodes=5, slots=4)
    load = Workload(trials=60, imports=20_000, top=0, checkpoint_bytes=0)
    worlds = [World(site, dataclasses.replace(load, staged_bytes=size)) for size in (0, 1e9)]
    for world in worlds:
        world.run()
    plain, staged = worlds
    assert (plain.transfer.asked, staged.transfer.asked) == (0, 5e9)
    calls = plain.costs.calls
    saved = load.imports + calls.imports - calls.opening
    assert plain.metadata.asked - staged.metadata.asked == pytest.approx(60 * saved, rel=0.01)
    assert min(staged.seen.lines_at) > 1e9 / site.unpack_bandwidth


@pytest.mark.skipif(not available(), reason="strace is not installed")
def test_the_costs_are_of_this_code(tmp_path: Path) -> None:
    """Roughly (strace counts looks at open files, too), or `python -m benchmarks.site.measure` has
    to be run again."""
    calls = kept().calls
    with Bench() as bench:
        startup = Startup(bench)
        startup.whole_seconds()
        assert calls.runner == pytest.approx(startup.runner_calls(), rel=0.4)
    counts = calls_of_a_decision(tmp_path / "search", 50)
    assert kept().decision(0) == pytest.approx(counts.total() / 64, rel=0.25)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes what a site and a workload are from the command line, and prints what was full."""
    words = ["site", "--nodes", "5", "--trials", "40", "--metadata-rate", "2000", "--imports", "9"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    assert "saturated for the longest time      metadata server" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "--search", "asha", "--top", "2", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["decisions"] > 0
