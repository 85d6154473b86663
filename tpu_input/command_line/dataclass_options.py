"""Options as dataclasses: a check of each field's type, and the flags that follow from the fields.

    @dataclass(frozen=True)                    add_flags() ──▶ --quality=N  JPEG quality, 1 to 100 (default: 90)
    class ImageOptions:                        check_types() ──▶ ValueError: quality must be an integer, got '90'
        '''Attributes: quality: …'''
        quality: int = 90

A field's type, its default and its description stand once, in the dataclass. Packages that do the same, tyro 1.0 and
jsonargparse 4.53, were tried on the options of a training run and not taken: both report an error in several lines,
neither knows that a default depends on the run that is resumed, neither passes unknown flags on to a Beam runner, and
jsonargparse names the flags of a nested dataclass --input.image_size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
P = ParamSpec("P")
# The annotations of arguments that checks_arguments() checks.
_ARGUMENTS: dict[Any, Any] = {
    name: hint
    for kind in (bool, int, float, str)
    for name, hint in ((kind.__name__, kind), (f"{kind.__name__} | None", kind | None))
}
# The types of a dataclass's fields, by name; cached, as resolving annotations takes a millisecond.
field_types: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def check_types(options: Any) -> None:
    """Checks that each field of a frozen dataclass has a value of the field's type; call it in __post_init__.

    Numbers of NumPy become Python's, and lists become tuples, so that options are hashable and can be written as JSON.

    Raises:
      ValueError: A value has another type, or is none of a Literal's; the message names the field.
    """
    for name, hint in field_types(type(options)).items():
        value = checked(getattr(options, name), hint, name)
        object.__setattr__(options, name, value)


def checks_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Returns a public function that checks its numbers, texts and switches as check_types() checks fields.

    Without it, 1.5 for a step or "no" for a switch would be taken for something else, or fail somewhere deep within.
    """
    signature = inspect.signature(function)
    types = {name: _ARGUMENTS.get(parameter.annotation) for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if (hint := types[name]) is not None:
                value = os.fspath(value) if isinstance(value, os.PathLike) else value
                bound.arguments[name] = checked(value, hint, name)
        return function(*bound.args, **bound.kwargs)

    return call


def from_fields(kind: type[T], fields: Mapping[str, Any]) -> T:
    """Returns an instance of a dataclass that checks its types, made of the fields of a JSON object.

    Raises:
      ValueError: A field is missing, unknown or invalid.
    """
    hints = field_types(kind)
    for name in fields:
        if name not in hints:
            raise ValueError(f"there is no option {name!r}{suggestion(name, hints)}")
    try:
        return kind(**fields)
    except TypeError as error:  # a field is missing
        raise ValueError(str(error).partition("() ")[2] or str(error)) from error


def checked(value: Any, hint: Any, name: str) -> Any:
    """Returns a value as an instance of the type `hint`, for a field, item or argument called `name`.

    Raises:
      ValueError: It has another type.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        check_choice(name, value, inner)
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        *others, hint = (member for member in inner if member is not NoneType)
        if any(isinstance(value, other) for other in others):  # such as text that names a function
            return value
        return checked(value, hint, name)
    if origin is tuple:
        return _checked_tuple(value, inner, name)
    if hint is int and not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)  # also of an array of one integer
    if hint is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            as_float = float(value)
        except OverflowError:
            raise ValueError(f"{name} must be a number that a float can hold, got a larger one") from None
        if not math.isfinite(as_float):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
        return value if isinstance(value, (int, float)) else as_float
    is_callable = origin is Callable
    if callable(value) if is_callable else hint not in (int, float) and isinstance(value, hint):
        return value
    needed = _KINDS.get(hint) or ("a function" if is_callable else f"a {hint.__name__}")
    raise ValueError(f"{name} must be {needed}, got {value!r}")


_KINDS = {int: "an integer", float: "a number", str: "text", bool: "True or False"}


def _checked_tuple(value: Any, types: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Returns a list, a tuple or an array as a tuple; types are as in tuple[X, ...] or in tuple[X, Y]."""
    if not isinstance(value, (list, tuple)) and not hasattr(value, "__array__"):
        raise ValueError(f"{name} must be a sequence, got {value!r}")
    items = tuple(value)
    if types[-1] is ...:
        types = types[:1] * len(items)
    if len(items) != len(types):
        raise ValueError(f"{name} must have {len(types)} values, got {value!r}")
    return tuple(checked(item, hint, f"each value of {name}") for item, hint in zip(items, types, strict=True))


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Checks that `value` is one of `choices`.

    Raises:
      ValueError: It is not; the message lists all choices and suggests the most similar one.
    """
    choices = tuple(choices)
    if value not in choices:
        hint = suggestion(str(value), list(map(str, choices)))
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}{hint}")


def suggestion(word: str, candidates: Collection[str]) -> str:
    """Returns "; did you mean …?" with the known word that is the closest to a mistyped one; "" if none is close."""
    close = difflib.get_close_matches(word, candidates, n=1)
    return f"; did you mean {close[0]}?" if close else ""


@dataclasses.dataclass(frozen=True)
class Flag:
    """How the flag of a field differs from what follows from the field; "" and None where it does not.

    Attributes:
      name: Name without hyphens, if it is not the field's.
      parse: Function that parses the text after the flag; raises argparse.ArgumentTypeError.
      metavar: What stands for the value in the help, if it is not the choices, N for an integer or X for a number.
      help: Description, if it is not the field's.
      default: Default as shown in the help, if it is not the field's: "the run's".
      required: Whether the flag must be given.
      unset: Whether the parser returns None if the flag is not given, although the field has a default.
    """

    name: str = ""
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    help: str = ""
    default: str = ""
    required: bool = False
    unset: bool = False


def add_flags(add_argument: Callable[..., Any], kind: type, names: Sequence[str], /, **special: Flag) -> None:
    """Adds a flag for each of the named fields of a dataclass; the parser stores it under the field's name.

    A bool becomes --name, or --no_name if its default is True. A Literal's values are the choices. The help is the
    field's text in the section "Attributes:" of the dataclass's docstring, and its default. A field without a default
    has None as its flag's: its text has to end in "Default: …", which says what is taken instead.

    Args:
      add_argument: Method of a parser or of a group of flags.
      kind: The dataclass.
      names: Names of the fields, in the order of the help.
      special: Differences, by field.
    """
    hints, docs = field_types(kind), attributes(kind)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for name in names:
        flag, hint, default = special.get(name, Flag()), hints[name], defaults[name]
        text, _, default_text = docs.get(name, "").partition(" Default: ")
        text, default_text = flag.help or _uncapitalized(text.rstrip(".")), flag.default or default_text.rstrip(".")
        label = flag.name or name
        if hint is bool:
            spelled, action = (f"--no_{label}", "store_false") if default else (f"--{label}", "store_true")
            add_argument(spelled, dest=name, action=action, help=_escaped(text))
            continue
        if default is dataclasses.MISSING or flag.unset:
            default = None
        elif not default_text:
            default_text = "none" if default is None else f"{default:g}" if hint is float else f"{default}"
        if not flag.required:
            text = f"{text} (default: {default_text})"
        choices, parse = _parser_of(hint)
        alternatives = "|".join("none" if choice is None else f"{choice}" for choice in choices or ())
        add_argument(
            f"--{label}",
            dest=name,
            type=flag.parse or parse,
            default=default,
            required=flag.required,
            choices=choices,
            metavar=flag.metavar or alternatives or {int: "N", float: "X"}.get(hint, "TEXT"),
            help=_escaped(text),
        )


def _parser_of(hint: Any) -> tuple[list[Any] | None, Callable[[str], Any] | None]:
    """Returns (choices, function that parses a flag's text) of a type."""
    is_optional = NoneType in get_args(hint)
    if is_optional:
        hint = next(member for member in get_args(hint) if member is not NoneType)
    if get_origin(hint) is Literal:
        choices = list(get_args(hint))
        if all(isinstance(choice, int) for choice in choices):
            return choices, int
        return ([*choices, None], lambda text: None if text == "none" else text) if is_optional else (choices, None)
    return None, hint if hint in (int, float) else None


def _uncapitalized(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def _escaped(text: str) -> str:
    return text.replace("%", "%%")  # argparse formats its help with the operator %


def attributes(kind: type) -> dict[str, str]:
    """Returns the descriptions in the section "Attributes:" of a docstring, each as one line, by name."""
    section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2]
    entries = re.split(r"^  (?=\w+: )", section.partition("\n\n")[0], flags=re.MULTILINE)
    pairs = (entry.partition(": ") for entry in entries[1:])
    return {name: " ".join(text.split()) for name, _, text in pairs}
