"""The machine: files, TPUs, how TensorFlow is started and what it says."""
