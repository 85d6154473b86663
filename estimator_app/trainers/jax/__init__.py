"""Training by JAX, with Keras 3 and optax, without TensorFlow."""
