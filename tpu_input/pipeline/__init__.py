"""Stages of an input pipeline: the order of examples, reading, decoding, batches for the device; host memory."""
