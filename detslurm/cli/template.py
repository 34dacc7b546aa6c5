"""`detslurm template`: batch scripts to start from, for those who write their own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import click

_SUFFIX = ".sbatch"


@click.group()
def template() -> None:
    """Print batch scripts to adapt."""


@template.command("list")
def list_templates() -> None:
    """List the batch scripts, each with its purpose."""
    texts = dict(_scripts())
    width = max(map(len, texts))
    for name, text in texts.items():
        click.echo(f"{name:{width}}  {_purpose(text)}")


@template.command()
@click.argument("name")
def sbatch(name: str) -> None:
    """Print the batch script NAME, one of `detslurm template list`.

    \b
    Examples:
      detslurm template sbatch torch > train.sbatch
    """
    texts = dict(_scripts())
    if name not in texts:
        raise click.BadParameter(f"no script is called {name!r}; there are {', '.join(texts)}")
    click.echo(texts[name], nl=False)


def _scripts() -> Iterator[tuple[str, str]]:
    folder = files("detslurm.templates")
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(_SUFFIX):
            yield entry.name.removesuffix(_SUFFIX), entry.read_text()


def _purpose(text: str) -> str:
    """The comment under the first line."""
    return text.splitlines()[1].removeprefix("# ")
