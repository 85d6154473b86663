"""What listing tests begin with: files, archives, and the rows that the first steps of the pipeline make of them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.folders import FolderSurvey, label_by_folder, label_rows, read_folders
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row, check_names, find, locate


def listed(*sources: Source | Path | str, **changes: Any) -> list[Row]:
    """What the first steps of the pipeline make of the sources."""
    inputs = tuple(source if isinstance(source, Source) else Source(str(source)) for source in sources)
    options = ConvertOptions(inputs, "/out", **changes)
    rows = [find(row) for source in inputs for row in list_rows(source, options)]
    batch = Batch.from_rows(rows)
    survey = FolderSurvey(options)
    layout = read_folders(survey.add_input(survey.create_accumulator(), batch), options)
    labelled = label_rows(batch, layout, options).rows()
    assert labelled == [label_by_folder(row, layout, options) for row in rows]
    return sorted(locate(check_names(row, options), options.sources) for row in labelled)


def reasons(rows: list[Row]) -> dict[str, str]:
    return {row.key: row.reason for row in rows}


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())


def tar(path: Path, folder: Path, *names: str, format: int = tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=format) as archive:
        for name in names:
            archive.add(folder / name, name)
