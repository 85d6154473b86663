"""Exported SavedModels: finding them, loading them as classifiers, and their extra files such as warm-up requests."""
