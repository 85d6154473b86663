"""Pictures of a run, whatever its classes and splits are called."""

from __future__ import annotations

from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.history import Row
from estimator_app.model_dir.plots import draw_confusion, draw_curves

NAMES = ("US$ to A$", "$\\frac{$", "$", "100 % _^")


def test_names_are_drawn_as_they_are_and_are_no_formulas():
    metrics = Metrics(1, "$x_{$", 4, 0.5, 1.0, confusion=((1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0)))
    rows = [Row(step, "$x_{$", {"accuracy": 0.5, "loss": 1.0}) for step in (1, 2)]
    for png in (draw_confusion(metrics, NAMES), draw_curves(rows, "accuracy")):
        assert png.startswith(b"\x89PNG")
