"""The search for the largest batch, with a compiler of pure arithmetic."""

from __future__ import annotations

import pytest

from estimator_app.preflight.compile import largest_batch
from estimator_app.preflight.compiler import Program, TooLarge

GB = 1e9


def machine(fixed: float, an_image: float, has: float):
    """Returns a compiler whose programs take fixed + batch * an_image bytes, and a list of the (batch, fits) asked."""
    attempts = []

    def compile_at(batch):
        takes = int(fixed + batch * an_image)
        attempts.append((batch, takes <= has))
        memory = {"argument": takes, "output": 0, "alias": 0, "temp": 0, "generated_code": 0}
        return Program(1, 1, memory, "") if takes <= has else TooLarge(takes, has)

    return compile_at, attempts


@pytest.mark.parametrize(
    ("batch", "fixed", "an_image", "largest"),
    [
        (256, 2 * GB, 0.02 * GB, 687),
        (4096, 2 * GB, 0.02 * GB, 687),
        (100, 2 * GB, 0.02 * GB, 687),
        (1, 0, 0.1 * GB, 157),
        (672, 2 * GB, 0.02 * GB, 687),
        (256, 15.9 * GB, 0.02 * GB, 0),
    ],
)
def test_the_largest_batch_is_found_with_few_that_fit(batch, fixed, an_image, largest):
    compile_at, attempts = machine(fixed, an_image, 15.75 * GB)
    batch_size = largest_batch(compile_at, batch, compile_at(batch))
    assert largest - max(8, 0.03 * largest) <= batch_size <= largest
    assert batch_size % 8 == 0
    assert sum(fits for _, fits in attempts) <= 4
    assert len(attempts) <= 8
    assert all(number % 8 == 0 for number, _ in attempts[1:])


def test_a_batch_that_alone_fits_stays():
    compile_at, _ = machine(0, 2 * GB, 15.75 * GB)
    assert largest_batch(compile_at, 7, compile_at(7)) == 7


def test_a_network_that_always_fits_ends_the_search():
    compile_at, attempts = machine(0, 1, 15.75 * GB)
    assert largest_batch(compile_at, 16, compile_at(16)) == 65536
    assert len(attempts) < 8
