"""Search by Optuna's samplers and pruners; only `bridge`, `rng` and `space` know Optuna."""
