"""docs/datasets.md: its commands run one after another, in the folder where the page has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipelines_commands import run

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


@pytest.mark.long
def test_the_commands_of_the_page_run_as_they_stand(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corrected.csv").write_text("key,label\n3/0003.jpg,5\n")
    (tmp_path / "blurred.txt").write_text("4/0004.jpg\n")
    commands = [line.split()[1:] for line in PAGE.read_text().splitlines() if line.startswith("    jpeg2tpu ")]
    assert [command[0] for command in commands][2:8] == ["relabel", "filter", "split", "reshard", "merge", "diff"]
    assert run(capsys, *commands[0])[0] == 0
    assert run(capsys, "convert", "--input=digits", "--output=more", "--seed=1")[0] == 0
    outputs = dict[str, str]()
    for command in commands[1:]:
        code, out, err = run(capsys, *command)
        message = (
            "duplicates left out: 1,758 of train, 37 of validation; of copies in several splits, the one outside train "
        )
        expected = int(command[0] == "diff"), f"{message}stays\n" if command[0] == "merge" else ""
        assert (code, err) == expected, command
        outputs.setdefault(command[0], out)
    assert "(left_out 1)" in outputs["filter"]
    # test_extend.py has what these do where something is new or gone.
    assert (commands[-2][-1], commands[-1][-1]) == ("--extend", "--prune")
    assert "already complete, nothing to do" in out
    assert "pairs of images that look alike" in outputs["report"]
    assert "duplicate 1795" in outputs["merge"]
    assert "conflicting_label 2" in outputs["merge"]  # the relabelled image has another label in the other dataset
    assert "relabelled: 1 (1 '3' to '5'), such as '3/0003.jpg'" in outputs["diff"]
