"""Training by TPUEstimator."""
