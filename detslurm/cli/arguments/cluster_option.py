"""The option --cluster of commands that ask a cluster."""

from __future__ import annotations

import click

cluster_option = click.option(
    "--cluster",
    type=click.Choice(["auto", "slurm", "local"]),
    default="auto",
    show_default=True,
    help="Choose the cluster to ask; auto is Slurm where there is one.",
)
