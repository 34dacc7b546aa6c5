"""Metrics of scripts that don't report any: `record` and `metrics_from_log` of the configuration.

The hooks run inside the script (`exec/start_hooks/`). They send the values that it gives to
TensorBoard, W&B or MLflow to a named pipe on the chief's node. The matchers of `metrics_from_log`,
which the node agent feeds, write to the same pipe. The recorder, a process of its own, reads the
pipe and reports through `core`.
"""
