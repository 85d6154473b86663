"""The distribution jpeg2tpu: its version, and which of its extras installs a package that is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__version__ = "0.1.0"  # setup.py reads this line

# Modules that an import may miss after a plain `pip install jpeg2tpu`: (package, extra that installs it).
_EXTRAS = {
    "apache_beam": ("Apache Beam", "beam"),
    "googleapiclient": ("google-api-python-client", "tpu"),
    "jax": ("JAX", "jax"),
    "keras": ("Keras", "train"),
    "matplotlib": ("matplotlib", "train"),
    "oauth2client": ("oauth2client", "tpu"),
    "optax": ("optax", "jax"),
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


@contextlib.contextmanager
def needing_extras(feature: str) -> Iterator[None]:
    """Raises ImportError with the command that installs a package, in one line, where one of an extra is missing.

    Args:
      feature: What needs the package; the beginning of the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not (advice := which_extra(error)):
            raise
        raise ImportError(f"{feature}: {advice}") from None
