"""A site in virtual time: nodes, a metadata server, Slurm's controller, and a store's workload.

`python -m benchmarks.site --nodes 500 --trials 20000` prints what a workload asks of a site, and
what saturates first. What each step costs is measured (`python -m benchmarks.site.measure`, kept in
costs.json); what a site can do is said on the command line.
"""
