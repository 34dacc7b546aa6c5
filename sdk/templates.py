"""The part of `Client` that knows templates: parts of configurations that are kept by name."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detslurm.sdk.errors import LifecycleError
from detslurm.store import NotFound, Store, fs
from detslurm.store.root_access import owner

if TYPE_CHECKING:
    from detslurm.config.templates import TemplateFile


class Template(NamedTuple):
    """A part of a configuration that is kept by name: its `name` for `--template`, the `path` and
    `owner` of its file, and whether it is `shared` with the group that shares the store."""

    name: str
    path: Path
    owner: str
    shared: bool

    @property
    def text(self) -> str:
        """Its YAML, as it was given."""
        from detslurm.config.reading import read_file

        return read_file(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """Its settings. Raises `ConfigErrors` if it is no mapping."""
        from detslurm.config.reading import parse_mapping

        return dict(parse_mapping(self.text, str(self.path)).plain())


class Templates:
    """Templates of a store; in a shared one each user has their own, and the group has some.

    Methods raise `LifecycleError` for a template of another user, for a name that is none, and for
    a group's template in a store that isn't shared; `StoreError` if the store can't be used.
    """

    store: Store

    @abstractmethod
    def missing(self) -> str | None:
        """Return why there is no store; None if it exists."""

    def list_templates(self) -> list[Template]:
        """Return the templates by name, the user's own before those of the group."""
        from detslurm.config.templates import template_files

        found = [_template(one) for one in template_files(self.store.path)]
        return sorted(found, key=lambda one: (one.name, one.shared))

    def get_template(self, name: str, *, shared: bool | None = None) -> Template:
        """Return the template `name`, or raise `NotFound`. `shared` is True for the group's, False
        for the user's own; by default the user's own comes before the group's."""
        found = [one for one in self.list_templates() if one.name == name]
        for one in found:
            if shared in (None, one.shared):
                return one
        if found:
            how = "your own: leave out --shared" if shared else "the group's: use --shared"
            raise NotFound(f"template {name!r} is {how} (in Python: shared={not shared})")
        raise NotFound(f"there is no template {name!r}; `detslurm template list` shows them")

    def create_template(
        self, name: str, config: Mapping[str, Any] | str | Path, *, shared: bool = False
    ) -> Template:
        """Keep a part of a configuration by a new name, and return the template. It is a
        `LifecycleError` if there is such a template, and `ConfigErrors` if a part is wrong.

        Args:
            name: The name: letters, digits and `-_.+`.
            config: The part as a mapping, or the path of a YAML file (`-`: standard input).
            shared: Whether it is the group's, in a store that a group shares; off by default.
        """
        path, data = self._prepare(name, config, shared)
        if not fs.put_if_absent(path, data, secret=not shared):
            raise LifecycleError(
                f"there is a template {name!r} already; `detslurm template set` replaces it"
            )
        return self._at(path)

    def set_template(
        self, name: str, config: Mapping[str, Any] | str | Path, *, shared: bool = False
    ) -> Template:
        """Create or replace a template, and return it; arguments are as in `create_template`."""
        path, data = self._prepare(name, config, shared)
        _check_owner(path)
        fs.replace_file(path, data, secret=not shared)
        return self._at(path)

    def remove_template(self, name: str, *, shared: bool = False) -> None:
        """Remove the template `name`, the group's if `shared` (off by default)."""
        path = self.get_template(name, shared=shared).path
        _check_owner(path)
        path.unlink()

    def _prepare(
        self, name: str, config: Mapping[str, Any] | str | Path, shared: bool
    ) -> tuple[Path, bytes]:
        from detslurm.config.loading import check_template
        from detslurm.config.templates import SUFFIX, template_folders

        text, source = _text(config)
        check_template(text, source)
        store = Store.open(self.store.path)
        own, groups = template_folders(store.path)
        if shared and not fs.exists(groups):
            raise LifecycleError(f"the store {store.path} is not shared with a group")
        folder = groups if shared else own
        if not shared:
            fs.ensure_directory(folder, secret=True)
        return folder / (_name(name) + SUFFIX), text.encode()

    def _at(self, path: Path) -> Template:
        return next(one for one in self.list_templates() if one.path == path)


def _template(one: TemplateFile) -> Template:
    uid = fs.owner_of(one.path)
    return Template(one.name, one.path, "" if uid is None else owner(uid), one.shared)


def _text(config: Mapping[str, Any] | str | Path) -> tuple[str, str]:
    from detslurm.config.reading import read_file

    if isinstance(config, Mapping):
        from detslurm.config.errors import Position
        from detslurm.config.writing import as_yaml
        from detslurm.config.yaml_node import locate

        return as_yaml(locate(config, Position("<config>")).plain()), "<config>"
    name = "<stdin>" if str(config) == "-" else str(config)
    return read_file(Path(config), name), name


def _name(name: str) -> str:
    fine = name.replace("-", "").replace("_", "").replace(".", "").replace("+", "").isalnum()
    if not (fine and name.isascii()) or name.startswith(".") or name.endswith((".yaml", ".yml")):
        raise LifecycleError(
            f"a template's name has letters, digits and -_.+ only, and is no file's: {name!r}"
        )
    return name


def _check_owner(path: Path) -> None:
    uid = fs.owner_of(path)
    if uid not in (None, os.geteuid()) and os.geteuid() != 0:
        assert uid is not None
        raise LifecycleError(
            f"template {path.stem!r} belongs to {owner(uid)}, who alone may change it"
        )
