"""Ratios against peers, measured side by side on this machine: python -m benchmarks [ROW...]."""
