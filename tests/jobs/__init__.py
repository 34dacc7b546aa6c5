"""Tests of how jobs are requested, requested again, and deferred."""
