"""Files of a run in its model_dir: configuration, checkpoints, history, plots, exports and the lock."""
