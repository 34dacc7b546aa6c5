"""Groups of commands that are imported only when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """A command that is not imported yet: where it is, and its line in the group's help."""

    target: str  # module:attribute, below detslurm.cli
    help: str
    aliases: tuple[str, ...] = ()


class LazyGroup(click.Group):
    """A group that knows its commands from a table and imports the command that is called."""

    entries: Mapping[str, Entry] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, aliases left out, in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name or alias, imported now."""
        name = self.full_name(cmd_name)
        if name is None:
            return None
        module, _, attribute = self.entries[name].target.partition(":")
        command: click.Command = getattr(import_module(f"detslurm.cli.{module}"), attribute)
        return command

    def full_name(self, given: str) -> str | None:
        """The name in the table for a name or an alias."""
        if given in self.entries:
            return given
        return next((n for n, entry in self.entries.items() if given in entry.aliases), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a suggestion if there is no such command."""
        if args and args[0] == "help" and "help" not in self.entries:
            click.echo(self._help_for(ctx, args[1:]))
            ctx.exit(0)
        if args and not args[0].startswith("-") and self.full_name(args[0]) is None:
            if ctx.resilient_parsing:  # a shell completes an unfinished line
                return None, None, args
            ctx.fail(f"no such command {args[0]!r}{self._nearest(args[0])}")
        _, command, rest = super().resolve_command(ctx, args)
        # Usage lines show the full name, whatever was typed.
        return self.full_name(args[0]) if args else None, command, rest

    def _help_for(self, ctx: click.Context, path: list[str]) -> str:
        if not path:
            return ctx.get_help()
        name, command, rest = self.resolve_command(ctx, path)
        assert command is not None
        inner = click.Context(command, ctx, info_name=name)
        if rest and isinstance(command, LazyGroup):
            return command._help_for(inner, rest)
        return command.get_help(inner)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Completion by Tab: the names in the table, without an import of their commands."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _nearest(self, given: str) -> str:
        """Likely meanings, here or in a group below: 'experiment list' for `list`."""
        import difflib

        meant: dict[str, list[str]] = {}
        for path in self._paths():
            meant.setdefault(path.rpartition(" ")[2], []).append(path)
        close = difflib.get_close_matches(given, meant, n=1, cutoff=0.6)
        if not close:
            return ""
        return f"; did you mean {' or '.join(map(repr, meant[close[0]][:3]))}?"

    def _paths(self) -> Iterator[str]:
        """All names and aliases, and those of the groups below after the group's own name."""
        for name, entry in self.entries.items():
            yield from (name, *entry.aliases)
            group = self.get_command(click.Context(self), name)
            if isinstance(group, LazyGroup):
                yield from (f"{name} {path}" for path in group._paths())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The listing, from the table alone."""
        rows = [(_with_aliases(name, entry), entry.help) for name, entry in self.entries.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _with_aliases(name: str, entry: Entry) -> str:
    return f"{name} ({', '.join(entry.aliases)})" if entry.aliases else name


def lazy_group(name: str, help: str, entries: Mapping[str, Entry], **settings: Any) -> LazyGroup:
    """A group over a table of commands."""
    group = LazyGroup(name, help=help, no_args_is_help=True, **settings)
    group.entries = entries
    return group


def completed_by(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """The completion of a parameter by a kind of `detslurm.cli.arguments.completing`."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        completing = import_module("detslurm.cli.arguments.completing")
        items: list[Any] = completing.complete(kind, incomplete)
        return items

    return complete
