"""Batches in, a trained and exported classifier out; `python -m estimator_app --help` says how."""
