"""Stages of an input pipeline: shuffling, reading, decoding, batches for the device; and their use of host memory."""
