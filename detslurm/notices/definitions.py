"""The user's definitions of notices: where they are told, by which triggers, and how.

They have URLs and tokens, so the file is its owner's alone. A site's file offers more of them; they
tell of the experiments that name them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.config.errors import ConfigErrors, ConfigProblem
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


def definitions(profile: SiteProfile | None = None) -> dict[str, AnyNotice]:
    """All definitions that this user has, by name; a user's own hides a site's.

    Args:
        profile: The site's profile; by default the profile that applies here.

    Raises:
        ConfigErrors: If a file is wrong, or others may read the user's.
    """
    found: dict[str, AnyNotice] = {}
    if site := (load_site() if profile is None else profile).notices:
        named = read_definitions(Path(site), private=False)
        found |= {name: msgspec.structs.replace(one, mode="named") for name, one in named.items()}
    path = user_file()
    if path is not None and path.exists():
        found |= read_definitions(path)
    return found


def read_definitions(path: Path, *, private: bool = True) -> dict[str, AnyNotice]:
    """The definitions in a file, by name. Raises `ConfigErrors`, also if the file is `private` and
    others may read it, or if others may change it."""
    from detslurm.config.checking import Checker  # which takes longer than all else here
    from detslurm.config.layers import as_mapping, order
    from detslurm.config.reading import parse, read_file

    _check_access(path, private=private)
    root = as_mapping(parse(read_file(path), str(path)))
    if problems := Checker(complete=True).check(root, dict[str, AnyNotice]).problems:
        raise ConfigErrors(order(problems))
    return msgspec.convert(root.plain(), dict[str, AnyNotice])


def _check_access(path: Path, *, private: bool) -> None:
    try:
        status = path.stat()
    except OSError:
        return  # reading it says why
    if private and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
        _refuse(path, "others may read this file, which has secrets", f"chmod 600 {path}")
    if not private and (status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022):
        _refuse(path, "others may change this file, whose commands would run", f"chmod go-w {path}")


def _refuse(path: Path, why: str, remedy: str) -> None:
    raise ConfigErrors([ConfigProblem(str(path), None, None, "", f"{why}: run `{remedy}`")])


def recipients(
    known: Mapping[str, AnyNotice], event: Event, names: tuple[str, ...]
) -> Iterator[str]:
    """The names of the definitions that tell of an event, where its experiment names `names`."""
    for name, one in known.items():
        if (one.mode == "all" or name in names) and _tells_of(one, event):
            yield name


def _tells_of(one: NoticeDefinition, event: Event) -> bool:
    chosen = not one.policies or event.policy is None or event.policy in one.policies
    return event.trigger in one.triggers and chosen


def secrets_of_definition(one: AnyNotice) -> list[str]:
    """The texts of a definition that no message may show, the longest first."""
    plain: dict[str, Any] = msgspec.to_builtins(one)
    url = str(plain.get("url", ""))
    path = url.partition("://")[2].partition("/")[2]
    found = [url, path, *path.split("/"), str(plain.get("token") or "")]
    return sorted((text for text in found if len(text) > 3), key=len, reverse=True)


def unknown_notice(name: str, known: Mapping[str, AnyNotice]) -> str:
    """The fault of a name without a definition."""
    there = f"; there is {', '.join(known)}" if known else ""
    return f"no notice {name!r} is defined in {user_file()}{there}"
