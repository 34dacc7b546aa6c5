"""How results look: on terminals, in pipes, as JSON; and one voice for errors."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.cli.output import printing as output
from detslurm.cli.output.printing import Column
from detslurm.cli.output.tables import cells_of, fit
from detslurm.store import RunLog
from tests.cli.conftest import Detslurm
from tests.cli.terminals import on_terminal, without_colors
from tests.envelope import errors_of
from tests.sdk.scenes import Scene


def test_errors_have_one_voice(scene: Scene, detslurm: Detslurm) -> None:
    """Who speaks, what kind of message it is, and for a wrong command line how it is used."""
    scene.experiment()
    said = detslurm("e", "describe", 7).err
    assert said == f"detslurm: error: there is no experiment 7 in {scene.root}\n"
    wrong = detslurm("e", "list", "--nosuch")
    assert wrong.status == 2
    assert wrong.err.startswith("Usage: detslurm experiment list [OPTIONS]\n")
    assert "Try 'detslurm experiment list --help' for help." in wrong.err
    assert wrong.err.splitlines()[-1].startswith("detslurm: error: No such option")


def test_many_rows_are_the_same_json(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are printed as they come, to the letter as if they were printed at once."""
    for number in range(5):
        scene.experiment(name=f"a [] of\n{{{number}}}")
    whole = detslurm("e", "list", "--json").out
    for most in (1, 2, 4):
        monkeypatch.setattr(output, "_AT_ONCE", most)
        assert detslurm("e", "list", "--json").out == whole


@pytest.mark.parametrize(
    ("words", "status", "kind"),
    [
        (("e", "describe", 7), 1, "not_found"),
        (("e", "describe", "-7x"), 2, "usage"),
        (("e", "archive", 1), 1, "refused"),
        (("submit", "/nonexistent.yaml"), 2, "config"),
        (("doctor", "--nosuch"), 2, "usage"),
        (("nosuch",), 2, "usage"),
    ],
)
def test_errors_come_as_json_too(
    scene: Scene, detslurm: Detslurm, words: tuple[object, ...], status: int, kind: str
) -> None:
    """In the same envelope as results, whatever fails; the exit status tells, too."""
    scene.experiment(job="7")
    result = detslurm(*words, "--json")
    assert result.status == status
    (error,) = errors_of(result.out)
    assert error["kind"] == kind and error["message"]
    assert error["message"] in result.err


def test_what_was_found_comes_with_what_failed(scene: Scene, detslurm: Detslurm) -> None:
    """One envelope has both."""
    scene.experiment()
    result = detslurm("e", "describe", 1, 7, "--json")
    assert result.status == 1
    assert [one["id"] for one in result.data] == [1]
    assert [one["kind"] for one in errors_of(result.out)] == ["not_found"]
    done = detslurm("e", "unarchive", 1, 7, "--json")
    assert [one["done"] for one in done.data] == [True, False]
    (error,) = errors_of(done.out)
    assert error["message"].startswith("there is no experiment 7")


WIDTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3), st.booleans()), min_size=1)


@given(WIDTHS, st.integers(20, 200))
def test_a_fitted_line_is_never_too_long(
    found: list[tuple[int, int, bool]], available: int
) -> None:
    """Cells are cut, then columns left out; those that must stay are whole where there is room."""
    columns = [Column("c", str, drop=drop, least=4 if cut else None) for _, drop, cut in found]
    widths = [width for width, _, _ in found]
    shown, given_widths = fit(columns, widths, available)
    needed = sum(given_widths) + 2 * (len(shown) - 1)
    kept = [n for n, column in enumerate(columns) if not column.drop]
    assert set(kept) <= set(shown)
    assert needed <= available or list(shown) == kept
    for n, width in zip(shown, given_widths, strict=True):
        assert min(widths[n], columns[n].least or widths[n]) <= width <= widths[n]


def test_nothing_is_cut_in_a_pipe(scene: Scene, detslurm: Detslurm) -> None:
    """However narrow a terminal may be; wide characters keep the columns straight."""
    name = "日本語のとても長い名前" * 5
    scene.experiment(name=name)
    scene.experiment(name="x")
    lines = detslurm("e", "list").out.splitlines()
    assert any(name in line for line in lines)
    rows = [line for line in lines if "|" in line]
    assert len({tuple(map(cells_of, line.split("|")[:-1])) for line in rows}) == 1


