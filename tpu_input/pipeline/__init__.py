"""The stages of an input pipeline: order, reading, decoding, batches for the device; and what they take of a host."""
