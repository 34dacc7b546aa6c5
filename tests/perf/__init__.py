"""Budgets in system calls, which a shared file system feels."""
