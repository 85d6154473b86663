"""`make kills`: which moments are tried, and that a dataset which a kill has damaged is noticed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import kills.moment
import kills.urls
from kills import places
from kills.moment import VICTIMS, Conversions, Moment, Outcome


def test_moments_are_spread_over_the_run_for_each_kind_and_are_the_same_each_time():
    moments = [Moment.from_number(number, seed=0) for number in range(120)]
    assert moments == [Moment.from_number(number, seed=0) for number in range(120)]
    assert moments != [Moment.from_number(number, seed=1) for number in range(120)]
    for victim in VICTIMS:
        for overwrite in (False, True):
            shares = sorted(
                moment.share for moment in moments if (moment.victim, moment.overwrite) == (victim, overwrite)
            )
            assert len(shares) == 20
            gaps = [after - before for before, after in zip([0.0, *shares], [*shares, 1.0], strict=True)]
            assert max(gaps) < 0.13  # evenly, it would be 0.05


class OneByteOff(places.Local):
    """A place where the completed dataset holds one wrong byte and a file too many."""

    spoils = False

    def files(self, output: str) -> places.Files:
        files = super().files(output)
        if self.spoils and "manifest.json" in files:
            name = next(path for path in files if path.startswith("rejected"))
            files |= {name: b"?" + files[name][1:], "more": b"1234"}
        return files


@pytest.mark.long
def test_what_a_kill_leaves_is_compared_and_verified(tmp_path: Path):
    place = OneByteOff(tmp_path)
    conversions = Conversions(place)
    moment = Moment(0, "all", overwrite=True, share=0.6)
    assert conversions.try_moment(moment) == Outcome(killed=True, stood="old")
    assert not conversions.try_moment(Moment(1, "worker", overwrite=False, share=2.0)).killed
    place.spoils = True
    assert conversions.try_moment(moment).differing == 5


@pytest.mark.long
@pytest.mark.parametrize("may_hang", [True, False])
def test_a_command_that_waits_for_an_engine_endlessly_is_ended_and_run_again(tmp_path, monkeypatch, may_hang):
    place = places.Local(tmp_path)
    place.may_hang = may_hang
    conversions = Conversions(place)
    wait, codes = kills.moment._wait, list[int | None]()

    def hang(process: subprocess.Popen[bytes]) -> int | None:
        codes.append(wait(process))
        return codes[-1] if len(codes) > 1 else None

    monkeypatch.setattr(kills.moment, "_wait", hang)
    outcome = conversions.try_moment(Moment(0, "worker", overwrite=True, share=0.6))
    assert codes == [2, 0]
    assert (outcome.hung, outcome.differing, outcome.findings) == (may_hang, 0, [])
    assert bool(outcome.problems) is not may_hang


@pytest.mark.long
def test_urls_that_are_read_by_a_conversion_which_is_killed_twice_are_all_accounted_for(tmp_path: Path):
    hashes, problems = kills.urls.run(tmp_path, count=300, kills=2)
    assert problems == []
    assert {"manifest.json", "rejected.jsonl"} < hashes.keys()
