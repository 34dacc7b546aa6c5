"""`detslurm cmd`: programs as jobs."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.task.commands import config_of, describing, killing, listing, logs_of

KIND = "command"

list_commands = listing(KIND)
logs = logs_of(KIND)
kill = killing(KIND)
describe = describing(KIND)
config = config_of(KIND)

COMMANDS = {
    "run": Entry("task.run:run", "Run a program as a job, and print its output."),
    "list": Entry("task.command:list_commands", "List commands.", ("ls",)),
    "logs": Entry("task.command:logs", "Print the output of a command."),
    "kill": Entry("task.command:kill", "End commands at once."),
    "describe": Entry("task.command:describe", "Show a command: its state, job and program."),
    "config": Entry("task.command:config", "Print a command's configuration as YAML."),
}

command = lazy_group("cmd", "Run programs as jobs.", COMMANDS)
