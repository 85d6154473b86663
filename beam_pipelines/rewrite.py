"""Datasets made of datasets: relabel, merge, filter, split and reshard, each a conversion of the examples of others.

    datasets ──index──▶ rows, changed ──plan, write, commit──▶ another dataset, or an export of one

The bytes of the images stay as they are. Only the headers of JPEGs are read, and the images that the statistics of a
split include are decoded. Like any conversion, it can be interrupted and resumed, and run by a Beam runner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.options import Check, ConvertOptions, ImageOptions, Source
from beam_pipelines.repair import options_of
from beam_pipelines.shard_formats.all_formats import EXPORTS
from beam_pipelines.shard_formats.shard_format import NAMES
from beam_pipelines.sources.dataset_examples import class_set, labels_of, new_names
from beam_pipelines.sources.existence import check_files_beside
from beam_pipelines.sources.rows import fault_of_name, stands_for_none
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.dataset_format.class_names import canonical
from tpu_input.dataset_format.label_kinds import LabelKind, merged_kind
from tpu_input.dataset_format.records import Manifest


@checks_arguments
def rewriting(
    sources: Sequence[Source], output: str, add_classes: bool = False, check: Check = "header", **changed: Any
) -> ConvertOptions:
    """Returns the options of the conversion that makes one dataset of the examples of others.

    Classes are the first dataset's in their order, then the new ones of the next. Everything else is as in the
    first dataset: seed, size and number of shards, first label. Pass them to convert().

    Args:
      sources: The datasets, with changes; if there are several, each has a name of its own.
      output: Folder or URI of the new dataset.
      add_classes: Whether new_labels of a source may name classes that no dataset has; they are added in sorted order.
      check: As of ImageOptions.
      **changed: Fields of ConvertOptions that differ from the first dataset's.

    Raises:
      ValueError: There is no dataset, it cannot be read, or a new label is the name of no class.
    """
    manifests = [complete_manifest(source.path) for source in sources]
    for source in sources:
        check_files_beside(source)
    usual = options_of(manifests[0])
    classes = dict.fromkeys(canonical(name) for manifest in manifests for name in manifest.classes)
    kind = _kind(sources, manifests)
    new = {
        name
        for source in sources
        if source.new_labels
        for label in labels_of(source.new_labels).values()
        for name in new_names(label, kind)
    }
    if unknown := sorted(new - set(classes)):
        if not add_classes:
            raise ValueError(
                f"{unknown[0]!r} is none of the {len(classes):,} classes of {sources[0].path!r}; correct the label, or "
                "use --add_classes if it is a new class"
            )
        for name in unknown:
            if stands_for_none(name):
                raise ValueError(
                    f"the new class {name!r} stands for no label in many lists; leave its images out with filter"
                )
            if fault_of_name(name, kind):
                advice = "separate several classes by ;" if kind.is_list else "an image has one label in this dataset"
                raise ValueError(f"the new class {name!r} does not look like the name of one class; {advice}")
        classes |= dict.fromkeys(unknown)
    if any(manifest.features != manifests[0].features for manifest in manifests):
        schemas = "; ".join(f"{manifest.path!r} has {', '.join(manifest.features) or 'none'}" for manifest in manifests)
        raise ValueError(
            f"the records of the datasets have different features: {schemas}; convert their inputs again with the same "
            "--feature"
        )
    class_names = [name for name in classes if all(_keeps_class(name, source) for source in sources)]
    options = dataclasses.replace(
        usual,
        sources=tuple(sources),
        output=output,
        labels=tuple(class_names),
        dedup="none",
        overwrite=False,
        label_type=kind.name,
        stratify=False,
        group_by="",
        validation=0.0,
        images=_as_stored([options_of(manifest).images for manifest in manifests], check),
        num_shards=() if len(manifests) > 1 else _num_shards(usual, manifests[0]),
    )
    return dataclasses.replace(options, **changed)


@checks_arguments
def exporting(dataset: str, output: str, shard_format: str, only_split: str = "", **changed: Any) -> ConvertOptions:
    """Returns the options of the conversion that exports a dataset for another library. Pass them to convert().

    Args:
      dataset: Folder or URI of the dataset.
      output: Folder or URI of the export.
      shard_format: Name of one of EXPORTS.
      only_split: Split to export; "" for all.
      **changed: Fields of ConvertOptions that differ from the dataset's.

    Raises:
      ValueError: There is no dataset or split, the library of the format is missing, or a feature has a name that the
        format needs.
    """
    if shard_format not in EXPORTS:
        raise ValueError(f"format must be {', '.join(EXPORTS)}, got {shard_format!r}")
    EXPORTS[shard_format].check()
    source = Source(dataset, only_split=only_split)
    manifest = complete_manifest(source.path)
    if only_split:
        manifest.split(only_split)
    if reserved := [name for name in manifest.features if name in NAMES]:
        raise ValueError(
            f"the feature {reserved[0]!r} of {source.path!r} has the name of a part of exported records; convert its "
            "inputs again with another name for it"
        )
    return rewriting([source], output, format=shard_format, **changed)


def _kind(sources: Sequence[Source], manifests: list[Manifest]) -> LabelKind:
    """Returns the kind of labels that the examples of all datasets can have.

    Raises:
      ValueError: There is none, or labels are to be changed that there are not.
    """
    kind = merged_kind(manifest.label_kind for manifest in manifests)
    if not kind:
        kinds = "; ".join(f"{manifest.path!r} has {manifest.label_kind.phrase}" for manifest in manifests)
        raise ValueError(
            f"images with labels and without cannot be in one dataset: {kinds}; leave out the one, or convert it again "
            "with the labels of the other"
        )
    for source, manifest in zip(sources, manifests, strict=True):
        if not kind.needs_classes and (source.new_labels or source.only_classes or source.without_classes):
            raise ValueError(
                f"the images of {manifest.path!r} have no labels that could be changed or chosen; convert them from a "
                "list with the labels"
            )
    return kind


def _keeps_class(class_name: str, source: Source) -> bool:
    if source.only_classes and class_name not in class_set(source.only_classes):
        return False
    return not source.without_classes or class_name not in class_set(source.without_classes)


def _as_stored(options: list[ImageOptions], check: Check) -> ImageOptions:
    """Returns the options with which images that were converted with any of these are stored again unchanged."""
    ignored = any(image_options.color_profiles == "ignore" for image_options in options)
    return ImageOptions(
        quality=options[0].quality,
        max_pixels=max(image_options.max_pixels for image_options in options),
        color_profiles="ignore" if ignored else "convert",
        check=check,
        lossless=any(image_options.lossless for image_options in options),
    )


def _num_shards(options: ConvertOptions, manifest: Manifest) -> tuple[tuple[str, int], ...]:
    return tuple((split, count) for split in manifest.splits if (count := options.shards_of(split)))
