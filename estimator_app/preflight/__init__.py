"""python -m estimator_app preflight: whether a training would run on a TPU, without one."""
