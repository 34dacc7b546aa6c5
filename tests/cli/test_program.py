"""The program as a process: help, start-up cost, signals, pipes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from detslurm import cli
from detslurm.cli.app import app
from detslurm.cli.lazy import LazyGroup
from scripts import cli_reference
from tests.sdk.scenes import Scene

REPOSITORY = Path(__file__).resolve().parents[2]
DETSLURM = [sys.executable, "-m", "detslurm.cli"]


def every_command() -> Iterator[click.Command]:
    context = cli_reference.top()
    for command, _ in cli_reference.commands(app, context):
        yield command


def test_every_command_and_option_has_help() -> None:
    """Nobody has to guess."""
    for command in every_command():
        assert command.help, command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{command.name} {parameter.opts}"


# What people start with, and what takes more than an id.
EXAMPLES = """
detslurm submit
detslurm preview-search
detslurm simulate
detslurm experiment list
detslurm experiment describe
detslurm experiment logs
detslurm experiment wait
detslurm experiment pause
detslurm experiment activate
detslurm trial describe
detslurm trial logs
detslurm trial download
"""


def parse(words: list[str]) -> None:
    """A command line as far as its command, which is not run."""
    command: click.Command | None = app
    context = cli_reference.top()
    while isinstance(command, click.Group):
        if command.invoke_without_command and not {*words[:1]} & {*command.list_commands(context)}:
            command.make_context(context.info_name, words, parent=context.parent)
            return
        name, command, words = command.resolve_command(context, words)
        assert command is not None and name is not None
        if isinstance(command, click.Group):
            context = click.Context(command, context, info_name=name)
        else:
            command.make_context(name, words, parent=context)


def test_help_gives_examples_that_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example is a command line as the program takes it; the main commands have some."""
    # Examples name experiments of nobody's store.
    finding = "detslurm.sdk.experiments.finding"
    monkeypatch.setattr(f"{finding}.named", lambda client, pattern: [1])
    monkeypatch.setattr(f"{finding}.newest_experiment", lambda client, place, task: 1)
    monkeypatch.setattr(f"{finding}.newest_trial", lambda client, place: 1)
    found = set()
    for command, context in cli_reference.commands(app, cli_reference.top()):
        text = (command.help or "").partition("Examples:\n")[2]
        for line in filter(None, map(str.strip, text.splitlines())):
            _, *words = shlex.split(line.partition(" > ")[0].partition(" && ")[0])
            parse(words)
            found.add(context.command_path)
    assert set(EXAMPLES.split("\n")) - {""} <= found


VERBS = """
    Begin Change Check Choose Continue Copy Count Delete Draw Give Include Keep Limit Listen Merge
    Name Override Overwrite Print Put Queue Rank Read Remove Reverse Run Search Set Show Simulate
    Skip Sort Stay Stop Take Train Use Write
"""


def test_options_are_described_by_what_they_do() -> None:
    """A verb in front: "Print only the last N lines"."""
    for command in every_command():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.help:
                assert parameter.help.split()[0].rstrip(",") in VERBS.split(), (
                    f"{command.name} {parameter}"
                )


def test_the_listing_of_a_group_says_what_its_commands_are() -> None:
    """The static tables name commands that exist, under their own names or aliases of them."""
    context = cli_reference.top()
    for group in (app, *every_command()):
        if isinstance(group, click.Group):
            for name in group.list_commands(context):
                assert group.get_command(context, name) is not None


def test_a_group_is_described_alike_in_its_listing_and_its_help() -> None:
    """The group's own help begins as its line in the listing above it, and may say more."""
    for command, context in cli_reference.commands(app, cli_reference.top()):
        if not isinstance(command, LazyGroup):
            continue
        for name, entry in command.entries.items():
            group = command.get_command(context, name)
            if isinstance(group, click.Group):
                assert str(group.help).startswith(entry.help.removesuffix(".")), name


def test_the_reference_page_matches_the_program() -> None:
    """docs/cli.md has every command; `python scripts/cli_reference.py` writes it."""
    assert cli_reference.main(["--check"]) == 0


