"""Tasks: commands, shells, notebooks and TensorBoards as jobs.

A task is an experiment of one trial with a kind (`records.Created.task`). It shares the store, the
frozen code, logs, containers, environment, templates, site profiles and provenance with all others.
"""
