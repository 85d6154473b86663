"""What describes an export in Parquet: the dataset card, for datasets and people, and Croissant metadata.

README.md        which files each split has, in YAML; examples and bytes, as a table
croissant.json   the same files and their columns, as mlcommons.org/croissant describes them
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tpu_input.dataset_format.manifest import ENDINGS, Manifest, Split, parse_shard_name

CARD, CROISSANT = "README.md", "croissant.json"
_PARQUET = "application/x-parquet"
_TYPES = {"string": "sc:Text", "int64": "sc:Integer", "int32": "sc:Integer", "float32": "sc:Float"}
# The context of Croissant 1.0. Its own terms have their names in the vocabulary cr.
_OTHER_TERMS = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_CROISSANT_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT = dict(sorted((_OTHER_TERMS | {term: f"cr:{term}" for term in _CROISSANT_TERMS}).items()))


def card(manifest: Manifest) -> str:
    """Returns the dataset card."""
    kind = manifest.label_kind
    lines = ["---"]
    if kind.needs_classes:
        lines += ["task_categories:", "- image-classification"]
    lines += ["configs:", "- config_name: default", "  data_files:"]
    for name, split in manifest.splits.items():
        lines += [f"  - split: {name}", f"    path: {_pattern(split)}"]
    classes = f"{len(manifest.classes):,} classes" if kind.needs_classes else "No classes"
    lines += ["---", "", f"# {_name(manifest)}", "", f"{classes}; the images have {kind.phrase}.", ""]
    lines += ["| split | examples | files | bytes |", "|---|---|---|---|"]
    for name, split in manifest.splits.items():
        lines.append(f"| {name} | {split.num_examples:,} | {len(split.shards):,} | {split.num_bytes:,} |")
    lines += ["", "`image` has the bytes of a file as they are, and `sha256` is their SHA-256. `key` is unique."]
    lines += ["", f"Exported by {manifest.written_by}.", ""]
    return "\n".join(lines)


def croissant(manifest: Manifest, features: dict[str, Any]) -> str:
    """Returns the Croissant metadata.

    Args:
      manifest: Manifest of the export.
      features: Hugging Face's features by column.
    """
    num_examples = manifest.num_examples
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": _name(manifest),
        "description": f"{num_examples:,} images, with {manifest.label_kind.phrase}.",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": f"{name}-files",
                "encodingFormat": _PARQUET,
                "includes": _pattern(split),
            }
            for name, split in manifest.splits.items()
        ],
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": name, "field": list(_fields(name, features))} for name in manifest.splits
        ],
    }
    return json.dumps(described, indent=1) + "\n"


def _fields(split: str, features: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for column, feature in features.items():
        source: dict[str, Any] = {"fileSet": {"@id": f"{split}-files"}, "extract": {"column": column}}
        field = {"@type": "cr:Field", "@id": f"{split}/{column}", "source": source}
        value = feature.get("feature", feature)
        if feature["_type"] == "Image":
            source["transform"] = {"jsonPath": "bytes"}
            yield field | {"dataType": "sc:ImageObject"}
        else:
            repeated = {"repeated": True} if "feature" in feature else {}
            kind = "sc:Integer" if value["_type"] == "ClassLabel" else _TYPES[value["dtype"]]
            yield field | {"dataType": kind} | repeated


def _name(manifest: Manifest) -> str:
    return manifest.sources[0]["path"].rpartition("/")[2]


def _pattern(split: Split) -> str:
    """Returns a pattern of the names of a split's files, and of no others, also while they replace earlier ones."""
    parts = parse_shard_name(split.shards[0].name)
    assert parts  # as every manifest has such names
    edition = f"-{parts.edition}" if parts.edition else ""
    return f"{parts.split}-*-of-{parts.num_shards:05d}{edition}.{ENDINGS['parquet']}"
