"""Python functions as experiments: each call is a trial, through submitit's interface."""
