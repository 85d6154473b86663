"""What preflight found, a line each.

[Finding] ──▶ Part ──str()──▶ text: ✓ what is right, ✗ what would fail, ! what costs, – what could not be looked at
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

GOOD, FAILS, COSTS, UNKNOWN = "good", "fails", "costs", "unknown"
_MARKS = {GOOD: "✓", FAILS: "✗", COSTS: "!", UNKNOWN: "–"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A line of the page.

    Attributes:
      verdict: GOOD; FAILS: training on the TPU would not start, would stop, or would learn or count wrong; COSTS: it
        would run, slower than it could, or learn less; UNKNOWN: this was not looked at.
      seen: What is.
      advice: What to do; "" where there is nothing to.
    """

    verdict: str
    seen: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.verdict]} {self.seen}" + (f": {self.advice}" if self.advice else "")


@dataclasses.dataclass(frozen=True)
class Part:
    """One of preflight's parts.

    Attributes:
      name: Its title.
      findings: In order.
      numbers: What was measured, by name, for programs to read.
    """

    name: str
    findings: tuple[Finding, ...]
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fails(self) -> bool:
        return any(finding.verdict == FAILS for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {finding}" for finding in self.findings)])


def conclusion(parts: Iterable[Part]) -> str:
    """Returns what the whole page comes to."""
    verdicts = [finding.verdict for part in parts for finding in part.findings]
    if FAILS in verdicts:
        return f"{verdicts.count(FAILS)} to be fixed before this trains on a TPU"
    left = "; – was not looked at" if UNKNOWN in verdicts else ""
    return f"nothing found that would fail on a TPU{left}"
