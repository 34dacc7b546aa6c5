"""A report inside a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm.look.document import PAGE
from detslurm.look.report import page, write
from detslurm.look.snapshot import snapshot

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment

HEIGHT = 800
"""Of the frame in a notebook, in pixels."""


@dataclass(frozen=True, repr=False)
class InlineReport:
    """A page about experiments: shown in a notebook, or saved as a file."""

    title: str
    html: str

    def __repr__(self) -> str:
        return f"InlineReport({self.title!r})"

    def _repr_html_(self) -> str:
        """The page in a frame that can reach neither the notebook nor its server."""
        # Without allow-same-origin it is an origin of its own.
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def save(self, path: Path | str) -> None:
        """Write the page to a file, whole or not at all."""
        write(self.html, Path(path))


def report_of(experiment: Experiment) -> InlineReport:
    """The report of one experiment as it was when it was read last."""
    return InlineReport(f"Experiment {experiment.id}", page(snapshot([experiment], budget=PAGE)))
