"""Tests of the seam to Slurm and to the embedded local cluster."""
