"""Submission: from a configuration and a directory of code to jobs in the queue.

`planning` decides everything before `submit` writes and queues anything. The way in is
`detslurm.sdk.Client.submit`.
"""
