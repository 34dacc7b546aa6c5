"""Forks of a warm interpreter beside new processes: what the code of a run can see is the same."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from detslurm.exec import agent_protocol
from detslurm.exec.orphans import RunMark
from detslurm.exec.run_processes import RunProcesses
from detslurm.exec.warm_start import NeedsNewProcess, WarmChild, WarmPython

Run = Callable[..., "Ended"]


class Ended(NamedTuple):
    """How a run has ended."""

    status: int
    printed: str


@pytest.fixture
def warm() -> Iterator[WarmPython]:
    found = WarmPython()
    yield found
    found.end()


def begin(warm: WarmPython, path: Path, *words: str, **env: str) -> WarmChild:
    env = {"PATH": f"{Path(sys.executable).parent}:/bin", "PYTHONUNBUFFERED": "1", **env}
    return warm.start(["python3", *(words or (path.name,))], env, path.parent)


def answered(warm: WarmPython, child: WarmChild, until: Callable[[], bool]) -> None:
    """Wait as the agent's loop does."""
    while not until():
        (fd, _, handle) = next(warm.events())
        assert select.select([fd], [], [], 60)[0], "the interpreter does not answer"
        handle()


def end(warm: WarmPython, child: WarmChild) -> Ended:
    answered(warm, child, lambda: child.returncode is not None or child.refusal is not None)
    with child.stdout:
        assert child.returncode is not None, child.refusal
        return Ended(child.returncode, child.stdout.read().decode())


@pytest.fixture
def run(warm: WarmPython, tmp_path: Path) -> Run:
    """Run a script as a fork, each time in a directory of its own."""
    count = iter(range(100))

    def start(script: str, *words: str, **env: str) -> Ended:
        path = tmp_path / f"run{next(count)}" / "train.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(script))
        return end(warm, begin(warm, path, *words, **env))

    return start


DIRTY = """\
    import atexit, csv, json, os, random, signal, sys, threading
    seen = [
        os.environ.get("LEFT"), os.environ["DET_TRIAL_ID"], hasattr(json, "mark"), sys.argv[1:],
        signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, sorted(os.listdir("/proc/self/fd"))[:3],
        os.getcwd() == os.path.dirname(__file__), __name__, "helper" in sys.modules,
        len(os.listdir("/proc/self/task")), os.umask(0o77), os.getsid(0) == os.getpid(),
        sys.path[0] == os.getcwd(), signal.pthread_sigmask(signal.SIG_BLOCK, []),
    ]
    print(seen, csv.__name__)
    os.environ["LEFT"] = json.mark = "1"
    signal.signal(signal.SIGUSR1, print)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    open("helper.py", "w").close(); import helper
    sys.argv.append("more"); os.chdir("/"); random.seed(1)
    kept = open("/dev/null"); threading.Thread(target=lambda: None).start()
    atexit.register(print, "bye")
    """


