"""The programs of tasks, which run as the entrypoints of their jobs."""
