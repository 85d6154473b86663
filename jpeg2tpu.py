"""python -m jpeg2tpu COMMAND …: the command jpeg2tpu, for where its script is not on the PATH."""

if __name__ == "__main__":  # processes that a conversion starts import this module, too
    import sys

    from tpu_input.command_line.jpeg2tpu import main

    sys.exit(main())
