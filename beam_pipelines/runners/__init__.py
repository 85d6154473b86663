"""Execution of the pipelines: checks before a launch, the wheel for workers, errors and progress."""