def test_a_terminal_is_told_colors_and_a_pipe_is_not(scene: Scene, detslurm: Detslurm) -> None:
    """NO_COLOR is obeyed."""
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    assert "\x1b[" in on_terminal("e", "list")
    assert "\x1b[" not in on_terminal("e", "list", env={"NO_COLOR": "1"})
    assert "\x1b[" not in detslurm("e", "list").out


def test_a_log_commands_no_terminal(scene: Scene, detslurm: Detslurm) -> None:
    """Its colours are shown; titles and the like are not set. A pipe gets these as they were."""
    line = "0: \x1b[31mred\x1b[0m\t\x1b]0;mine\x07\x9b2J é"
    scene.run(scene.experiment(), log=[line], end="completed")
    assert "\x1b[31mred\x1b[0m\t?]0;mine??2J é" in on_terminal("t", "logs", 1)
    assert "red\t\x1b]0;mine\x07\x9b2J é" in detslurm("t", "logs", 1).out


def test_names_of_metrics_stay_in_their_line(scene: Scene, detslurm: Detslurm) -> None:
    """Whatever is in them; CSV and JSON have them as they are."""
    name = "a\nb\x1b]0;mine\x07 [/red]"
    trial = scene.run(scene.experiment(), end="completed")
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "metrics", "group": "training", "steps": 1, "metrics": {name: 0.5}})
    shown = "a?b?]0;mine? [/red]"
    assert detslurm("t", "metrics", 1).out.splitlines()[0].endswith(f"| {shown}")
    assert shown in without_colors(on_terminal("t", "metrics", 1)).splitlines()[0]
    assert detslurm("t", "metrics", 1, "--json").data[0]["metrics"] == {name: 0.5}


def test_csv_has_what_the_table_has(scene: Scene, detslurm: Detslurm) -> None:
    """Under the same headers."""
    scene.experiment(name="a, b")
    (row,) = csv.DictReader(io.StringIO(detslurm("e", "list", "--csv").out))
    assert row["ID"] == "1" and row["Name"] == "a, b"
    clash = detslurm("e", "list", "--csv", "--json")
    assert clash.status == 2 and "--json can't be combined with --csv" in clash.err


def test_csv_has_figures_as_json_has_them(scene: Scene, detslurm: Detslurm) -> None:
    """With all digits, and spans of time in seconds, where people read rounded ones and words."""

    def row(*command: object) -> dict[str, str]:
        (found,) = csv.DictReader(io.StringIO(detslurm(*command, "--csv").out))
        return found

    hparams = {"lr": 0.123456789, "time": 2.5, "layers": [1, 2]}
    trial = scene.experiment().trial(1)
    start = {"hparams": hparams, "seed": 1, "time": 1000.0, "host": "n1", "job": {"ref": "7"}}
    trial.open_run(start)
    trial.write_end(1, {"outcome": "completed", "reason": "", "exit_code": 0, "time": 6000.5})
    assert json.loads(row("e", "list-trials", 1)["H-Params"]) == hparams
    assert "lr=0.123457, time=2.5, layers=[1,2]" in detslurm("e", "list-trials", 1).out
    lasted = row("e", "list", "--columns", "duration", "--sort", "duration")
    assert lasted == {"Duration": "5000.5"}
    (figures,) = detslurm("e", "efficiency", 1, "--json").data
    found = row("e", "efficiency", 1)
    assert found["Elapsed"] == "5000.5"
    assert float(found["slot_hours"]) == figures["slot_hours"] == 5000.5 / 3600
    shown = detslurm("e", "efficiency", 1).out
    assert " 1:23:20 " in shown and " 1.39" in shown


def test_long_output_is_paged_on_a_terminal_only(scene: Scene, detslurm: Detslurm) -> None:
    """Here the pager marks what it gets."""
    for n in range(30):
        scene.experiment(name=f"e{n}")
    pager = {"PAGER": "sed s/^/paged:/"}
    assert "paged:" in on_terminal("e", "list", env=pager)
    assert "paged:" not in on_terminal("e", "list", lines=200, env=pager)
    assert "paged:" not in on_terminal("e", "list", "--json", env=pager)
    assert "e29" in without_colors(on_terminal("e", "list"))


def test_a_spreadsheet_finds_no_formula() -> None:
    """Of texts that begin as one; numbers, in text too, stay as they are."""
    shown = output.csv_text(["=a", "b"], [["=1+1", -1.5], ["@x", "-2e3"], [" +cmd", ["=1"]]])
    rows = list(csv.reader(io.StringIO(shown)))
    assert rows == [["'=a", "b"], ["'=1+1", "-1.5"], ["'@x", "-2e3"], ["' +cmd", '["=1"]']]
