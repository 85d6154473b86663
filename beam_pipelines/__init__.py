"""Beam pipelines that convert class folders or lists of JPEGs to TFRecord shards and a manifest.

    options = beam_pipelines.ConvertOptions((beam_pipelines.Source("flowers"),), "flowers_tfrecords")
    manifest = beam_pipelines.convert(options).manifest

The names below are imported on first use, so that importing the package does not import Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_input.command_line.distribution import __version__ as __version__
from tpu_input.command_line.public_names import publish

if TYPE_CHECKING:
    from beam_pipelines.convert import Converted, convert
    from beam_pipelines.diff import Differences, diff
    from beam_pipelines.options import ConvertOptions, Source
    from beam_pipelines.pipeline_options import ConvertPipelineOptions
    from beam_pipelines.repair import repair
    from beam_pipelines.report.page import write_report
    from beam_pipelines.rewrite import exporting, rewriting
    from beam_pipelines.transforms import (
        InputFile,
        LabelledImage,
        ListInputs,
        ReadImages,
        RejectedInput,
        WriteDataset,
        WrittenDataset,
    )
    from beam_pipelines.verify import Findings, verify
    from tpu_input.stored_images.image_options import ImageOptions

__all__ = [
    "ConvertOptions",
    "ConvertPipelineOptions",
    "Converted",
    "Differences",
    "Findings",
    "ImageOptions",
    "InputFile",
    "LabelledImage",
    "ListInputs",
    "ReadImages",
    "RejectedInput",
    "Source",
    "WriteDataset",
    "WrittenDataset",
    "convert",
    "diff",
    "exporting",
    "repair",
    "rewriting",
    "verify",
    "write_report",
]

publish(
    __name__,
    {
        "Converted": "beam_pipelines.convert",
        "ConvertOptions": "beam_pipelines.options",
        "ConvertPipelineOptions": "beam_pipelines.pipeline_options",
        "Differences": "beam_pipelines.diff",
        "Findings": "beam_pipelines.verify",
        "ImageOptions": "tpu_input.stored_images.image_options",
        "InputFile": "beam_pipelines.transforms",
        "LabelledImage": "beam_pipelines.transforms",
        "ListInputs": "beam_pipelines.transforms",
        "ReadImages": "beam_pipelines.transforms",
        "RejectedInput": "beam_pipelines.transforms",
        "Source": "beam_pipelines.options",
        "WriteDataset": "beam_pipelines.transforms",
        "WrittenDataset": "beam_pipelines.transforms",
        "convert": "beam_pipelines.convert",
        "diff": "beam_pipelines.diff",
        "exporting": "beam_pipelines.rewrite",
        "repair": "beam_pipelines.repair",
        "rewriting": "beam_pipelines.rewrite",
        "verify": "beam_pipelines.verify",
        "write_report": "beam_pipelines.report.page",
    },
)
