"""The windows, flips and images of pipeline/ in NumPy, for loaders other than tf.data; TensorFlow-free."""
