"""Simulate a site: python -m benchmarks.site --nodes 500 --trials 20000 --metadata-rate 20000."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

import benchmarks.site as package
from benchmarks.site.costs import kept
from benchmarks.site.model import Site, Workload
from benchmarks.site.outcome import simulate, table


def main() -> int:
    """Print the outcome as a table, or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description=package.__doc__)
    for kind in (Site, Workload):
        _add(
            parser.add_argument_group(kind.__name__.lower(), (kind.__doc__ or "").split("\n")[0]),
            kind,
        )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = vars(parser.parse_args())
    site, load = _made(Site, given), _made(Workload, given)
    found = simulate(site, load, seed=given["seed"])
    if given["json"]:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        costs = kept()
        print(table(found, site))
        print(f"\ncosts as measured on {costs.date} at {costs.version} ({costs.machine})")
    return 0


def _add(group: Any, kind: type[Site] | type[Workload]) -> None:
    """An option for each attribute, explained by its docstring."""
    texts = _attributes(kind.__doc__ or "")
    for field in dataclasses.fields(kind):
        choices = ["grid", "asha"] if field.name == "search" else None
        convert = type(field.default) if field.default is not None else float
        text = f"{texts[field.name]} (default {field.default})".replace("%", "%%")
        flag = f"--{field.name.replace('_', '-')}"
        group.add_argument(
            flag, type=convert, default=field.default, choices=choices, help=text,
            metavar=None if choices else "N",
        )  # fmt: skip


def _attributes(docstring: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        if line.startswith(" " * 12):
            found[name] += " " + line.strip()
        elif ":" in line:
            name, _, text = line.strip().partition(": ")
            found[name] = text
    return found


def _made(kind: Any, given: dict[str, Any]) -> Any:
    return kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})


if __name__ == "__main__":
    sys.exit(main())
