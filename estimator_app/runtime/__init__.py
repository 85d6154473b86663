"""Runtime environment: files, TPUs, and TensorFlow's startup, private API and error messages."""
