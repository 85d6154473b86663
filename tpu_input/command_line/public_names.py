"""Public names of a package that are imported on first use (PEP 562), so that importing the package is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tpu_input.command_line.distribution import needing_extras


def publish(package: str, modules: Mapping[str, Sequence[str]]) -> list[str]:
    """Makes names of other modules names of a package, and returns them; called in the package's __init__.py.

    A public function may have the name of the module that it is in: `beam_pipelines.convert` is the function. When a
    module is imported, Python sets it as an attribute of its package; for these names, that is ignored.

    Args:
      package: __name__ of the package.
      modules: Names of each module.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    class Package(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            with needing_extras(f"{package}.{name}"):
                value = getattr(importlib.import_module(homes[name]), name)
            super().__setattr__(name, value)
            return value

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in homes and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[Any, ...]:
            # Beam pickles the globals of a user's function; cloudpickle knows modules, but none of a class of its own.
            return importlib.import_module, (package,)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *homes})

    sys.modules[package].__class__ = Package
    return sorted(homes)
