"""Application that trains, evaluates and exports an image classifier; see `python -m estimator_app --help`."""
