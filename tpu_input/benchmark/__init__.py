"""Implementation of python -m tpu_input benchmark, which measures each stage of the input on this machine."""
