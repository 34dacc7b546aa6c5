"""What a run remembers of its reports, beside a set of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detslurm.core._reported_steps import ReportedSteps

NAMES = (frozenset({"loss"}), frozenset({"loss", "accuracy"}), frozenset({"lr"}))
# Few steps, so that many repeat, and runs of them that count evenly.
REPORTS = st.lists(
    st.tuples(st.integers(-3, 12), st.integers(1, 4), st.integers(0, 5), st.sampled_from(NAMES))
)


@given(REPORTS)
def test_it_knows_each_step_and_no_other(
    runs: list[tuple[int, int, int, frozenset[str]]],
) -> None:
    """Whatever the order of the steps and the names of their metrics."""
    reported, every = ReportedSteps(), set[tuple[int, str]]()
    for first, stride, count, names in runs:
        for step in range(first, first + stride * count, stride):
            known = sorted(name for name in names if (step, name) in every)
            assert reported.repeated(step, names) == known
            if not known:
                reported.add(step, names)
                every |= {(step, name) for name in names}
    for step in range(-5, 35):
        for names in NAMES:
            known = sorted(name for name in names if (step, name) in every)
            assert reported.repeated(step, names) == known
