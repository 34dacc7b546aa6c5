"""Send a notice by a program of the site or of the user: mail, or any command."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from detslurm._base import contract
from detslurm.config.schema.notices import CommandNotice, MailNotice
from detslurm.notices.event import Event, determined_body
from detslurm.notices.gate import SendGate
from detslurm.notices.log import SendResult

_PLACES = "/usr/sbin:/usr/lib:/sbin"  # where sendmail is, often not in PATH
_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


def mail(definition: MailNotice, event: Event, gate: SendGate, timeout: float) -> SendResult:
    """Send a mail by `sendmail`, else by `mail`."""
    places = f"{os.environ.get('PATH', os.defpath)}:{_PLACES}"
    if sendmail := shutil.which("sendmail", path=places):
        return _run([sendmail, "-i", "-t"], _letter(definition.to, event), gate, timeout)
    if program := shutil.which("mail", path=places):
        argv = [program, "-s", event.headline, "--", definition.to]
        return _run(argv, event.text.encode(), gate, timeout)
    return SendResult("later", f"there is no sendmail and no mail on {os.uname().nodename}")


def _letter(to: str, event: Event) -> bytes:
    from email.message import EmailMessage  # only here: few send mail

    letter = EmailMessage()
    letter["To"], letter["Subject"] = to, event.headline
    letter.set_content(event.text)
    return letter.as_bytes()


def command(definition: CommandNotice, event: Event, gate: SendGate, timeout: float) -> SendResult:
    """Run a user's command: the facts are JSON on its input, and variables."""
    argv = [os.path.expanduser(word) for word in definition.command]  # noqa: PTH111
    data = msgspec.json.encode(determined_body(event)) + b"\n"
    return _run(argv, data, gate, timeout, env={**os.environ, **_variables(event)})


def _variables(event: Event) -> dict[str, str]:
    plain = msgspec.to_builtins(event)
    names = ("trigger", "experiment", "name", "state", "trial", "reason", "policy", "title",
             "description", "level")  # fmt: skip
    found = {f"{contract.NOTICE_PREFIX}{name.upper()}": str(plain.get(name, "")) for name in names}
    found[f"{contract.NOTICE_PREFIX}TEXT"] = f"{event.headline}\n{event.text}"
    return {name: value.replace("\0", "") for name, value in found.items()}


def _run(
    argv: Sequence[str],
    data: bytes,
    gate: SendGate,
    timeout: float,
    env: dict[str, str] | None = None,
) -> SendResult:
    name = os.path.basename(argv[0])  # noqa: PTH119
    try:
        gate.enter()
        # Nothing reads its output, which a process that it leaves behind may keep open.
        done = subprocess.run(
            argv, input=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=timeout, env=env, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return SendResult("unknown", f"{name} did not end within {timeout:.0f} s")
    except OSError as error:  # it did not start
        return SendResult("later", f"{name}: {error.strerror}")
    if done.returncode == 0:
        return SendResult("sent", f"{name} ended with status 0")
    detail = f"{name} ended with status {done.returncode}"
    return SendResult("later" if done.returncode == _TRY_AGAIN else "refused", detail)
