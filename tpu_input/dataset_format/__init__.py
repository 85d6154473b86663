"""The dataset on disk, one place for writer and reader: records, manifest, index. No TensorFlow."""
