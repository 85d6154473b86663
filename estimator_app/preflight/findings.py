"""Results of preflight, printed as one line per finding.

[Finding] ──▶ Part ──str()──▶ text: ✓ good, ✗ would fail, ! works but at a cost, – could not be checked
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

GOOD, FAILS, COSTS, UNKNOWN = "good", "fails", "costs", "unknown"
_MARKS = {GOOD: "✓", FAILS: "✗", COSTS: "!", UNKNOWN: "–"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A result of one check, printed as one line.

    Attributes:
      verdict: GOOD; FAILS: training on the TPU would not start, would stop, or would train or count incorrectly;
        COSTS: it would run, but slower than possible, or learn less; UNKNOWN: this was not checked.
      seen: What was found.
      advice: What the user should do; "" if nothing is to be done.
    """

    verdict: str
    seen: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.verdict]} {self.seen}" + (f": {self.advice}" if self.advice else "")


NO_COMPILER = Finding(UNKNOWN, "libtpu is not installed", "run make preflight")


@dataclasses.dataclass(frozen=True)
class Part:
    """One group of preflight's checks.

    Attributes:
      name: Title of the group.
      findings: Results, in the order in which they are printed.
      numbers: Measured values by name, for use by other programs.
    """

    name: str
    findings: tuple[Finding, ...]
    numbers: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def fails(self) -> bool:
        return any(finding.verdict == FAILS for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {finding}" for finding in self.findings)])


def conclusion(parts: Iterable[Part]) -> str:
    """Returns a one-line summary of all parts."""
    verdicts = [finding.verdict for part in parts for finding in part.findings]
    if FAILS in verdicts:
        return f"problems to fix before training on a TPU: {verdicts.count(FAILS)}"
    note = "; lines marked – were not checked" if UNKNOWN in verdicts else ""
    return f"nothing found that would fail on a TPU{note}"
