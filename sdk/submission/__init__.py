"""Submission: from a configuration and a directory of code to jobs in the queue.

`planning` decides everything before anything is written; `context`, `entrypoint`, `modules` and
`preflight` check what it is given; `submit` creates the experiment and queues its jobs. The way in
is `detslurm.sdk.Client.submit`.
"""
