"""Which options of sbatch are refused, in all forms that sbatch reads."""

from __future__ import annotations

import pytest

from detslurm.config.sbatch_args import refuse
from detslurm.config.schema.slurm import canonical_limit, limit_seconds

REFUSED = """\
--ntasks-per-node=2
--ntasks-per-node 2
--gpus=1
--gpus 1
-G 1
-G1
--nodes=2
--nodes 2
--nodes
-N2
-N 2
-N=2
--ntasks=4
-n4
-n 4
--chdir=/x
-D /x
--error=e
-e e
--output o
-oo
--partition low
-p low
--no-requeue
--requeue
--gres=gpu:2
--gres gpu:a100:1
--gres=lic:1,gpu:1
--gre=gpu:1
--outp=x
--part low
-sN2
-HsN 2
--mem=4G --nodes=2
--mem=4G -n 3
-t 5 -p low
--array=1-5
-a 1-5
--wrap=ls
--signal=USR1@10
--parsable
--gpus-per-node=1
-Q
low
--comment='a
--mem=4\\n#SBATCH -N 2
"--nodes"=2
"""

ALLOWED = """\
--mem=4G
--mem 4G
--exclusive
--time=10
-t 10
-A me
--gres=lic:2
--gres=shard:1
--constraint=a100
-C a100
--cpus-per-task=4
-c4
--comment="run -n 4 --nodes=2"
--export=ALL
--nice=10
--exclude=node1
--nodelist=node1
-w node1
--ntasks-per-core=1
--mail-type=END
--licenses=a:1
"""


@pytest.mark.parametrize("entry", [line.replace("\\n", "\n") for line in REFUSED.splitlines()])
def test_reserved_options_are_refused(entry: str) -> None:
    """However an option of ours is written, it is found."""
    assert refuse(entry)


@pytest.mark.parametrize("entry", ALLOWED.splitlines())
def test_other_options_are_the_users(entry: str) -> None:
    """What isn't ours passes."""
    assert refuse(entry) is None


@pytest.mark.parametrize(
    "text, canonical",
    [
        (90, "0-01:30:00"),
        ("90", "0-01:30:00"),
        ("30:15", "0-00:30:15"),
        ("25:00:00", "1-01:00:00"),
        ("1-12", "1-12:00:00"),
        ("1-12:30", "1-12:30:00"),
        ("2-00:00:01", "2-00:00:01"),
        ("unlimited", "UNLIMITED"),
        ("INFINITE", "UNLIMITED"),
        (0, None),
        (-1, None),
        ("", None),
        ("4h", None),
        ("1:2:3:4", None),
        (True, None),
        ("9" * 12, None),
    ],
)
def test_time_limits_are_those_of_sbatch(text: int | str, canonical: str | None) -> None:
    """All forms of --time have one canonical form, which is a time limit again."""
    assert canonical_limit(text) == canonical
    if canonical and canonical != "UNLIMITED":
        assert limit_seconds(canonical) == limit_seconds(text)
