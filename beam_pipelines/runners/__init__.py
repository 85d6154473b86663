"""Execution of the pipelines: checks before a launch, the wheel and options for workers, errors and progress."""
