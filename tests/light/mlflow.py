"""Stands in for MLflow where a test's processes are to find none."""

raise ImportError("there is no MLflow for this test")
