"""The trainers, JAX, tf.distribute and TPUEstimator, with the same interface, and code that they share."""
