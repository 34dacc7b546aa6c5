"""The agent's part in `record` and `metrics_from_log`: the channel, its readers and its writers.

Only the chief's agent imports it, and only in runs whose configuration asks for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from detslurm._base import contract
from detslurm._base.child_processes import die_with_parent_alone
from detslurm._base.pythonpath import own_environment
from detslurm.config.run_config import RunConfig
from detslurm.exec.agent_loop import FileEvent
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.log_policies import LineMatcher, essential
from detslurm.exec.start_hooks import with_start_hook
from detslurm.exec.wandb_mode import wandb_variables

# The channel holds this much while the recorder is busy: about ten thousand values.
_CHANNEL_BYTES = 1 << 20
# Characters of a line that are searched for metrics.
_SEARCHED = 4096


class RunRecorder:
    """The recorder's process and the matchers that read the log for it.

    `env` is the environment of the code. Raises `OSError` where it can't be started.
    """

    def __init__(
        self,
        config: RunConfig,
        flag: Path,
        log: Callable[[str], None],
        env: Mapping[str, str],
    ) -> None:
        self._config, self._log = config, log
        self._path = flag.with_name(f"{flag.name}.record")  # removed with the flag
        os.mkfifo(self._path, 0o600)
        # While this end is open, a writer always has a reader: it never gets SIGPIPE.
        self._channel = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # above the site's limit
            fcntl.fcntl(self._channel, fcntl.F_SETPIPE_SZ, _CHANNEL_BYTES)
        self._process = self._start_recorder(env)
        self.is_running = True  # until its output ends
        self._matchers = self._start_matchers()
        self._output = LineSplitter()

    def _start_recorder(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(reader, True)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "detslurm.record.recorder"],
                env=own_environment(env),
                stdin=reader,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                preexec_fn=die_with_parent_alone,
            )
        finally:
            os.close(reader)

    def _start_matchers(self) -> list[LineMatcher]:
        patterns = self._config.metrics_from_log
        given = [[item.group, essential(item.pattern), n] for n, item in enumerate(patterns)]
        writer = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return [LineMatcher(words, writer) for words in given]
        finally:
            os.close(writer)

    def code_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment of the code, in which the hooks find the channel."""
        sources = () if self._config.record is None else self._config.record.from_
        found = {**env, contract.RECORD: str(self._path)}
        if not sources:
            return found
        found = with_start_hook({**found, contract.RECORD_FROM: ",".join(sources)}, "record")
        return found | wandb_variables(env) if "wandb" in sources else found

    @property
    def pids(self) -> list[int]:
        """Its processes, which are not the code's."""
        return [self._process.pid, *(matcher.pid for matcher in self._matchers)]

    # -- while the code runs ---------------------------------------------------------------------

    def search(self, lines: Iterable[str]) -> None:
        """Let the matchers search what the code has printed; of ranks, the first one's lines."""
        if not self._matchers:
            return
        heads = [_of_chief(line)[:_SEARCHED] for line in lines]
        data = "".join(f"{head}\n" for head in heads if head).encode("utf-8", "replace")
        for matcher in self._matchers:
            matcher.put(data)

    @property
    def is_behind(self) -> bool:
        """Whether a matcher needs time before it should get more lines."""
        return any(matcher.writer.full for matcher in self._matchers)

    def events(self) -> Iterator[FileEvent]:
        """The files to wait for at this moment."""
        self._drop_ended()
        if self.is_running:
            yield self._stdout, selectors.EVENT_READ, self._read
        for matcher in self._matchers:
            if matcher.writer.waiting:
                yield matcher.writer.fileno(), selectors.EVENT_WRITE, matcher.push

    @property
    def _stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _drop_ended(self) -> None:
        for matcher in [one for one in self._matchers if one.status is not None]:
            self._matchers.remove(matcher)
            if matcher.status:
                self._log(
                    f"metrics_from_log[{matcher.pattern[-1]}] is no longer looked for: its pattern"
                    " takes too long on what the code prints"
                )
            matcher.kill()

    def _read(self) -> None:
        chunk = os.read(self._stdout, 65536)
        for line in self._output.feed(chunk) if chunk else self._output.close():
            self._log(line.decode("utf-8", "replace").removeprefix("detslurm: "))
        if not chunk:
            self._on_end()

    def _on_end(self) -> None:
        """Take the channel away from its writers, because nothing reads it any more."""
        self.is_running = False
        self._path.unlink(missing_ok=True)
        status = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        for matcher in self._matchers:
            matcher.kill()
        self._matchers.clear()
        if status:
            self._log(f"record: the recorder ended with status {status} and records no more")

    # -- the end ---------------------------------------------------------------------------------

    def end(self, wait: Callable[[float], None], seconds: float) -> None:
        """Let the matchers and the recorder end; kill those that still work after `seconds`."""
        deadline = time.monotonic() + seconds
        for matcher in self._matchers:
            matcher.close()
        while self._matchers and time.monotonic() < deadline:
            wait(0.1)
        os.close(self._channel)  # the recorder reports the rest, and exits
        while self.is_running and time.monotonic() < deadline:
            wait(0.5)
        for matcher in self._matchers:
            matcher.kill()
        if self.is_running:
            self._log("record: the recorder did not end in time: the last values may be missing")
            self._process.kill()
            self._on_end()


def _of_chief(line: str) -> str:
    """A line of the first rank, without the launcher's mark; empty for other ranks' lines."""
    if not line.startswith("[rank="):
        return line
    rank, _, text = line.removeprefix("[rank=").partition("] ")
    return text if rank == "0" else ""
