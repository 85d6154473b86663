"""What a user's program can do during training: the same calls from all trainers."""

from __future__ import annotations

from estimator_app.model.metrics import Metrics


class Callback:
    """Base class of callbacks, which train() takes; each method may be overridden and does nothing by default.

    The methods are called in the training process between two steps, and the next step waits for them. An exception
    ends the run without another checkpoint; to stop with one, set the event `stop` of train().
    """

    def on_step(self, step: int, loss: float) -> None:
        """Called after each step, on a TPU after each loop of iterations_per_loop steps.

        Args:
          step: Number of steps done, from 1.
          loss: Loss of the last step, in nats; NaN before the run ends because of it.
        """

    def on_checkpoint(self, step: int, path: str) -> None:
        """Called after each checkpoint.

        Args:
          step: Number of steps done; 0 for the initial weights.
          path: Path or URI of the checkpoint, without file extensions.
        """

    def on_evaluation(self, metrics: Metrics) -> None:
        """Called after each evaluation, when history.csv has its row; with eval="watch", training does not evaluate.

        Args:
          metrics: All metrics, with the step of the checkpoint.
        """
