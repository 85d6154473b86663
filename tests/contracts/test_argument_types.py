"""Every public function and class says in one line which argument has a wrong type, before it does anything."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

WRONG = {"int": 1.5, "float": "1", "bool": "no", "str": 7}  # by type: a value that a user may mean
RIGHT = {"int": 1, "float": 0.5, "bool": True, "str": "text"}
MODULES = ("tpu_input", "beam_pipelines", "estimator_app", "tpu_input.augment", "tpu_input.keras")


def public() -> Iterator[tuple[str, Any]]:
    """Yields every function and class that a user may call; a new one joins by being public."""
    for name in MODULES:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        for public_name in names:
            value = getattr(module, public_name)
            is_record = dataclasses.is_dataclass(value) or (isinstance(value, type) and issubclass(value, tuple))
            if callable(value) and not public_name.startswith("_") and not is_record:
                yield f"{name}.{public_name}", value


def kinds(function: Any) -> dict[str, str]:
    """Returns the types of the arguments that are a number, a text or a switch, by name."""
    parameters = inspect.signature(function).parameters.values()
    types = {parameter.name: str(parameter.annotation).removesuffix(" | None") for parameter in parameters}
    return {name: kind for name, kind in types.items() if kind in WRONG}


CASES = [
    pytest.param(function, name, kind, id=f"{label}-{name}")
    for label, function in public()
    for name, kind in kinds(function).items()
]


@pytest.mark.parametrize(("function", "name", "kind"), CASES)
def test_an_argument_of_a_wrong_type_is_refused_by_its_name(function, name, kind):
    types = kinds(function)
    arguments = {
        parameter.name: RIGHT.get(types.get(parameter.name, ""), object())
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {WRONG[kind]!r}$"):
        function(**arguments | {name: WRONG[kind]})


def test_the_registries_have_members():
    assert len(CASES) > 50
