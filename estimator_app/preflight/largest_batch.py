"""The largest batch of a core that fits, found by compiling.

    batches that fit, that do not ──a line through two of them──▶ the batch to try next ──▶ … until they are close

What a step takes grows with its batch in nearly a straight line, and a refusal, which comes within a second, says how
much it would have taken. Only a batch that fits costs a whole compilation.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator_app.preflight.compiler import Program, TooLarge

_MULTIPLE = 8  # rows of a tile
_CLOSE = 0.03  # of the batch
_GROWTH = 8  # while nothing is refused
_ENOUGH = 65536  # images a core; nobody asks for more
_TRIES = 12


def largest_batch(compile_at: Callable[[int], Program | TooLarge], batch: int, first: Program | TooLarge) -> int:
    """Returns the largest batch of a core that was seen to fit, to some percent: `batch` or a multiple of 8; 0 if none.

    Args:
      compile_at: Compiles the step for a batch.
      batch: Of a core, as configured.
      first: What it became.
    """
    fits: dict[int, float] = {0: 0.0}
    refused: dict[int, float] = {}
    has, found, candidate = 0.0, first, batch
    for _ in range(_TRIES):
        if isinstance(found, TooLarge):
            refused[candidate], has = found.needs, found.has
        else:
            fits[candidate] = found.bytes
        low, high = max(fits), min(refused, default=_ENOUGH)
        if high - low <= max(_MULTIPLE, _CLOSE * high):
            break
        candidate = _next(fits, refused, has)
        found = compile_at(candidate)
    return max(fits)


def _next(fits: dict[int, float], refused: dict[int, float], has: float) -> int:
    """Returns the batch to try next, between the largest that fits and the smallest that does not."""
    low = max(fits)
    if not refused:
        return _multiple(min(low * _GROWTH, _ENOUGH), low, _ENOUGH + _MULTIPLE)
    high = min(refused)
    others = {batch: needs for batch, needs in refused.items() if batch != high} or {low: fits[low]}
    other = min(others)
    slope = (refused[high] - others[other]) / (high - other)
    guess = high - (refused[high] - has) / slope if slope > 0 else (low + high) / 2
    # Where the line leads back to what fits already, look whether a little more does.
    return _multiple(max(guess, low * (1 + _CLOSE)), low, high)


def _multiple(guess: float, low: int, high: int) -> int:
    """Returns the multiple of 8 nearest below `guess` that is above `low` and below `high`, if there is one."""
    least, most = (low // _MULTIPLE + 1) * _MULTIPLE, (high - 1) // _MULTIPLE * _MULTIPLE
    return max(least, min(int(guess) // _MULTIPLE * _MULTIPLE, most))
