"""The test cluster by hand: python -m tests.cluster up|run|down|status|env|kill-node|boot-node."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cluster.cluster import Cluster, temporary_folder
from tests.cluster.daemons import StartError
from tests.cluster.spec import ClusterSpec
from tests.cluster.watchdog import guarded

DEFAULT = Path(tempfile.gettempdir()) / "dsc"


def main() -> int:
    """Run one command; the exit code."""
    args = _parser().parse_args()
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except KeyboardInterrupt:
        return 130
    except (StartError, TimeoutError, ValueError, FileNotFoundError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, function, text in COMMANDS:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(command=function)
        fallback = None if function is run else DEFAULT
        one.add_argument("--dir", type=Path, default=fallback, help="folder of the cluster")
        if function in (up, run):
            _add_shape(one)
        if function in (kill_node, boot_node):
            one.add_argument("node", help="e.g. n3")
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    plain = ClusterSpec()
    parser.add_argument("--no-accounting", action="store_true", help="no slurmdbd, no MariaDB")
    parser.add_argument("--cancel", action="store_true", help="PreemptMode=CANCEL for low")
    parser.add_argument("--user-signal", action="store_true", help="preempt_send_user_signal")
    for name in ("nodes", "cpus", "gpus", "grace_time", "max_array_size", "cred_expire"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(plain, name), metavar="N")


def _spec(args: argparse.Namespace) -> ClusterSpec:
    return ClusterSpec(
        nodes=args.nodes,
        cpus=args.cpus,
        gpus=args.gpus,
        accounting=not args.no_accounting,
        preempt_mode="CANCEL" if args.cancel else "REQUEUE",
        grace_time=args.grace_time,
        send_user_signal=args.user_signal,
        max_array_size=args.max_array_size,
        cred_expire=args.cred_expire,
    )


def up(args: argparse.Namespace) -> int:
    """Start a cluster that lives until `down`."""
    print(_export(Cluster(_spec(args), args.dir.absolute()).up()))
    return 0


def run(args: argparse.Namespace) -> int:
    """Start a cluster, keep it until Ctrl-C or SIGTERM, and take it down."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    root = args.dir.absolute() if args.dir else temporary_folder()
    with guarded(Cluster(_spec(args), root)) as cluster:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print(_export(cluster), flush=True)
        print("# Ctrl-C stops the cluster", file=sys.stderr, flush=True)
        signal.sigwait(signals)
    return 0


def down(args: argparse.Namespace) -> int:
    """Stop a cluster and remove its folder."""
    Cluster.attach(args.dir.absolute()).down()
    return 0


def status(args: argparse.Namespace) -> int:
    """Show daemons, nodes and the queue."""
    cluster = Cluster.attach(args.dir.absolute())
    names = [f"slurmd.{node}" for node in cluster.spec.node_names()]
    for name in ("munged", "mariadbd", "slurmdbd", "slurmctld", *names):
        print(f"{name}: {cluster.daemons.pid(name) or 'down'}")
    print(cluster.command("sinfo", "-N", "-l", check=False), end="")
    print(cluster.command("squeue", check=False), end="")
    return 0


def env(args: argparse.Namespace) -> int:
    """Print the line that points a shell at the cluster."""
    print(_export(Cluster.attach(args.dir.absolute())))
    return 0


def kill_node(args: argparse.Namespace) -> int:
    """Cut the power of one node."""
    Cluster.attach(args.dir.absolute()).kill_node(args.node)
    return 0


def boot_node(args: argparse.Namespace) -> int:
    """Boot a node that was killed."""
    Cluster.attach(args.dir.absolute()).boot_node(args.node)
    return 0


def _export(cluster: Cluster) -> str:
    return f"export SLURM_CONF={cluster.layout.slurm_conf}"


COMMANDS: tuple[tuple[str, Callable[[argparse.Namespace], int], str], ...] = (
    ("up", up, "start a cluster that lives until `down`"),
    ("run", run, "start a cluster and keep it until Ctrl-C"),
    ("down", down, "stop a cluster and remove its folder"),
    ("status", status, "show daemons, nodes and the queue"),
    ("env", env, "print the line that points a shell at the cluster"),
    ("kill-node", kill_node, "cut the power of a node"),
    ("boot-node", boot_node, "boot a node that was killed"),
)

if __name__ == "__main__":
    sys.exit(main())
