"""Beam's pipelines are built in less time, as tests build hundreds of small ones."""

from __future__ import annotations

import argparse
import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators

Arguments = tuple[list[str], list[Any]]  # names and defaults


@functools.cache
def remember_signatures() -> None:
    """Lets Beam look at each function, and parse each group of options, once and not for every step of a pipeline.

    What a pipeline does is the same. Processes that tests start have Beam as it is, and so has `make test-engines`.
    """
    vars(core)["get_signature"] = decorators.get_signature = functools.lru_cache(4096)(decorators.get_signature)
    vars(core)["get_function_args_defaults"] = _remember_arguments(core.get_function_args_defaults)
    vars(userstate)["get_dofn_specs"] = _remember_specs(userstate.get_dofn_specs)
    PipelineOptions.view_as = _remember_parsed(PipelineOptions.view_as)  # type: ignore[method-assign]


def _remember_arguments(look_up: Callable[[Any], Arguments]) -> Callable[[Any], Arguments]:
    """Returns core.get_function_args_defaults, which looks at a method once for all objects of a class."""
    look_up_function = functools.lru_cache(4096)(look_up)
    look_up_method = functools.lru_cache(4096)(lambda function: look_up(types.MethodType(function, None.__class__)))

    def get_function_args_defaults(function: Any) -> Arguments:
        is_method = isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType)
        names, defaults = look_up_method(function.__func__) if is_method else look_up_function(function)
        return list(names), list(defaults)

    return get_function_args_defaults


def _remember_specs(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns userstate.get_dofn_specs, which looks at each DoFn once."""
    specs = weakref.WeakKeyDictionary[Any, Any]()

    def get_dofn_specs(dofn: Any) -> Any:
        if dofn not in specs:
            specs[dofn] = look_up(dofn)
        return specs[dofn]

    return get_dofn_specs


def _remember_parsed(view_as: Callable[..., Any]) -> Any:
    """Returns PipelineOptions.view_as, which parses the same flags once for all views of a class."""

    @functools.lru_cache(256)
    def parsed(view: Any, flags: tuple[str, ...]) -> argparse.Namespace:
        values: argparse.Namespace = view(list(flags))._visible_options
        return values

    def remembered(options: PipelineOptions, view: Any) -> Any:
        if options._flags is None:  # sys.argv
            return view_as(options, view)
        values = copy.deepcopy(parsed(view, tuple(options._flags)))
        for name, value in vars(values).items():
            options._all_options.setdefault(name, value)
        result = view.__new__(view)
        vars(result).update(_flags=options._flags, _visible_options=values, _all_options=options._all_options)
        return result

    return remembered
