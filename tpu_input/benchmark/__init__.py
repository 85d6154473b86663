"""python -m tpu_input benchmark: what each stage of the input costs on this machine."""
