"""train --cache: what is kept, that it is part of the run, and what would not fit."""

from __future__ import annotations

import pytest

from support.app_commands import FLAGS, refused, run


@pytest.mark.long
def test_training_keeps_decoded_images_when_asked(capsys, digits_dataset, tmp_path, monkeypatch):
    from tpu_input.train import crops_of_decoded

    calls = []

    def keep(*args):
        calls.append(args)
        return crops_of_decoded(*args)

    monkeypatch.setattr("tpu_input.train.crops_of_decoded", keep)
    command = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}", *FLAGS, "--train_steps=2")
    assert run(capsys, *command, "--cache=decoded")[0] == 0
    assert calls
    assert "holds another run: its --cache is 'decoded', not None; use another" in refused(capsys, *command)


def test_a_cache_that_does_not_fit_is_refused_before_anything_is_written(capsys, digits_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("tpu_input.pipeline.caching.available_bytes", lambda: 1000)
    command = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model", *FLAGS)
    assert 'cache="decoded" needs' in refused(capsys, *command, "--cache=decoded")
    assert not (tmp_path / "model").exists()
