"""Configurations with something wrong, and what the error has to say: (name, YAML, fragments).

Every fragment must be in the error. `:5:3: searcher.metric` is line 5, column 3 and the key path.
Data for the tests here and for those of `detslurm submit`.
"""

from __future__ import annotations

from typing import NamedTuple


class Bent(NamedTuple):
    """A configuration and the fragments that its error must hold."""

    name: str
    text: str
    fragments: tuple[str, ...]


HEAD = """\
name: bent
entrypoint: python3 train.py
searcher:
  name: single
  metric: accuracy
"""
"""Five good lines; what is appended begins in line 6."""

GRID = HEAD.replace("single", "grid")


def _head(name: str, rest: str, *fragments: str) -> Bent:
    return Bent(name, HEAD + rest, fragments)


def _grid(name: str, rest: str, *fragments: str) -> Bent:
    return Bent(name, GRID + rest, fragments)


def _searcher(name: str, searcher: str, *fragments: str) -> Bent:
    text = f"name: bent\nentrypoint: python3 train.py\nsearcher:\n{searcher}"
    return Bent(name, text, fragments)


SYNTAX = [
    Bent("empty file", "", (":1:1:", "searcher is required", "entrypoint is required")),
    Bent("only a comment", "# nothing\n", ("entrypoint is required",)),
    Bent("a list", "- a\n- b\n", (":1:1:", "a mapping", "found a list")),
    Bent("a number", "42\n", (":1:1:", "a mapping", "found 42")),
    Bent("no space after colon", "name:bent\n", (":1:1:", "a space is needed after the colon")),
    Bent("tab", "searcher:\n\tname: single\n", (":2:1:", "YAML syntax", "spaces, not")),
    Bent("two colons", "name: a: b\n", (":1:8:", "YAML syntax", "quote text")),
    Bent("open bracket", "labels: [a, b\nname: x\n", (":2:", "YAML syntax")),
    Bent("open quote", 'name: "abc\n', ("YAML syntax", ":2:1:")),
    Bent("bad indentation", "searcher:\n    name: single\n  metric: x\n", (":3:", "YAML syntax")),
    Bent("duplicate key", HEAD + "name: again\n", (":6:1: name", "already in line 1")),
    Bent("backquote", "name: `a`\n", (":1:7:", "quote text that begins")),
    Bent("two documents", HEAD + "---\nname: x\n", (":6:1:", "more than one document")),
    Bent("unknown anchor", "name: *nobody\n", (":1:7:", "no anchor &nobody")),
    Bent("alias of itself", "data: &x\n  y: *x\n", (":2:6:", "no anchor &x")),
    Bent(
        "billion laughs",
        "data:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"  {b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        (":7:", "written out, the aliases give more than"),
    ),
    Bent("python object", "name: !!python/object/apply:os.system [id]\n", (":1:7:", "tag")),
    Bent("deep nesting", "data: " + "[" * 3000 + "\n", (":1:", "levels deep")),
    Bent("list as a key", "? [a, b]\n: c\n", (":1:3:", "a key must be text")),
    Bent("control character", "name: a\x01b\n", (":1:8:", "control character")),
    Bent("merge of a scalar", "<<: 3\nname: x\n", (":1:5:", "<< takes a mapping")),
]

TOP = [
    Bent(
        "a Trial class without a length",
        "entrypoint: model_def:T\nsearcher: {name: single, metric: x}\n",
        (":2:1: searcher.max_length", "needs a length with a unit", "{epochs: 10}"),
    ),
    Bent(
        "a Trial class with a length without a unit",
        "entrypoint: model_def:T\nsearcher: {name: single, metric: x, max_length: 5}\n",
        (":2:49: searcher.max_length", "needs a length with a unit"),
    ),
    Bent(
        "a Trial class after --trial=",
        "entrypoint: python3 -m detslurm.launch.torch_distributed --trial=model_def:T\n"
        "searcher: {name: single, metric: x, max_length: 5}\n",
        (":2:49: searcher.max_length", "needs a length with a unit"),
    ),
    Bent(
        "a Trial class and halving by a length without a unit",
        "entrypoint: model_def:T\nsearcher: {name: adaptive_asha, metric: x, max_trials: 4,"
        " max_length: 64}\n",
        (":2:71: searcher.max_length", "needs a length with a unit"),
    ),
    Bent(
        "a Trial class and halving by a metric of its own",
        "entrypoint: model_def:T\nsearcher: {name: async_halving, metric: x, max_trials: 4,"
        " num_rungs: 2, time_metric: tokens, max_time: 64}\n",
        (":2:1: searcher.max_length", "needs a length with a unit"),
    ),
    Bent(
        "a Trial class and Optuna without a length",
        "entrypoint: model_def:T\nsearcher: {name: optuna, metric: x, max_trials: 4}\n",
        (":2:1: searcher.max_length", "needs a length with a unit"),
    ),
    Bent(
        "a Trial class and rounds without a unit",
        "entrypoint: model_def:T\nsearcher: {name: pbt, metric: x, population_size: 4,"
        " num_rounds: 2, length_per_round: 8}\n",
        (":2:87: searcher.length_per_round", "length_per_round: {epochs: 10}"),
    ),
    Bent(
        "a Trial class and a custom search without a unit",
        "entrypoint: model_def:T\nsearcher: {name: custom, metric: x}\n",
        (":2:1: searcher.unit", "batches or epochs"),
    ),
    Bent(
        "two log policies of one name",
        HEAD + "log_policies:\n- {name: oom, pattern: a}\n- {name: oom, pattern: b}\n",
        (":8:10: log_policies[1].name", "another log policy is called 'oom'"),
    ),
    Bent("blank entrypoint", HEAD.replace("python3 train.py", "' '"), (":2:13:", "nothing to run")),
    Bent(
        "empty first word",
        HEAD.replace("python3 train.py", "['', a]"),
        (":2:13:", "nothing to run"),
    ),
    Bent("empty name", HEAD.replace("bent", "''"), (":1:7: name", "an empty text")),
    Bent("blank name", HEAD.replace("bent", '" "'), (":1:7: name", "must not be empty")),
    Bent("name of two lines", HEAD.replace("bent", '"a\\nb"'), (":1:7: name", "printable line")),
    _head("misspelled key", "max_restart: 3\n", ":6:1: max_restart", 'did you mean "max_restarts"'),
    _head("misspelled section", "resource: {}\n", ":6:1: resource", '"resources"'),
    _head("key in the wrong place", "slots_per_trial: 2\n", ":6:1:", "resources.slots_per_trial"),
    _head("deprecated key", "slots: 2\n", ":6:1: slots", "mean resources.slots_per_trial?"),
    _head("near a deprecated key", "resources: {slot: 2}\n", ":6:13:", "resources.slots_per_trial"),
    _head("word of sbatch", "partition: gpu\n", ":6:1: partition", "resources.resource_pool"),
    _head("dash for underscore", "max-restarts: 2\n", ":6:1:", '"max_restarts"'),
    Bent(
        "no entrypoint", HEAD.replace("entrypoint: python3 train.py\n", ""), ("entrypoint is req",)
    ),
    Bent(
        "entrypoint is a mapping",
        HEAD.replace("python3 train.py", "{a: 1}"),
        (":2:13:", "found a mapping"),
    ),
    Bent(
        "entrypoint is empty",
        HEAD.replace("python3 train.py", "[]"),
        (":2:13: entrypoint", "empty list"),
    ),
    _head("quoted number", 'max_restarts: "3"\n', ":6:15: max_restarts", "remove the quotes"),
    _head("negative restarts", "max_restarts: -1\n", ":6:15: max_restarts", ">= 0", "found -1"),
    _head("float for an integer", "max_restarts: 5.0\n", ":6:15:", "write 5"),
    _head("yes for true", "perform_initial_validation: yes\n", ":6:29:", "write true"),
    _head(
        "unknown policy", "checkpoint_policy: bst\n", ":6:20:", '"all", "best", "none"', '"best"?'
    ),
    _head(
        "two units",
        "min_validation_period: {batches: 1, epochs: 2}\n",
        ":6:1: min_validation_period",
        "one attribute named",
    ),
    _head("zero scheduling unit", "scheduling_unit: 0\n", ":6:18: scheduling_unit", ">= 1"),
    _head("huge integer", f"max_restarts: {10**30}\n", ":6:15:", "too big"),
    _head("not a number", "records_per_epoch: .nan\n", ":6:20:", "finite"),
    _head("infinite data", "data: {x: .inf}\n", ":6:11:", "finite"),
    _head("workspace alone", "workspace: mine\n", ":6:12: workspace", "add project"),
    _head(
        "labels are numbers", "labels: [a, 1]\n", ":6:13: labels[1]", "text is expected", "quotes"
    ),
    _head("seed below zero", "reproducibility: {experiment_seed: -1}\n", ":6:36:", ">= 0"),
    _head(
        "profiling backwards",
        "profiling: {begin_on_batch: 9, end_after_batch: 3}\n",
        ":6:49:",
        "begin_on_batch",
    ),
    _head("mixed precision", "optimizations: {mixed_precision: o2}\n", ":6:34:", '"O2"'),
]

SEARCHER = [
    _searcher("no name of the searcher", "  metric: x\n", ":3:1: searcher.name", '"adaptive_asha"'),
    _searcher("unknown searcher", "  name: rndom\n  metric: x\n", ":4:9:", 'did you mean "random"'),
    _searcher("half a pbt", "  name: pbt\n  metric: x\n", ":3:1:", "population_size is required"),
    _searcher(
        "pbt that replaces nearly all",
        "  name: pbt\n  metric: x\n  population_size: 4\n  num_rounds: 2\n"
        "  length_per_round: {epochs: 1}\n  replace_function: {truncate_fraction: 0.6}\n",
        ":9:41: searcher.replace_function.truncate_fraction",
        "<= 0.5",
    ),
    _searcher(
        "a round without a length",
        "  name: pbt\n  metric: x\n  population_size: 4\n  num_rounds: 2\n  length_per_round: 0\n",
        ":8:21:",
        ">= 1",
    ),
    _searcher(
        "unknown sampler",
        "  name: optuna\n  metric: x\n  max_trials: 4\n  sampler: cmae\n",
        ":7:12: searcher.sampler",
        'did you mean "cmaes"?',
    ),
    _searcher(
        "asha of no length",
        "  name: adaptive_asha\n  metric: x\n  max_trials: 2\n  max_length: 0\n",
        ":7:15: searcher.max_length",
        "at least 1",
    ),
    _searcher("no metric", "  name: single\n", ":3:1: searcher.metric", "metric is required"),
    _searcher("no max_trials", "  name: random\n  metric: x\n", ":3:1: searcher.max_trials"),
    _searcher("zero trials", "  name: random\n  metric: x\n  max_trials: 0\n", ":6:15:", ">= 1"),
    _searcher(
        "too many trials",
        "  name: random\n  metric: x\n  max_trials: 2000000\n",
        ":6:15:",
        "<= 1000000",
    ),
    _searcher(
        "field of another searcher",
        "  name: single\n  metric: x\n  max_trials: 2\n",
        ":6:3:",
        "it belongs to random",
    ),
    _searcher(
        "asha without lengths",
        "  name: adaptive_asha\n  metric: x\n  max_trials: 2\n",
        ":3:1:",
        "requires max_time and time_metric",
    ),
    _searcher(
        "asha with half",
        "  name: async_halving\n  metric: x\n  max_trials: 2\n  num_rungs: 2\n  max_time: 3\n",
        ":3:1:",
        "time_metric is required too",
    ),
    _searcher(
        "both generations",
        "  name: adaptive_asha\n  metric: x\n  max_trials: 2\n  time_metric: batches\n"
        "  max_time: 3\n  max_length: {batches: 4}\n",
        ":9:15:",
        "max_length contradicts",
    ),
    _searcher(
        "divisor of one",
        "  name: adaptive_asha\n  metric: x\n  max_trials: 2\n  max_length: 8\n  divisor: 1\n",
        ":8:12:",
        "> 1",
    ),
    _searcher(
        "obsolete searcher",
        "  name: adaptive_simple\n  metric: x\n  max_trials: 2\n",
        ":4:9:",
        "old experiments",
        "adaptive_asha",
    ),
    _searcher(
        "two warm starts",
        "  name: single\n  metric: x\n  source_trial_id: 1\n  source_checkpoint_uuid: a\n",
        ":7:27:",
        "not both",
    ),
    _searcher(
        "a rule without a limit",
        "  name: single\n  metric: x\n  stop: {}\n",
        ":6:3:",
        "no_better_for, target, or both",
    ),
    _searcher(
        "a rule that counts the trials of one",
        "  name: single\n  metric: x\n  stop: {no_better_for: 3}\n",
        ":6:9:",
        "only one",
        "target",
    ),
    _searcher(
        "a rule beside a method of the user's own",
        "  name: custom\n  metric: x\n  stop: {target: 3}\n",
        ":6:9:",
        "Shutdown",
    ),
    _searcher(
        "a rule for several metrics",
        "  name: grid\n  metrics: [{name: x}, {name: y}]\n  stop: {target: 3}\n",
        ":6:9:",
        "by one metric",
    ),
    _searcher(
        "a model of several metrics",
        "  name: adaptive_asha\n  metrics: [{name: x}, {name: y}]\n  max_trials: 4\n"
        "  max_length: {batches: 9}\n  sampler: tpe\n",
        ":8:12: searcher.sampler",
        "can't learn from several metrics",
    ),
    _searcher(
        "a rule beside constraints",
        "  name: grid\n  metric: x\n  constraints: {y: <= 3}\n  stop: {target: 3}\n",
        ":7:9:",
        "without constraints",
    ),
    _searcher(
        "an infinite target",
        "  name: single\n  metric: x\n  stop: {target: .inf}\n",
        ":6:18:",
        "finite",
    ),
    _searcher(
        "zero length", "  name: single\n  metric: x\n  max_length: {batches: 0}\n", ":6:25:", ">= 1"
    ),
    _searcher(
        "length without a unit",
        "  name: single\n  metric: x\n  max_length: 5 epochs\n",
        ":6:15:",
        "a length such as",
    ),
    Bent(
        "searcher is a word", "entrypoint: a\nsearcher: single\n", (":2:11: searcher", "a mapping")
    ),
]

_LONG = "[" + "12345, " * 20_000 + "0]"

HYPERPARAMETERS = [
    _head(
        "hyperparameters that fit in no variable",
        f"hyperparameters:\n  lr: 0.1\n  model:\n    table: {_LONG}\n",
        ":8:3: hyperparameters.model: ",
        " KiB as JSON",
        "less than 120.0 KiB",
        "a file of the code directory",
    ),
    _head(
        "a choice that fits in no variable",
        f"hyperparameters:\n  a: {{type: categorical, vals: [1, {_LONG}, x]}}\n",
        ":7:3: hyperparameters.a: ",
        " KiB as JSON",
    ),
    _head(
        "unknown type", "hyperparameters:\n  lr: {type: integer, minval: 1}\n", ":7:14:", '"int"'
    ),
    _head(
        "reserved type",
        "hyperparameters:\n  opt:\n    type: adam\n",
        ":8:11:",
        "`type` is reserved",
    ),
    _head("type is a list", "hyperparameters:\n  x: {type: [1]}\n", ":7:13:", '"categorical"'),
    _head(
        "bounds swapped",
        "hyperparameters:\n  x: {type: int, minval: 5, maxval: 2}\n",
        ":7:26:",
        "minval must be less",
    ),
    _head(
        "float bound of an int",
        "hyperparameters:\n  x: {type: int, minval: 1, maxval: 2.5}\n",
        ":7:37:",
        "an integer",
    ),
    _head(
        "no maxval",
        "hyperparameters:\n  x: {type: double, minval: 1}\n",
        ":7:3: hyperparameters.x.maxval",
    ),
    _head(
        "base of zero",
        "hyperparameters:\n  x: {type: log, base: 0, minval: 1, maxval: 2}\n",
        ":7:24:",
        "> 0",
    ),
    _head(
        "base of one",
        "hyperparameters:\n  x: {type: log, base: 1, minval: 1, maxval: 2}\n",
        ":7:24:",
        "1 to any power is 1",
    ),
    _head(
        "exponent too big",
        "hyperparameters:\n  x: {type: log, base: 10, minval: 1, maxval: 1000}\n",
        ":7:47:",
        "exponents of base",
    ),
    _head(
        "no values",
        "hyperparameters:\n  x: {type: categorical, vals: []}\n",
        ":7:32:",
        "at least one item",
    ),
    _head(
        "extra key",
        "hyperparameters:\n  x: {type: const, val: 1, minval: 2}\n",
        ":7:28:",
        "it belongs to int",
    ),
    _grid(
        "grid without count",
        "hyperparameters:\n  x: {type: double, minval: 0, maxval: 1}\n",
        ":7:3: hyperparameters.x",
        "count was not provided",
    ),
    _grid(
        "nested grid without count",
        "hyperparameters:\n  a:\n    b: {type: int, minval: 0, maxval: 1}\n",
        ":8:5: hyperparameters.a.b",
        "count was not",
    ),
    _grid(
        "grid too large",
        "hyperparameters:\n"
        + "".join(
            f"  x{i}: {{type: double, minval: 0, maxval: 1, count: 1000}}\n" for i in range(3)
        ),
        ":6:1: hyperparameters",
        "1000000000 points",
    ),
]

SECTIONS = [
    _head("gpus", "resources: {gpus: 2}\n", ":6:13:", "resources.slots_per_trial"),
    _head("priority", "resources: {priority: 100}\n", ":6:23: resources.priority", "<= 99"),
    _head(
        "never runs",
        "resources: {slots_per_trial: 4, max_slots: 2}\n",
        ":6:44:",
        "no trial could ever run",
    ),
    _head("budget of nothing", "slurm: {budget: {slot_hours: 0}}\n", ":6:30:", "> 0"),
    _head(
        "budget without slots",
        "resources: {slots_per_trial: 0}\nslurm: {budget: {slot_hours: 2}}\n",
        "slurm.budget",
        "use no slot-hours",
    ),
    _head(
        "one node too small",
        "resources: {slots_per_trial: 4, is_single_node: true}\nslurm: {slots_per_node: 2}\n",
        ":6:49:",
        "don't fit on one node",
    ),
    _head("pool of two words", "resources: {resource_pool: a b}\n", ":6:28:", "one word"),
    _head("unknown storage", "checkpoint_storage: {type: sharedfs}\n", ":6:28:", '"shared_fs"'),
    _head(
        "relative host path",
        "checkpoint_storage: {type: shared_fs, host_path: here}\n",
        ":6:50:",
        "an absolute path",
    ),
    _head(
        "host path of a variable that isn't set",
        "checkpoint_storage: {type: shared_fs, host_path: $NOT_SET_BY_ANYBODY/x}\n",
        ":6:50:",
        "names a variable that isn't set",
    ),
    _head(
        "escaping path",
        "checkpoint_storage: {type: shared_fs, host_path: /a, storage_path: ../b}\n",
        ":6:68:",
        "subdirectory of host_path",
    ),
    _head("no bucket", "checkpoint_storage: {type: s3}\n", ":6:1: checkpoint_storage.bucket"),
    _head(
        "bucket of shared_fs",
        "checkpoint_storage: {type: shared_fs, host_path: /a, bucket: b}\n",
        ":6:54:",
        "it belongs to s3",
    ),
    _head(
        "prefix",
        "checkpoint_storage: {type: gcs, bucket: b, prefix: a/../b}\n",
        ":6:52:",
        "must not contain",
    ),
    _head(
        "azure twice",
        "checkpoint_storage: {type: azure, container: c, connection_string: a, account_url: b}\n",
        ":6:1:",
        "exactly one of",
    ),
    _head("keep fewer than none", "checkpoint_storage: {save_trial_best: -1}\n", ":6:39:", ">= 0"),
    _head(
        "variable without =", "environment:\n  environment_variables: [A]\n", ":7:27:", "NAME=value"
    ),
    _head(
        "variables as a mapping",
        "environment:\n  environment_variables: {A: b}\n",
        ":7:27:",
        '"cuda"',
    ),
    _head(
        "variable as a mapping",
        "environment:\n  environment_variables:\n    - A: b\n",
        ":8:7:",
        "found a mapping",
    ),
    _head("image is a list", "environment: {image: [a]}\n", ":6:22:", "found a list"),
    _head(
        "relative mount",
        "bind_mounts:\n  - {host_path: a, container_path: b}\n",
        ":7:17:",
        "absolute",
    ),
    _head(
        "bad pattern",
        "log_policies:\n  - {name: a, pattern: '(', action: cancel_retries}\n",
        ":7:24:",
        "regular expression",
    ),
    _head(
        "bad action",
        "log_policies:\n  - {name: a, pattern: b, action: retry}\n",
        ":7:35:",
        '"cancel_retries"',
    ),
    _head("nameless policy", "log_policies:\n  - {pattern: b}\n", ":7:5:", '"name" must be set'),
]

SLURM = [
    _head(
        "nodes with =",
        "slurm: {sbatch_args: [--nodes=2]}\n",
        ":6:23:",
        "--nodes is not configurable",
    ),
    _head(
        "nodes with a space",
        "slurm: {sbatch_args: [--nodes 2]}\n",
        ":6:23: slurm.sbatch_args[0]",
        "--nodes is not",
    ),
    _head("short option", "slurm: {sbatch_args: [-n4]}\n", ":6:23:", "-n is not configurable"),
    _head(
        "short option with a space",
        "slurm: {sbatch_args: [-N 2]}\n",
        ":6:23:",
        "-N is not configurable",
    ),
    _head(
        "second option of an entry",
        "slurm: {sbatch_args: ['--mem=4G -p low']}\n",
        ":6:23:",
        "-p is not",
        "resource_pool",
    ),
    _head(
        "abbreviated option",
        "slurm: {sbatch_args: [--outp=x]}\n",
        ":6:23:",
        "--output",
        "not configurable",
    ),
    _head(
        "gres for GPUs",
        "slurm: {sbatch_args: ['--gres=gpu:2']}\n",
        ":6:23:",
        "may not be used to configure GPU",
    ),
    _head("not an option", "slurm: {sbatch_args: [low]}\n", ":6:23:", "begin with an option"),
    _head(
        "two lines in an option",
        'slurm: {sbatch_args: ["--mem=1\\n--nodes=2"]}\n',
        ":6:23:",
        "one printable line",
    ),
    _head("time", "slurm: {time: 4 hours}\n", ":6:15: slurm.time", "4:00:00"),
    _head(
        "signal after the limit",
        "slurm: {time: 1, signal_lead: 90}\n",
        ":6:31:",
        "below slurm.time",
    ),
    _head("on_preempt", "slurm: {on_preempt: requeu}\n", ":6:21:", 'did you mean "requeue"'),
    _head(
        "slot type",
        "slurm: {slot_type: gpu}\n",
        ":6:20:",
        '"cpu", "cuda", "rocm"',
        'did you mean "cuda"',
    ),
    _head(
        "setup is text", "slurm: {setup: module load x}\n", ":6:16:", "begin each item with a dash"
    ),
    _head("account of two words", "slurm: {account: a b}\n", ":6:18:", "one word"),
]

BENT: list[Bent] = [*SYNTAX, *TOP, *SEARCHER, *HYPERPARAMETERS, *SECTIONS, *SLURM]
