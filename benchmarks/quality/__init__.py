"""Compare the results of searches: ours and other projects', in virtual time, at equal cost.

`problem.py` says what a problem is; `hartmann.py`, `tables.py` and `networks.py` are problems.
`contenders.py` runs our methods by the searcher's own simulation, and `peers.py` those of other
projects by the loop in `virtual.py`. `figures.py` makes ranks and intervals of their regrets,
`page.py` the table and the picture of docs/quality.md.
"""