def test_each_run_begins_as_a_new_process(run: Run, tmp_path: Path) -> None:
    """Nothing of the runs before is left: variables, modules, files, signals, threads, cwd."""
    shown = [run(DIRTY, DET_TRIAL_ID="7") for _ in range(3)]
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(DIRTY))
    fresh = subprocess.run(
        [sys.executable, str(path)],
        env={"DET_TRIAL_ID": "7"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    assert {one.status for one in shown} == {0}
    assert {one.printed for one in shown} == {fresh.stdout}


IMPORTS = """\
    import sys, time
    print("xml.dom.minidom" in sys.modules, "helper" in sys.modules)
    import helper, xml.dom.minidom
    """


def test_libraries_stay_and_own_modules_do_not(run: Run, tmp_path: Path) -> None:
    """From the second run on; a module of the user's is read again, for it may have changed."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "helper.py").touch()
    shown = [run(IMPORTS, PYTHONPATH=str(folder)).printed for _ in range(3)]
    assert shown == ["False False\n", "True False\n", "True False\n"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('no good')", 1),
        ("raise ValueError('bad')", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -9),
        ("sys.exit(-1)", 255),
        ("pass", 0),
    ],
)
def test_it_ends_as_a_new_process_ends(run: Run, ending: str, status: int) -> None:
    """With the same status and the same words, its traceback included."""
    script = f"import os, sys\nclass D:\n  def __del__(self): print('over')\nd = D()\n{ending}\n"
    ended = run(script)
    fresh = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ended.status == fresh.returncode == status

    def words(text: str) -> set[str]:
        return {line for line in text.splitlines() if not line.startswith((" ", "over"))}

    assert words(ended.printed) == words(fresh.stdout)
    assert ended.printed.count("File ") == fresh.stdout.count("File ")


SLOW_TO_END = """\
    import atexit, sys, threading
    NAME = "mine"
    def show(): sys.stdout.write(sys.modules["__main__"].NAME + "\\n")
    atexit.register(show)
    threading.Thread(target=show).start()
    told = __name__, __spec__ and __spec__.name, sys.argv[1:], sys.path[0] == sys.argv[0][:-9]
    sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once: the thread has the same pipe
    """


@pytest.mark.parametrize("words", [("train.py", "7"), ("-m", "train", "7")])
def test_the_program_is_main_to_its_end(run: Run, words: tuple[str, ...]) -> None:
    """For its threads and its `atexit`, too; and a module has its name."""
    name = "train" if words[0] == "-m" else None
    for _ in range(2):
        status, printed = run(SLOW_TO_END, *words)
        assert (status, sorted(printed.splitlines())) == (
            0,
            [f"__main__ {name} ['7'] {bool(name)}", "mine", "mine"],
        )


UNCLOSED = """\
    import helper
    class Cycle: pass
    cycle = Cycle(); cycle.me = cycle; cycle.file = open("cycle.txt", "w"); cycle.file.write("1")
    class Last:
        def __del__(self): print(helper.__name__)
    last = Last()
    def function(): pass
    """


def test_files_that_the_program_leaves_open_are_written(run: Run, tmp_path: Path) -> None:
    """Those of its modules and of cycles, too; and its objects end while their names are there."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "helper.py").write_text("file = open('module.txt', 'w'); file.write('1')")
    assert [run(UNCLOSED, PYTHONPATH=str(folder)) for _ in range(2)] == [(0, "helper\n")] * 2
    assert [path.read_text() for path in tmp_path.glob("run?/*.txt")] == ["1"] * 4


AS_WRITTEN = """\
    import dataclasses, sys
    @dataclasses.dataclass
    class Options:
        seed: int = 0
    print(dataclasses.fields(Options)[0].type, "warm_interpreter" in str(sys.path))
    import mine
    """


def test_code_and_search_path_are_those_of_a_new_process(run: Run, tmp_path: Path) -> None:
    """Annotations are no strings, and a relative PYTHONPATH begins in each run's directory."""
    for number in range(2):
        own = tmp_path / f"run{number}" / "src" / "mine.py"
        own.parent.mkdir(parents=True)
        own.write_text(f"print({number})")
    shown = [run(AS_WRITTEN, PYTHONPATH="src").printed for _ in range(2)]
    assert shown == [f"<class 'int'> False\n{number}\n" for number in range(2)]


def test_imports_find_the_variables_and_the_directory_of_a_run(run: Run, tmp_path: Path) -> None:
    """As they did in the first run: its own code may choose by a variable what a library does."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "choosy.py").write_text(
        "import os\nfound = os.environ.get('BACKEND'), os.path.exists('train.py')\n"
        "os.environ['ADDED'] = '1'"
    )
    (library / "sitecustomize.py").write_text(LIE)
    script = """\
        import os
        print(os.environ.get("BACKEND"), os.environ.get("ADDED"))
        os.environ.setdefault("BACKEND", "jax")
        import choosy
        print(choosy.found)
        """
    shown = [run(script, PYTHONPATH=str(library)).printed for _ in range(3)]
    assert shown == ["None None\n('jax', True)\n"] + ["None 1\n('jax', True)\n"] * 2


def test_a_module_beside_the_interpreter_is_none_of_a_library(run: Run, tmp_path: Path) -> None:
    """Such as `outcome`, which others have, too."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "outcome.py").write_text("name = 'the installed one'")
    (library / "sitecustomize.py").write_text(LIE)
    script = "import outcome; print(outcome.name)"
    shown = [run(script, PYTHONPATH=str(library)).printed for _ in range(2)]
    assert shown == ["the installed one\n"] * 2


NEXT = """\
import os
from detslurm.exec.runner_link import next_run
print(next_run(), os.read(0, 100), next_run())
"""


def test_a_command_right_behind_the_next_run_is_for_that_run() -> None:
    """A pause comes this soon; those for the run before are passed over."""
    sent = f"{agent_protocol.PREEMPT}\n{agent_protocol.RUN}3 1\n{agent_protocol.PREEMPT}\n"
    ended = subprocess.run(
        [sys.executable, "-c", NEXT], input=sent.encode(), stdout=subprocess.PIPE, check=True
    )
    last = ended.stdout.decode().splitlines()[-1]
    assert last == f"(3, 1) {sent.encode().splitlines(keepends=True)[-1]!r} None"


def test_random_numbers_differ_from_run_to_run(run: Run) -> None:
    script = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [n for _ in range(3) for n in run(script).printed.split()]
    assert len({*numbers}) == 6


THREAD = """\
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
# The interpreter takes a module for a library by where it lies.
LIE = """\
import os, sysconfig
here = os.path.dirname(__file__)
sysconfig.get_paths = lambda: dict.fromkeys(("stdlib", "platstdlib", "purelib", "platlib"), here)
"""


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (THREAD, "threads"),
        ("kept = open('/dev/null')", "files"),
        ("import signal\nsignal.signal(signal.SIGUSR1, print)", "signal handlers"),
    ],
)
def test_imports_that_leave_something_are_refused(
    run: Run, tmp_path: Path, module: str, why: str
) -> None:
    """A fork would have it, or lack it: the next run is told to begin anew."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "unclean.py").write_text(module)
    (library / "sitecustomize.py").write_text(LIE)
    env = {"PYTHONPATH": str(library)}
    assert run("import unclean", **env).status == 0
    with pytest.raises(AssertionError, match=f"imports have .* {why}"):
        run("import unclean", **env)
    with pytest.raises(NeedsNewProcess, match=why):
        run("import unclean", **env)


def test_another_environment_needs_a_new_process(run: Run) -> None:
    """What libraries read at their import was the first run's; a run's own names may differ."""
    run("pass", OMP_NUM_THREADS="1", DET_HPARAMS="1", MASTER_PORT="1")
    own = {"DET_HPARAMS": "2", "MASTER_PORT": "2", "WANDB_DIR": "/outputs/of/this/trial"}
    assert run("pass", OMP_NUM_THREADS="1", **own).status == 0
    with pytest.raises(NeedsNewProcess, match="OMP_NUM_THREADS"):
        run("pass", OMP_NUM_THREADS="2")


def test_a_killed_interpreter_ends_its_run_and_the_next_begins_anew(
    warm: WarmPython, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text("import time; print('on', flush=True); time.sleep(600)")
    child = begin(warm, path)
    answered(warm, child, lambda: not child.is_pending)  # else the run is refused
    assert child.stdout.readline() == b"on\n"
    os.kill(warm.pids[0], signal.SIGKILL)
    answered(warm, child, lambda: child.returncode is not None)
    with child.stdout:
        assert (child.returncode, child.stdout.read()) == (-9, b"")  # it has no writer left
    path.write_text("print('again')")
    assert end(warm, begin(warm, path)) == (0, "again\n")


def test_slurms_signals_reach_the_code_alone(warm: WarmPython, tmp_path: Path) -> None:
    """The interpreter outlives what Slurm sends to every process of a step."""
    path = tmp_path / "train.py"
    path.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('on', flush=True)\nsignal.pause()\n"
    )
    child = begin(warm, path)
    assert child.stdout.readline() == b"on\n"
    for pid in (*warm.pids, *_children(warm.pids[0])):
        os.kill(pid, signal.SIGTERM)
    assert end(warm, child).status == 3
    path.write_text("pass")
    assert end(warm, begin(warm, path)).status == 0


def test_usage_is_that_of_the_run_alone(warm: WarmPython, run: Run) -> None:
    """The interpreter has waited for the earlier runs, and this process has not."""
    run("import time\nwhile time.process_time() < 0.5: pass")
    processes = RunProcesses(RunMark("/none", 1, 1, ""), shared=warm.pids)
    assert processes.used().seconds == pytest.approx(0, abs=0.1)
    run("import time\nwhile time.process_time() < 0.3: pass")
    assert processes.ended_seconds() == pytest.approx(0.35, abs=0.15)


REAPED = """\
import os, subprocess
from detslurm._base.child_processes import become_subreaper, reap
become_subreaper()
subprocess.run(["sh", "-c", "true & exit"])
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
reap()
try:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
except ChildProcessError:
    print("none")
"""


def test_orphans_that_have_ended_are_let_go() -> None:
    """A thousand runs would leave as many zombies, which count as the user's processes."""
    ended = subprocess.run(
        [sys.executable, "-c", REAPED], stdout=subprocess.PIPE, text=True, check=True
    )
    assert ended.stdout == "none\n"


def _children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_whether_a_process_has_other_children_is_known() -> None:
    script = """if True:
        import subprocess, sys
        from detslurm._base import child_processes as processes

        known = subprocess.Popen(["sleep", "60"])
        print(processes.has_child_beside([known.pid]), processes.has_child_beside([]))
        processes.become_subreaper()
        other = subprocess.run(["sh", "-c", "sleep 60 >&- & echo $!"], stdout=subprocess.PIPE)
        print(processes.has_child_beside([known.pid]))
        print(processes.has_child_beside([known.pid, int(other.stdout)]))
        processes.read_proc = lambda name: None  # an old kernel
        print(processes.has_child_beside([known.pid, int(other.stdout)]))
        known.kill()
        processes.signal_each([int(other.stdout)], 9)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True", "False", "True"], done.stderr
