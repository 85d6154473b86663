"""Canonical form of class names, and the checks of a table of names: used wherever a name comes in.

Two names that look the same must not be two classes. Operating systems and editors change what no one sees: macOS
writes "é" as two code points, spreadsheets leave a space at the end, web pages a no-break space.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

# Characters that no font draws, besides those that str.isspace() knows: soft hyphen, zero-width space, marks of the
# direction of text, word joiner, byte order mark. The zero-width joiners U+200C and U+200D stay: they are part of the
# spelling of Persian and Indic words, and of emoji.
_INVISIBLE = "\xad\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"


@functools.lru_cache(maxsize=1 << 16)  # a name occurs for each of its images
def canonical(name: str) -> str:
    """Returns a class name in Unicode form NFC, without white space and invisible characters around it; maybe ""."""
    name = unicodedata.normalize("NFC", name)
    visible = [place for place, character in enumerate(name) if not _is_blank(character)]
    return name[visible[0] : visible[-1] + 1] if visible else ""


def _is_blank(character: str) -> bool:
    return character.isspace() or character in _INVISIBLE or unicodedata.category(character) == "Cc"


def class_table(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Returns the names of a table of classes in canonical form.

    Args:
      names: One name for each class.
      where: The table, for messages: the path of its file, or the option.

    Raises:
      ValueError: A name occurs twice, or is empty.
    """
    originals = list(names)
    table = tuple(map(canonical, originals))
    if "" in table:
        raise ValueError(f"{where} must name each class once, but name {table.index('') + 1} is empty; write its name")
    counts = Counter(table)
    if len(counts) < len(table):
        name = next(name for name in table if counts[name] > 1)
        spellings = sorted({other for other, form in zip(originals, table, strict=True) if form == name})
        spelled = f", as {' and '.join(map(ascii, spellings))}" if len(spellings) > 1 else ""
        raise ValueError(
            f"{where} has the name {name!r} {counts[name]} times{spelled}; it must name each class once, so tell them "
            "apart, e.g. by what follows the name"
        )
    return table


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of names that differ only in case, in white space, _ and -, or in the form of a number."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_folded(name), []).append(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _folded(name: str) -> str:
    words = re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold())
    return re.sub(r"(?<![\d.])0+(?=\d)|(?<=\d)\.0+$", "", words)
