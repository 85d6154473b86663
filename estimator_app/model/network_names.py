"""Names of networks, and checks of them without Keras; networks.py makes the networks.

cnn, resnet18, …            one of NAMES
keras:EfficientNetV2B0      a network of keras.applications
package.module:function     a user's own, which is imported only if the user has named it
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from typing import Any

from tpu_input.command_line.dataclass_options import check_choice

NAMES = ("cnn", "resnet18", "resnet34", "resnet50", "resnet101", "vit_s16", "vit_b16")
PREFIX = "keras:"
PATCH = {"vit_s16": 16, "vit_b16": 16}  # height and width of the patches that a network cuts its images into, in pixels


def is_users(name: str) -> bool:
    """Returns whether a network is a custom one, whose module has to be imported."""
    return ":" in name and not name.startswith(PREFIX)


def check_network(name: str, image_size: int | None = None) -> None:
    """Checks the syntax of a network's name; imports nothing of that name: it may come from an untrusted config.

    Args:
      name: See networks.find_network().
      image_size: Height and width of the images, in pixels; None if they are not known yet.

    Raises:
      ValueError: There is no such network, it is not written as package.module:function, or it takes no images of this
        size.
    """
    patch = PATCH.get(name, 1)
    if image_size and image_size % patch:
        near = max(1, round(image_size / patch)) * patch
        raise ValueError(f"image_size must be a multiple of {patch} for {name}, got {image_size}; use {near}")
    if name.startswith(PREFIX):
        from estimator_app.model.keras_applications import check_application  # imports Keras

        check_application(name)
    elif not is_users(name):
        check_choice("network", name, [*NAMES, f"{PREFIX}NAME", "package.module:function"])
    elif not re.fullmatch(r"\w[\w.-]*:\w+", name):
        raise ValueError(f"network {name!r} does not name a function; write package.module:function")


def users_network(name: str) -> Any:
    """Returns a user's own network; imports its module.

    Args:
      name: "package.module:function".

    Raises:
      ValueError: Its module cannot be imported, or the function takes other arguments.
    """
    module_name, _, function_name = name.partition(":")
    try:
        _search_current_folder()
        network = getattr(importlib.import_module(module_name), function_name)
        inspect.signature(network).bind("images", "num_classes", "training")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"network {name!r}: no module {error.name!r} in the working directory or among the installed packages"
        ) from error
    except AttributeError as error:
        raise ValueError(f"network {name!r}: {error}") from error
    except TypeError as error:
        raise ValueError(f"network {name!r}: must take (images, num_classes, training): {error}") from error
    except (Exception, SystemExit) as error:  # a custom module may raise any exception when it is imported
        raise ValueError(f"network {name!r}: {module_name} cannot be imported: {error!r}") from error
    return network


def _search_current_folder() -> None:
    """Lets modules of the current folder be imported, as python -m does, which puts it first, and a script does not.

    The folder comes last, so that a file in it cannot take the place of an installed module.
    """
    folder = os.getcwd()
    if not {"", folder} & {*sys.path}:
        sys.path.append(folder)
