"""What trains: TPUEstimator and tf.distribute, with the same functions, and what both need."""
