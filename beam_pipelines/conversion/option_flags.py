"""Options and inputs of a dataset as the flags of convert, for messages about datasets that were made with others.

options of a manifest ──flags_of()──────▶ --splits=train=90%,validation=10%, --shard_size=100MB, … all, as text
                      ──command_flags()──▶ those that are not the defaults, for a shell
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpu_input.dataset_format import json_fields

_NAMES = {"shard_bytes": "shard_size", "url_image_bytes": "url_image_size", "url_max_bytes": "url_max_size"}


def flags_of(shaping: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (flag, value as on a command line) for every option that determines the content of the shards."""
    for name, value in shaping.items():
        if name == "images" and isinstance(value, dict):
            yield from flags_of(value)
        elif name == "splits" and isinstance(value, dict):
            yield "--splits", ",".join(f"{split}={_percent(share)}" for split, share in value.items())
        elif name == "features" and isinstance(value, dict):
            yield "--feature", ",".join(f"{feature}:{kind}" for feature, kind in value.items()) or "not given"
        elif isinstance(value, dict):
            yield f"--{name}", ",".join(f"{split}={count}" for split, count in value.items()) or "not given"
        elif name == "validation":
            yield "--validation", _percent(value)
        elif isinstance(value, list):
            excerpt = ", ".join(map(repr, value[:3])) + ", …" * (len(value) > 3)
            yield f"--{name}", f"a list of {len(value)} ({excerpt})" if value else "not given"
        else:
            yield f"--{_NAMES.get(name, name)}", _size(value) if name in _NAMES else f"{value}"


def command_flags(shaping: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[str]:
    """Yields the flags of a command line for the options that are not the usual ones.

    Names of classes, which a manifest has and a command line has not, are in a file called CLASSES.

    Raises:
      KeyError: There is no such option.
      TypeError: The value of one is of another type.
    """
    for name, value in shaping.items():
        if value == usual[name]:
            continue
        if type(value) is not type(usual[name]) and {type(value), type(usual[name])} != {int, float}:
            raise TypeError(f"{name} is {value!r}")
        if name == "images":
            yield from command_flags(value, usual[name])
        elif name == "labels":
            yield "--labels=CLASSES"
        elif isinstance(value, list):
            yield from (f"--{name}={item}" for item in value)
        elif value is True:
            yield f"--{name}"
        else:
            yield from (f"{flag}={text}" for flag, text in flags_of({name: value}))


def _percent(share: object) -> str:
    """Returns a share as on a command line, e.g. "90%"; for a value from a file that is not a number, the value."""
    return f"{100 * share:.15g}%" if isinstance(share, (int, float)) else json_fields.short_repr(share)


def _size(num_bytes: object) -> str:
    """Returns a size as on a command line, e.g. "100MB"; for a value from a file that is not a size, the value."""
    if not isinstance(num_bytes, int):
        return json_fields.short_repr(num_bytes)
    units = (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000))
    unit, unit_bytes = next((unit for unit in units if num_bytes and num_bytes % unit[1] == 0), ("", 1))
    return f"{num_bytes // unit_bytes}{unit}"


def inputs_of(sources: Iterable[Mapping[str, Any]]) -> str:
    """Returns inputs, given with the fields of options.Source, as flags for a shell, with all that is set of them."""
    words = []
    for source in sources:
        split = f"{source['split']}=" if source.get("split") else ""
        words.append(f"--input={split}{source.get('path', '')}")
        for name, value in source.items():
            if value and name not in ("path", "split") and isinstance(value, str):
                words.append(f"--{name}={split if name == 'label_list' else ''}{value}")
    return shlex.join(dict.fromkeys(words))
