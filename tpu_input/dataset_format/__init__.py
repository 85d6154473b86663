"""The dataset format, shared by writer and reader: records, manifest, index. Does not import TensorFlow."""
