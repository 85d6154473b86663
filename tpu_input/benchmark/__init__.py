"""Implementation of jpeg2tpu benchmark, which measures each stage of the input on this machine."""
