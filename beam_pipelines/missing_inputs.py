"""Local paths of a command that do not exist, found before Beam is imported: a mistyped path fails at once.

Objects of a bucket are looked for later, by what reads them, and so is everything but the existence of a path.
"""

from __future__ import annotations

import argparse

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.conversion_flags import conversion_options, named_datasets
from beam_pipelines.options import FILES_OF_CHANGES, Source
from beam_pipelines.sources.existence import check_exists, check_file


def check(flags: argparse.Namespace) -> None:
    """Checks the paths of a command.

    Raises:
      ValueError: A local path that it reads does not exist, its output cannot be written to, or the options of convert
        are wrong.
    """
    values = vars(flags)
    if output := values.get("output"):
        storage.check_writable(storage.absolute(output))
    if flags.run == "convert":
        for source in conversion_options(flags).sources:
            if not any(map(storage.is_uri, (source.path, source.image_folder))):
                check_exists(source)
            _check_files(source)
    datasets = [path for _, path in named_datasets(values.get("datasets") or [])]
    datasets += [storage.absolute(values[name]) for name in ("dataset", "before", "after") if name in values]
    for dataset in datasets:
        if _is_missing(dataset):
            complete_manifest(dataset)  # raises
    if flags.run == "rewrite":
        _check_files(Source(datasets[0], **{name: values.get(name, "") for name in FILES_OF_CHANGES}))
    # With --pairs, that the two exclude each other is what a user needs to know.
    for path in filter(_is_missing, () if values.get("pairs") else values.get("predictions", ())):
        from beam_pipelines.report.likely_wrong import ADVICE

        raise ValueError(f"{path!r} of --predictions does not exist; {ADVICE}")
    for path in filter(_is_missing, values.get("sources", ())):
        raise ValueError(f"{path!r} of --sources does not exist; it must be a folder, a .tar or a URI of inputs")


def _check_files(source: Source) -> None:
    for name, path, needed in source.files:
        if not storage.is_uri(path):
            check_file(name, path, needed)


def _is_missing(path: str) -> bool:
    return not storage.is_uri(path) and not storage.exists(storage.absolute(path))
