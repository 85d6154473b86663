"""Options of a run that a trainer does not have, refused before anything is read or written; imports no framework.

docs/train_jax.md has them in a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_app.config import TrainerName

# By trainer: the options that it does not have, with their values for "none".
MISSING: Mapping[TrainerName, Mapping[str, Any]] = {
    "tpu_estimator": {},
    "tf_distribute": {},
    # What TrainSource and EvalSource do not have.
    "jax": {"record": "", "service": None, "echo": 1, "on_corrupt": "error"},
}
_NO_FLAGS = ("echo", "on_corrupt")  # options of recipes and of train() alone


def check_options(trainer: TrainerName, options: Mapping[str, Any]) -> None:
    """Checks the options of a run, by name, as train() takes them; None is the default.

    Raises:
      ValueError: The trainer does not have one of them.
    """
    for name, none in MISSING.get(trainer, {}).items():
        if options.get(name) not in (None, none):
            option = f"option {name!r}" if name in _NO_FLAGS else f"--{name}"
            instead = "convert the TFRecords with jpeg2tpu convert --record" if name == "record" else "leave it out"
            raise ValueError(
                f"--trainer={trainer} has no {option} yet; {instead}, or use --trainer=tf_distribute with another "
                "--model_dir"
            )
