"""The flags of `convert` among Beam's own, for the main program of a user's pipeline.

Nothing else imports this module: Beam gathers the flags of all classes of options that are imported, and ends a program
in which two of them have a flag in common, such as --input.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.conversion_flags import add_conversion_flags, conversion_options
from beam_pipelines.options import ConvertOptions

_RENAMED = {"--labels": "--class_names"}  # Dataflow's runner has a flag of the first name


class ConvertPipelineOptions(PipelineOptions):
    """View of Beam's options with the flags of `jpeg2tpu convert` that are about inputs, images and the dataset.

    They have the same names and values, but --labels is --class_names, as Dataflow has a flag --labels.

        options = PipelineOptions(argv)
        conversion = options.view_as(ConvertPipelineOptions).convert_options()
    """

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        def add(flag: str, **settings: Any) -> argparse.Action:
            # Values stay text here, as Beam sends them to engines as JSON; convert_options() parses and checks them.
            arguments = {name: value for name, value in settings.items() if name in ("action", "help")}
            flag = _RENAMED.get(flag, flag)
            return parser.add_argument(flag, dest=_stored_as(flag), default=None, **arguments)

        add_conversion_flags(lambda _: add)

    def convert_options(self) -> ConvertOptions:
        """Returns the options of the conversion; without --input, they have no sources.

        Raises:
          ValueError: --output is missing, or a value cannot be parsed or is out of range.
        """
        words: list[str] = []

        def add(flag: str, **settings: Any) -> argparse.Action:
            value = getattr(self, _stored_as(_RENAMED.get(flag, flag)))
            for item in value if isinstance(value, list) else [] if value is None else [value]:
                words.append(flag if item is True else f"{flag}={item}")
            return parser.add_argument(flag, **settings | {"required": flag == "--output"})

        parser = _Parser()
        add_conversion_flags(lambda _: add)
        return conversion_options(parser.parse_args(words))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _stored_as(flag: str) -> str:
    return f"conversion_{flag.removeprefix('--')}"  # Beam keeps the values of all classes in one dictionary
