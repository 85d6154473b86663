"""Training by tf.distribute."""
