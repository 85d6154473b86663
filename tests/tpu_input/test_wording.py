"""Wording that messages of all packages have in common."""

from __future__ import annotations

import pytest

from tpu_input.command_line.wording import enumerated


@pytest.mark.parametrize(
    ("items", "most", "text"),
    [
        ([], 2, ""),
        (["a", "b"], 2, "a, b"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (range(5000), 1, "0 and 4,999 more"),
    ],
)
def test_the_first_items_are_named_and_the_others_counted(items, most, text):
    assert enumerated(items, most) == text


def test_the_others_have_a_noun():
    assert enumerated(["a/", "b/"], 1, "more folders") == "a/ and 1 more folders"
