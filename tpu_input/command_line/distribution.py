"""The distribution jpeg2tpu: its version, and which of its extras installs a package that is missing."""

from __future__ import annotations

__version__ = "0.1.0"  # setup.py reads this line

# Modules that an import may miss after a plain `pip install jpeg2tpu`: (package, extra that installs it).
_EXTRAS = {
    "googleapiclient": ("google-api-python-client", "tpu"),
    "keras": ("Keras", "train"),
    "matplotlib": ("matplotlib", "train"),
    "oauth2client": ("oauth2client", "tpu"),
    "pillow_heif": ("pillow-heif", "heic"),
    "sklearn": ("scikit-learn", "demo"),
    "tensorboard": ("tensorboard", "train"),
    "tensorflow": ("TensorFlow", "train"),
    "yaml": ("PyYAML", "train"),
}


def which_extra(error: ImportError) -> str:
    """Returns the message of an error with the command that installs the package; "" if no extra installs it."""
    package, extra = _EXTRAS.get((error.name or "").partition(".")[0], ("", ""))
    absent = isinstance(error, ModuleNotFoundError) and package
    return f"{package} is not installed; install it with: pip install 'jpeg2tpu[{extra}]'" if absent else ""
