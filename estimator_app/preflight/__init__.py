"""python -m estimator_app preflight: checks, without a TPU, whether a training run would work on one."""
