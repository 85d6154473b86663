"""The files of a run: configuration, checkpoints, history, plots, exports; and the lock."""
