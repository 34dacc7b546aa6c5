"""The user's definitions of notices: their triggers, and how they are sent.

They have URLs and tokens, so others may not read the file. A site's file offers more definitions,
which are used by the experiments that name them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.config.errors import ConfigErrors, ConfigProblem, in_order
from detslurm.config.schema.notices import AnyNotice, NoticeDefinition
from detslurm.config.site import config_folder, load_site
from detslurm.notices.event import Event

if TYPE_CHECKING:
    from detslurm.config.schema.site import SiteProfile

FILE = "notices.yaml"


def user_file() -> Path | None:
    """The user's file, whether it exists or not; None without a home directory."""
    folder = config_folder()
    return None if folder is None else folder / FILE


def has_user_file() -> bool:
    """Whether this node sees the user's file."""
    path = user_file()
    return path is not None and os.path.exists(path)  # noqa: PTH110 (false without access)


def definitions(profile: SiteProfile | None = None) -> dict[str, AnyNotice]:
    """Return all definitions that this user has, by name; a user's own hides a site's.

    Raises `ConfigErrors` if a file is wrong, if others may change it, or may read the user's.
    """
    found: dict[str, AnyNotice] = {}
    if site := (load_site() if profile is None else profile).notices:
        named = read_definitions(Path(site), private=False)
        found |= {name: msgspec.structs.replace(one, mode="named") for name, one in named.items()}
    if has_user_file() and (path := user_file()):
        found |= read_definitions(path)
    return found


def read_definitions(path: Path, *, private: bool = True) -> dict[str, AnyNotice]:
    """Return the definitions in a file, by name. Raises `ConfigErrors`, also if others may change
    it, or may read it although it is `private`."""
    from detslurm.config.checking import Checker  # which takes longer than all else here
    from detslurm.config.reading import parse_mapping, read_file

    _check_access(path, private=private)
    root = parse_mapping(read_file(path), str(path))
    if problems := Checker(complete=True).check(root, dict[str, AnyNotice]).problems:
        raise ConfigErrors(in_order(problems))
    return msgspec.convert(root.plain(), dict[str, AnyNotice])


def _check_access(path: Path, *, private: bool) -> None:
    try:
        status = path.stat()
    except OSError:
        return  # reading it fails with the reason
    why = ""
    if private and status.st_uid != os.geteuid():
        why = "this file belongs to another user: make your own"
    elif private and status.st_mode & 0o077:
        why = f"others may read this file, which has secrets: run `chmod 600 {path}`"
    elif status.st_mode & 0o022:  # a site's, which its profile names
        why = f"others may change this file, whose commands would run: run `chmod go-w {path}`"
    if why:
        raise ConfigErrors([ConfigProblem(str(path), None, None, "", why)])


def recipients(
    known: Mapping[str, AnyNotice], event: Event, names: tuple[str, ...]
) -> Iterator[str]:
    """Yield the names of the definitions that want an event, whose experiment names `names`."""
    for name, definition in known.items():
        if (definition.mode == "all" or name in names) and _wants(definition, event):
            yield name


def _wants(definition: NoticeDefinition, event: Event) -> bool:
    policies = definition.policies
    chosen = not policies or event.policy is None or event.policy in policies
    return event.trigger in definition.triggers and chosen


def secrets_of_definition(definition: AnyNotice) -> list[str]:
    """Return the texts of a definition that no message may show, the longest first."""
    plain: dict[str, Any] = msgspec.to_builtins(definition)
    url = str(plain.get("url", ""))
    path = url.partition("://")[2].partition("/")[2]
    found = [url, path, *re.split("[/?&=]", path), str(plain.get("token") or "")]
    return sorted((text for text in found if len(text) > 3), key=len, reverse=True)


def unknown_notice(name: str, known: Mapping[str, AnyNotice]) -> str:
    """Return the message about a name without a definition."""
    there = f"; there is {', '.join(known)}" if known else ""
    return f"no notice {name!r} is defined in {user_file()}{there}"
