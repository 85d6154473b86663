"""The trainers, TPUEstimator and tf.distribute, with the same interface, and code that both share."""
