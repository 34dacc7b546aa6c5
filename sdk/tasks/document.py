"""The configuration of a task: Determined's keys of tasks, and this project's `slurm` section. Pure
but for the file that it reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from detslurm._base.idle_types import IDLE_TYPES
from detslurm.config.defaults import pet_name
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position
from detslurm.config.merging import merge
from detslurm.config.overrides import apply_override
from detslurm.config.reading import parse_mapping, read_file
from detslurm.config.yaml_node import YamlNode, locate
from detslurm.sdk.submission.command_line import name_of
from detslurm.sdk.submission.entrypoint import IN_DIRECTORY

KINDS: Final = ("command", "shell", "notebook", "tensorboard")
IDLE_TIMEOUT: Final = 30 * 60.0
"""Seconds after which an idle shell, notebook or TensorBoard ends, where the document has none."""

_OPTIONS: Final = Position("<options>")
_OURS: Final = Position("<task>")
_OF_TASKS: Final = ("entrypoint", "idle_timeout", "notebook_idle_type", "work_dir")
_OF_SEARCHES: Final = ("searcher", "hyperparameters")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


class TaskDocument(NamedTuple):
    """The configuration of a task: `config` has the keys that experiments have, too. The task ends
    after `idle_timeout` idle seconds (None: never). Its program runs in the `work_dir` (None: the
    frozen context)."""

    kind: str
    config: YamlNode
    entrypoint: str | tuple[str, ...] | None
    idle_timeout: float | None
    work_dir: str | None
    notebook_idle_type: str


def read_document(
    kind: str,
    config_file: str | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> TaskDocument:
    """Read the configuration of a task of a kind in `KINDS`.

    A notebook and a TensorBoard run in the current directory unless the document has a `work_dir`;
    a command runs in its frozen context, and the sessions of a shell in the home directory. The
    values of the command's own `options` come first, then each override (`a.b=YAML`), then the file
    (`-`: standard input). Raises `ConfigErrors` if a key of tasks is wrong; the submission checks
    the others.

    Example:
        document = read_document("shell", overrides=["resources.slots=1", "idle_timeout=2h"])
        assert document.idle_timeout == 7200
    """
    root = YamlNode({}, Position("<config>"))
    if config_file is not None:
        root = parse_mapping(read_file(Path(config_file)), config_file)
    for override in overrides:
        root = apply_override(root, override)
    root = merge(locate(options or {}, _OPTIONS), _with_slots(root))
    _refuse_search(root)
    kept = {key: child for key, child in root.value.items() if key not in _OF_TASKS}
    return TaskDocument(
        kind=kind,
        config=root._replace(value=kept),
        entrypoint=_entrypoint(root),
        idle_timeout=_idle_timeout(kind, root),
        work_dir=_work_dir(kind, root),
        notebook_idle_type=_notebook_idle_type(root),
    )


def experiment_config(document: TaskDocument, entrypoint: str | Sequence[str]) -> YamlNode:
    """The configuration of the experiment that the task is, whose program (words, or text for the
    shell) runs in the `work_dir`."""
    ours: dict[str, Any] = {
        "name": _name(document, entrypoint),
        "entrypoint": _in_directory(document.work_dir, entrypoint),
        "searcher": {"name": "single", "metric": "loss"},
    }
    defaults: dict[str, Any] = {"max_restarts": 0}
    if document.kind != "command":  # its idle_timeout ends it
        defaults["slurm"] = {"idle_guard": {"action": "warn"}}
    if document.kind == "tensorboard":
        defaults["slurm"]["slot_type"] = "cpu"
    given = merge(document.config, locate(defaults, _OURS))
    return merge(locate(ours, _OURS), given)


def _name(document: TaskDocument, entrypoint: str | Sequence[str]) -> str:
    """The text that lists show."""
    given = document.config.get("description") or document.config.get("name")
    if given is not None:
        return str(given.value)
    if document.kind == "command":
        return name_of(entrypoint)
    return f"{document.kind.capitalize()} ({pet_name()})"


def duration(text: str | float) -> float | None:
    """Seconds of `90`, `30m` or `1h30m`; None if it is no duration."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text) if text >= 0 else None
    if not isinstance(text, str) or not _DURATION.fullmatch(text.strip()):
        return float(text) if isinstance(text, str) and text.strip().isdigit() else None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def _with_slots(root: YamlNode) -> YamlNode:
    """The same with `resources.slots` under the name that experiments have for it."""
    resources = root.get("resources")
    if resources is None or not resources.is_mapping or "slots" not in resources.value:
        return root
    below = dict(resources.value)
    below.setdefault("slots_per_trial", below.pop("slots"))
    return root.put("resources", resources._replace(value=below))


def _refuse_search(root: YamlNode) -> None:
    for key in _OF_SEARCHES:
        if (node := root.get(key)) is not None:
            _refuse(node, key, "a task is one program, without a search", "`detslurm submit`")


def _entrypoint(root: YamlNode) -> str | tuple[str, ...] | None:
    node = root.get("entrypoint")
    value = None if node is None else node.plain()
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return tuple(value)
    if node is not None and not isinstance(value, str):
        _refuse(node, "entrypoint", "text or a list of words is expected")
    return value


def _idle_timeout(kind: str, root: YamlNode) -> float | None:
    node = root.get("idle_timeout")
    if node is None:
        return None if kind == "command" else IDLE_TIMEOUT
    seconds = duration(node.value)
    if seconds is None:
        _refuse(node, "idle_timeout", "a duration is expected", "such as 30m or 1h30m; 0 is never")
    return seconds or None


def _notebook_idle_type(root: YamlNode) -> str:
    node = root.get("notebook_idle_type")
    value = IDLE_TYPES[0] if node is None else node.value
    if node is not None and value not in IDLE_TYPES:
        _refuse(node, "notebook_idle_type", f"one of {', '.join(IDLE_TYPES)} is expected")
    return str(value)


def _work_dir(kind: str, root: YamlNode) -> str | None:
    node = root.get("work_dir")
    if node is None:
        return None if kind in ("command", "shell") else str(Path.cwd())
    if not isinstance(node.value, str) or not node.value.startswith(("/", "~")):
        _refuse(node, "work_dir", "an absolute path is expected")
    return str(Path(node.value).expanduser())


def _in_directory(folder: str | None, entrypoint: str | Sequence[str]) -> str | list[str]:
    if folder is None:
        return entrypoint if isinstance(entrypoint, str) else [*entrypoint]
    if isinstance(entrypoint, str):
        return f"cd -- {shlex.quote(folder)} || exit\n{entrypoint}"
    return [*IN_DIRECTORY, folder, *entrypoint]


def _refuse(node: YamlNode, path: str, message: str, hint: str = "") -> NoReturn:
    raise ConfigErrors([ConfigProblem.at(node.where, path, message, hint)])
