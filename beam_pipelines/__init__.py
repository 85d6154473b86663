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
    from beam_pipelines.convert import Converted as Converted, convert as convert
    from beam_pipelines.diff import Differences as Differences, diff as diff
    from beam_pipelines.options import ConvertOptions as ConvertOptions, Source as Source
    from beam_pipelines.pipeline_options import ConvertPipelineOptions as ConvertPipelineOptions
    from beam_pipelines.repair import repair as repair
    from beam_pipelines.report.page import write_report as write_report
    from beam_pipelines.rewrite import exporting as exporting, rewriting as rewriting
    from beam_pipelines.transforms import (
        InputFile as InputFile,
        LabelledImage as LabelledImage,
        ListInputs as ListInputs,
        ReadImages as ReadImages,
        RejectedInput as RejectedInput,
        WriteDataset as WriteDataset,
        WrittenDataset as WrittenDataset,
    )
    from beam_pipelines.verify import Findings as Findings, verify as verify
    from tpu_input.stored_images.image_options import ImageOptions as ImageOptions

__all__ = publish(
    __name__,
    {
        "beam_pipelines.convert": ["Converted", "convert"],
        "beam_pipelines.diff": ["Differences", "diff"],
        "beam_pipelines.options": ["ConvertOptions", "Source"],
        "beam_pipelines.pipeline_options": ["ConvertPipelineOptions"],
        "beam_pipelines.repair": ["repair"],
        "beam_pipelines.report.page": ["write_report"],
        "beam_pipelines.rewrite": ["exporting", "rewriting"],
        "beam_pipelines.transforms": [
            "InputFile",
            "LabelledImage",
            "ListInputs",
            "ReadImages",
            "RejectedInput",
            "WriteDataset",
            "WrittenDataset",
        ],
        "beam_pipelines.verify": ["Findings", "verify"],
        "tpu_input.stored_images.image_options": ["ImageOptions"],
    },
)
