"""Where the `detslurm` script begins, outside the package, whose own import takes its time.

Until a command begins, Ctrl-C ends the process at once and in silence.
"""

import signal

# Whoever started it with Ctrl-C ignored (nohup, a background job of a shell script) meant that.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from detslurm._base import cached_modules

__all__ = ["main"]


def main() -> int:
    """Run the command line; returns the exit status."""
    modules = cached_modules.CommandModules()
    from detslurm import cli

    status = cli.main()
    if status == 0 and not modules.is_complete():
        from detslurm._base import module_cache

        module_cache.keep(modules)
    return status
