"""No file that a stranger may have made does more to a command than end it with a line; `make fuzz` tries more."""

from __future__ import annotations

import pytest

from fuzz import corpus
from fuzz.batches import Batch, cases
from fuzz.corpus import KINDS, Command
from fuzz.sandbox import Sandbox

CASES = 2  # of each kind; .ci/run tries 500 by `make fuzz`


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with Sandbox(tmp_path_factory.mktemp("fuzz")) as sandbox:
        yield sandbox


@pytest.mark.parametrize("batch", [Batch(kind, 0, CASES) for kind in KINDS], ids=str)
@pytest.mark.long
def test_a_hostile_file_costs_a_line_and_nothing_else(sandbox: Sandbox, batch: Batch):
    results = cases(sandbox, batch)
    assert len(results) == batch.count
    assert not [case for case in results if case.problems], "\n".join(str(case) for case in results if case.problems)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A sandbox without what takes a command to make."""
    with Sandbox(tmp_path_factory.mktemp("mischief"), lambda work, _: corpus.write_images(work)) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("action", "problems"),
    [
        ("fine", []),
        ("raise", ["a traceback", "lines on stderr"]),
        ("exit 3", ["exit code 3"]),
        ("abort", ["exit code -6"]),
        ("talk", ["4 lines on stderr"]),
        ("read", ["read work/precious/photo.jpg"]),
        ("change", ["read work/precious/photo.jpg", "changed work/precious/photo.jpg"]),
        ("remove", ["removed work/precious/photo.jpg"]),
        ("make", ["made beside"]),
        ("leave", ["made tmp/scratch"]),
        ("import", ["made home/evil was here"]),
        ("link", ["made work/out of here"]),
    ],
)
def test_the_fuzzer_notices_what_no_command_may_do(empty: Sandbox, action: str, problems: list[str]):
    empty.prepare("list", 0, [])
    messages, _ = empty.find_problems(Command("fuzz_mischief", (action,), writes=("out",)), [])
    assert len(messages) == len(problems)
    for message, problem in zip(messages, problems, strict=True):
        assert message.endswith(problem)


def test_a_batch_is_the_same_each_time_and_another_number_makes_another(empty: Sandbox, monkeypatch):
    fine = Command("fuzz_mischief", ("exit 3",))
    monkeypatch.setitem(KINDS, "list", corpus.Kind(("src.csv",), ("src.csv",), KINDS["list"].damages, (fine,)))
    first, again, other = (
        [(case.damages, case.problems) for case in cases(empty, Batch("list", seed, 5))] for seed in (1, 1, 2)
    )
    assert repr(first) == repr(again)  # as NaN is not NaN
    assert repr(first) != repr(other)
    assert all(problems == ["exit code 3"] for _, problems in first)