def modules_of(*args: str) -> set[str]:
    """What Python has imported after a command."""
    code = (
        "import sys; from detslurm.cli import main; status = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_help_imports_click_alone() -> None:
    """No command, no store, no YAML: a listing is a table, and names of variables are names."""
    found = {m for m in modules_of("--help") if m.startswith("detslurm.")}
    light = {
        "_base",
        "_base.contract",
        "_base.pythonpath",
        "errors",
        "cli",
        "cli.app",
        "cli.lazy",
        "cli.session",
    }
    assert found <= {f"detslurm.{name}" for name in light}


def test_looking_imports_nothing_heavy(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Login nodes give one core and little patience; a site profile that says nothing of a purge
    is not parsed for it."""
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\n")
    monkeypatch.setenv("DETSLURM_SITE", str(site))
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    for args in (["e", "list"], ["e", "describe", "1"], ["t", "logs", "1"]):
        heavy = {"torch", "numpy", "h5py", "mpi4py", "submitit", "rich", "yaml"}
        assert not heavy & modules_of(*args)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_help_asks_the_file_system_little(tmp_path: Path) -> None:
    """At most 900 calls with a file name: that is what a shared file system feels."""
    trace = tmp_path / "trace"
    argv = ["strace", "-f", "-e", "trace=%file", "-o", str(trace), *DETSLURM, "--help"]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    calls = [line for line in trace.read_text().splitlines() if "(" in line]
    assert 0 < len(calls) <= 900


def test_a_reader_that_leaves_is_no_error(scene: Scene) -> None:
    """`| head` ends a long output in silence."""
    lines = [f"0: {'x' * 200}" for _ in range(5000)]
    scene.run(scene.experiment(), log=lines, end="completed")
    argv = [*DETSLURM, "t", "logs", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_closed_output_is_one_line(scene: Scene) -> None:
    """The command is not begun: nothing could be said of what it did."""
    experiment = scene.experiment()
    for words in ("e list", "t list 1 --json", "e kill 1", "--help"):
        closed = ["sh", "-c", f"exec {shlex.join(DETSLURM)} {words} >&-"]
        done = subprocess.run(closed, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == (
            "detslurm: error: stdout is closed: send it to a file, or to /dev/null\n"
        )
    assert "intent" not in [fact["type"] for fact in experiment.facts()]


def test_ctrl_c_ends_following_without_a_mess(scene: Scene) -> None:
    """Exit status 130 and no traceback."""
    scene.run(scene.experiment(job=None), log=["0: begin"])
    # A suite that runs in the background of a script ignores the signal, and so do its children.
    argv = ["env", "--default-signal=INT", *DETSLURM, "t", "logs", "-f", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b"begin" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert b"Traceback" not in process.stderr.read()


# The program in children, each with a Ctrl-C after another number of the audit events (imports,
# files opened, ...) that follow its first line; the first child has none and counts them.
EARLY = """\
import os, signal, sys

def count(event, args):
    global seen
    if seen is not None:
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGINT)
    elif event == "exec" and args[0].co_filename.endswith("detslurm_command.py"):
        seen = 0

def program():
    sys.addaudithook(count)
    from detslurm_command import main
    status = main()
    os.pwrite(counts, b"%d" % seen, 0)
    sys.exit(status)

counts = os.memfd_create("counts")
seen, number = None, 0
offsets = None
while number is not None:
    child = os.fork()
    if not child:
        os.dup2(1, 2)
        program()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("after", number, "status", status, flush=True)
    offsets = offsets or iter(range(1, int(os.pread(counts, 9, 0)), 67))
    number = next(offsets, None)
"""


def test_ctrl_c_from_our_first_line_on(scene: Scene) -> None:
    """Exit status 130, or the end by the signal itself, and no traceback, whenever it comes."""
    assert scene.store.path.exists()
    argv = ["env", "--default-signal=INT", sys.executable, "-c", EARLY, "e", "describe", "7"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert "Traceback" not in done.stdout
    whole, *ends = [x.split()[-1] for x in done.stdout.splitlines() if x.startswith("after ")]
    assert whole == "1"
    assert len(ends) > 10, done
    assert set(ends) <= {"130", str(-signal.SIGINT)}, done.stdout


# Ctrl-C where Python or a library written in C drops what is raised.
DROPPED = """\
import contextlib, os, signal, sys, time
import detslurm.cli, detslurm.cli.app

class Names:
    def find_spec(self, name, path, target=None):
        interrupt()

class Value:
    def __hash__(self):
        interrupt()
        return 0

    def __del__(self):
        if sys.argv[1] == "del":  # else it would be one more, on the way out
            interrupt()

def interrupt():
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)

