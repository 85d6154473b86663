"""Where the pipelines run: checks before a launch, the wheel for workers, progress."""
