"""Notebooks: the program of a notebook's job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detslurm.sdk.tasks.document import TaskDocument


def notebook_entrypoint(
    document: TaskDocument, port: int | None = None, *, in_portal: bool = False
) -> list[str]:
    """Return the program of a notebook's job.

    Args:
        document: The configuration.
        port: The port of the node's loopback address to listen on (0: any); None, the default,
            for a Unix socket.
        in_portal: Whether Open OnDemand shows the notebook; off by default. It then listens on a
            port of all addresses of the node.

    Example:
        document = read_document("notebook", overrides=["idle_timeout=1h"])
        task = Client().start_task(document, notebook_entrypoint(document))
    """
    # With -P a module in the user's directory takes the place of no other.
    words = ["python3", "-P", "-m", "detslurm.exec.tasks.notebook_server"]
    options = {
        "--idle-timeout": document.idle_timeout,
        "--idle-type": document.notebook_idle_type,
        "--port": port,
    }
    given = ((name, value) for name, value in options.items() if value is not None)
    words += [word for name, value in given for word in (name, str(value))]
    return [*words, "--portal"] if in_portal else words