def run(argv=None):
    value = Value()
    if sys.argv[1] == "import":
        sys.meta_path.insert(0, Names())
        with contextlib.suppress(ImportError):
            import a_module_of_that_name
    elif sys.argv[1] == "hash":
        hash(value)
    else:
        del value
    print("late", flush=True)
    time.sleep(600)

detslurm.cli.app.run = run
sys.exit(detslurm.cli.main())
"""


@pytest.mark.parametrize("where", ["import", "hash", "del"])
def test_ctrl_c_where_errors_are_dropped(where: str) -> None:
    """It comes right after."""
    argv = ["env", "--default-signal=INT", sys.executable, "-c", DROPPED, where]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 130, done
    assert done.stderr == ""


# Ctrl-C in the middle of Python's own end.
LATE = """\
import atexit, os, signal, sys
from detslurm.cli import main
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.exit(main())
"""


def test_ctrl_c_when_all_is_said(scene: Scene) -> None:
    """What was done counts: the command's own exit status, and no traceback."""
    assert scene.store.path.exists()
    argv = ["env", "--default-signal=INT", sys.executable, "-c", LATE, "e", "describe", "7"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no experiment 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_version(tmp_path: Path) -> None:
    """As packaged."""
    from detslurm import __version__

    done = subprocess.run([*DETSLURM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"detslurm, version {__version__}\n"


def test_output_follows_the_locale(scene: Scene) -> None:
    """A terminal without UTF-8 gets something readable rather than an error."""
    scene.experiment(name="größe")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "DETSLURM_ROOT": str(scene.root)}
    argv = [*DETSLURM, "e", "list", "--json"]
    done = subprocess.run(argv, capture_output=True, env=environment, check=False)
    assert done.returncode == 0
    assert b"gr\\u00f6\\u00dfe" in done.stdout


def test_any_text_is_printed_in_any_locale(scene: Scene) -> None:
    """What code printed, and what users chose for names; what the encoding lacks is a mark."""
    scene.run(scene.experiment(name="größe 日本"), log=["100%|████| 5/5"], end="completed")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1", "DETSLURM_ROOT": str(scene.root)}
    for words, shown in (("e", "logs", "1"), "100%|????| 5/5"), (("e", "list"), "größe ??"):
        done = subprocess.run([*DETSLURM, *words], capture_output=True, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert shown in done.stdout.decode("latin-1")


def test_a_question_that_nobody_answers(scene: Scene) -> None:
    """In a batch job: it says what to do, and has done nothing."""
    scene.run(scene.experiment(), end="completed")
    env = {**os.environ, "DETSLURM_ROOT": str(scene.root)}
    argv = [*DETSLURM, "e", "delete", "1"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 1 and "add --yes" in done.stderr
    assert scene.client.experiment(1).state == "COMPLETED"


def test_only_a_lost_connection_is_told_once() -> None:
    """It sends several signals, and the second must not end what the first has begun; a command
    that goes on after Ctrl-C ends at `kill`."""
    lost, interrupted = cli._Interrupt(), cli._Interrupt()
    with pytest.raises(KeyboardInterrupt):
        lost(signal.SIGHUP, None)
    lost(signal.SIGTERM, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt):
            interrupted(number, None)
