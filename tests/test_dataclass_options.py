"""Options as dataclasses: values of wrong types are refused by name, and flags follow from the fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from beam_pipelines import ConvertOptions, ImageOptions, Source
from tpu_input import InputConfig
from tpu_input.command_line import Parser
from tpu_input.command_line.dataclass_options import Flag, add_flags, check_types, from_fields


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a test.

    Attributes:
      steps: Number of steps,
        at least 1. Default: as many as there are.
      share: Share of 100% that
        is used.
      kind: Kind of thing.
      cache: What to keep.
      mirrored: Whether it is mirrored.
      loud: Print more.
      range: Lowest and highest.
      change: Function of an image.
    """

    steps: int
    share: float = 0.5
    kind: Literal["plain", "fancy"] = "plain"
    cache: Literal["records", "images"] | None = None
    mirrored: bool = True
    loud: bool = False
    range: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    change: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        check_types(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "28"}, "steps must be an integer, got '28'"),
        ({"steps": 28.0}, "steps must be an integer, got 28.0"),
        ({"steps": True}, "steps must be an integer, got True"),
        ({"steps": None}, "steps must be an integer, got None"),
        ({"steps": (2, 3)}, r"steps must be an integer, got \(2, 3\)"),
        ({"share": 10**400}, "share must be a number that a float can hold, got a larger one"),
        ({"share": "half"}, "share must be a number, got 'half'"),
        ({"kind": "fncy"}, "kind must be one of plain, fancy, got 'fncy'; did you mean fancy\\?"),
        ({"cache": "crops"}, "cache must be one of records, images, got 'crops'"),
        ({"mirrored": 1}, "mirrored must be True or False, got 1"),
        ({"range": 3}, "range must be a sequence, got 3"),
        ({"range": (1, 2, 3)}, r"range must have 2 values, got \(1, 2, 3\)"),
        ({"range": (1, "2")}, "each value of range must be a number, got '2'"),
        ({"names": "ab"}, "names must be a sequence, got 'ab'"),
        ({"names": {}}, "names must be a sequence, got {}"),
        ({"change": "blur"}, "change must be a function, got 'blur'"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Options(**{"steps": 1} | values)


def test_numbers_of_numpy_and_lists_become_values_that_json_can_hold():
    values = {"steps": np.int64(3), "share": np.float32(0.25), "range": np.array([1, 2]), "names": ["a"]}
    options = from_fields(Options, values)
    assert options == Options(3, share=0.25, range=(1, 2), names=("a",))
    assert [type(value) for value in (options.steps, options.share, *options.range)] == [int, float, float, float]


def test_fields_of_a_file_are_checked_for_their_names():
    assert from_fields(Options, {"steps": 2, "range": [0, 1]}) == Options(2, range=(0, 1))
    with pytest.raises(ValueError, match=r"^there is no option 'step'; did you mean steps\?$"):
        from_fields(Options, {"step": 2})
    with pytest.raises(ValueError, match="steps"):
        from_fields(Options, {})


def parser() -> Parser:
    result = Parser(prog="test")
    names = [field.name for field in dataclasses.fields(Options) if field.name not in ("names", "change")]
    parse = {"range": Flag(parse=lambda text: tuple(map(float, text.split(","))), metavar="LOW,HIGH", unset=True)}
    add_flags(result.add_argument, Options, names, **parse, kind=Flag("type"))
    return result


def test_flags_have_the_defaults_of_the_fields():
    defaults = vars(parser().parse_args([]))
    assert defaults == {name: getattr(Options(1), name) for name in defaults} | {"steps": None, "range": None}


def test_flags_set_the_fields():
    words = ["--steps=3", "--share=0.25", "--type=fancy", "--cache=images", "--no_mirrored", "--loud", "--range=1,2"]
    assert vars(parser().parse_args(words)) == {
        "steps": 3,
        "share": 0.25,
        "kind": "fancy",
        "cache": "images",
        "mirrored": False,
        "loud": True,
        "range": (1.0, 2.0),
    }
    assert parser().parse_args(["--cache=none"]).cache is None


def test_the_help_has_the_descriptions_of_the_fields_and_their_defaults():
    help_text = " ".join(parser().format_help().split())
    assert "--steps=N number of steps, at least 1 (default: as many as there are)" in help_text
    assert "--share=X share of 100% that is used (default: 0.5)" in help_text
    assert "--type=plain|fancy kind of thing (default: plain)" in help_text
    assert "--cache=records|images|none what to keep (default: none)" in help_text
    assert "--no_mirrored whether it is mirrored" in help_text


def test_a_choice_that_there_is_not_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--type=fncy"])
    assert ended.value.code == 2
    message = "error: argument --type: must be one of plain, fancy, got 'fncy'; did you mean fancy? (see test --help)\n"
    assert capsys.readouterr().err == message


SOURCES = {"sources": (Source("d"),), "output": "out"}


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (InputConfig, {"image_size": "28"}, "image_size must be an integer, got '28'"),
        (InputConfig, {"image_size": (224, 224)}, r"image_size must be an integer, got \(224, 224\)"),
        (InputConfig, {"image_size": 0}, "image_size must be at least 1, got 0"),
        (InputConfig, {"image_size": 28, "dtype": "unit8"}, "dtype must be one of .*; did you mean uint8?"),
        (ConvertOptions, SOURCES | {"sources": ("d",)}, "each value of sources must be a Source, got 'd'"),
        (ConvertOptions, SOURCES | {"dedup": "exat"}, "dedup must be one of none, exact, near, got 'exat'"),
        (ConvertOptions, SOURCES | {"shard_bytes": "100MB"}, "shard_bytes must be an integer, got '100MB'"),
        (ImageOptions, {"quality": 90.5}, "quality must be an integer, got 90.5"),
        (Source, {"path": 3}, "path must be text, got 3"),
    ],
)
def test_options_of_the_packages_are_refused_by_name(kind, values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        kind(**values)
