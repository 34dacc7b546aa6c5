"""What rows about training run: python -m benchmarks.loops.NAME [light|heavy [PACKAGE]].

The loops print the microseconds of a batch, from one call of the user's code to the next.
"""
