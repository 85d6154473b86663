"""The blocks "From Python" of the guides do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.app_fixtures import keras_warns

DOCS = Path(__file__).parents[1] / "docs"


def block(page: str) -> str:
    """Returns the code in the section "From Python" of a page."""
    section = (DOCS / page).read_text().partition("\n## From Python\n")[2]
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match
    return match[1]


def test_conversion_from_python(few_digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few_digits.rename(tmp_path / "digits")
    exec(block("conversion.md"), {"__name__": "__main__"})
    assert "3 classes, examples: {" in capsys.readouterr().out
    assert (tmp_path / "dataset" / "report.html").exists()


@keras_warns
@pytest.mark.long
@pytest.mark.core
def test_training_from_python(digits_dataset, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    (tmp_path / "digits").symlink_to(digits)
    names: dict[str, Any] = {}
    exec(block("train.md").replace("train_steps=600", "train_steps=2"), names)
    assert names["finished"].metrics.step == 2
    assert names["finished"].metrics.num_examples == digits_dataset.split("validation").num_examples
    assert Path(names["path"]).parent.name == "exports"
    assert names["prediction"].file == "digits/0/0072.jpg"
    assert len(names["prediction"].top) == 3


@keras_warns
@pytest.mark.long
def test_callbacks_from_python(digits_dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    section = (DOCS / "train.md").read_text().partition("**Callbacks.**")[2]
    exec(section.partition("```python\n")[2].partition("```")[0].replace("train_steps=20", "train_steps=10"), {})
    stdout = capsys.readouterr().out
    assert re.search(r"^step 10: \d\.\d{3}$", stdout, re.MULTILINE)
    assert re.search(r"^step 10: \d+\.\d%$", stdout, re.MULTILINE)


def test_an_option_that_there_is_not_is_refused_by_name(digits_dataset, tmp_path):
    import estimator_app

    with pytest.raises(ValueError, match=r"there is no option 'train_step'; did you mean train_steps\?"):
        estimator_app.train(digits_dataset, str(tmp_path / "model"), train_step=3)
    with pytest.raises(ValueError, match="train_batch_size must be an integer, got '64'"):
        estimator_app.train(digits_dataset, str(tmp_path / "model"), train_batch_size="64")
    with pytest.raises(ValueError, match="evaluate needs model_dir or export_dir, got neither"):
        estimator_app.evaluate()
    assert not (tmp_path / "model").exists()
