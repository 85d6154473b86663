"""jpeg2tpu preflight: checks, without a TPU, whether a training run would work on one."""
