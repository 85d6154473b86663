"""Files that are not images: system files, ignored ones, and those whose names say so. One rule for all file inputs.

They are listed in rejected.jsonl with a reason of their own, named when the inputs are read, and do not count against
--max_rejected. Everything else is read, whatever its name is.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
from collections.abc import Sequence

SYSTEM_FILE, OTHER_FILE, IGNORED = REASONS = ("system_file", "other_file", "ignored")

# Folders and files that operating systems, file servers and viewers create next to images; case-insensitive.
_SYSTEM_FOLDERS = {
    "__macosx": "macOS",
    ".spotlight-v100": "macOS",
    ".fseventsd": "macOS",
    ".temporaryitems": "macOS",
    ".trashes": "macOS",
    "$recycle.bin": "Windows",
    "system volume information": "Windows",
    "lost+found": "Linux",
    "@eadir": "a Synology file server",
    "#recycle": "a Synology file server",
    "#snapshot": "a Synology file server",
    ".@__thumb": "a QNAP file server",
    "@recycle": "a QNAP file server",
    "@recently-snapshot": "a QNAP file server",
    ".thumbnails": "an image viewer",
    ".picasaoriginals": "Picasa",
    "captureone": "Capture One",
    "_vti_cnf": "FrontPage",
    ".ipynb_checkpoints": "Jupyter",
}
_SYSTEM_FILES = {
    ".ds_store": "macOS",
    ".localized": "macOS",
    "icon\r": "macOS",
    "thumbs.db": "Windows",
    "ehthumbs.db": "Windows",
    "ehthumbs_vista.db": "Windows",
    "desktop.ini": "Windows",
    ".directory": "KDE",
    ".picasa.ini": "Picasa",
    "picasa.ini": "Picasa",
    "zbthumbnail.info": "ZoomBrowser",
    ".nomedia": "Android",
    ".gitattributes": "Git",
    ".gitignore": "Git",
    ".gitkeep": "Git",
    "@syno_resource": "a Synology file server",
    "synoindex_media_info": "a Synology file server",
}
# Endings that no image has.
_OTHER_ENDING = re.compile(
    r"(jsonl?|txt|csv|tsv|xml|ya?ml|toml|ini|cfg|conf|log|md|rst|html?|css|js|pdf|docx?|xlsx?|pptx?|odt|ods|rtf|"
    r"py|ipynb|sh|bat|m|mat|np[yz]|h5|hdf5|pkl|pickle|pth?|ckpt|onnx|parquet|arrow|feather|db|sqlite3?|"
    r"zip|t?gz|bz2|xz|7z|rar|zst|tfrecords?|md5|sha\d+|sig|asc|torrent|part|crdownload|lnk|url|webloc|exe|dll|"
    r"tmp|temp|bak|orig|sw[op]|[^.]*[~#]|identifier|"  # of editors, and what Windows notes of a download
    r"mp[34]|m4[av]|avi|mov|qt|mkv|webm|wmv|flv|mpe?g|3gp|mts|m2ts|wav|flac|ogg|aac|aae|xmp)",
    re.IGNORECASE,
)
_OTHER_STEMS = frozenset(
    [
        "readme",
        "license",
        "licence",
        "copying",
        "notice",
        "authors",
        "citation",
        "changelog",
        "makefile",
        "dockerfile",
        "_success",
    ]
)
_OTHER_NAME = re.compile(rf"({'|'.join(sorted(_OTHER_STEMS))})(\.\w+)?", re.IGNORECASE)
# The usual endings of images, as they are usually written.
_ENDINGS_OF_IMAGES = frozenset(["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "JPG", "JPEG", "PNG"])


def is_image_by_name(path: str) -> bool:
    """Returns whether a file may be an image, by its name."""
    _, dot, ending = path.rpartition(".")
    return not ((dot and _is_other_ending(ending)) or _OTHER_NAME.fullmatch(path[path.rfind("/") + 1 :]))


@functools.lru_cache(maxsize=1 << 12)  # most files have one of a few
def _is_other_ending(ending: str) -> bool:
    return bool(_OTHER_ENDING.fullmatch(ending))


def is_ordinary_image(path: str) -> bool:
    """Returns whether a file has the ending of an image and nothing in its path that may be a reason not to read it.

    It is quicker than the rules, which apply to all other files.
    """
    folder, _, name = path.rpartition("/")
    stem, _, ending = name.rpartition(".")
    return (
        ending in _ENDINGS_OF_IMAGES
        and path.isascii()
        and not stem.startswith(".")
        and stem.lower() not in _OTHER_STEMS
        and not (folder and _creator_of_folder(folder))
    )


def ignored_by(path: str, patterns: Sequence[str]) -> list[str]:
    """Returns the patterns of --ignore that match a path, or the name of the file or of a folder in it."""
    parts = path.split("/")
    return [
        pattern
        for pattern in patterns
        if any(fnmatch.fnmatchcase(name, pattern) for name in ([path] if "/" in pattern else parts))
    ]


def creator(path: str) -> str:
    """Returns what has created a file next to images, such as "macOS"; "" for other files."""
    folder, _, name = path.rpartition("/")
    if name.startswith("._"):  # what macOS stores for each file
        return "macOS"
    return _SYSTEM_FILES.get(name.lower()) or (_creator_of_folder(folder) if folder else "")


@functools.lru_cache(maxsize=1 << 12)  # a folder has many files
def _creator_of_folder(path: str) -> str:
    return next((_SYSTEM_FOLDERS[name] for name in path.lower().split("/") if name in _SYSTEM_FOLDERS), "")


def reason_of(path: str, patterns: Sequence[str]) -> tuple[str, str]:
    """Returns (reason, detail) of a file of a folder or an archive that is not an image; ("", "") for others.

    Args:
      path: Path within the input.
      patterns: The values of --ignore.
    """
    if patterns and (flags := [f"--ignore={pattern}" for pattern in ignored_by(path, patterns)]):
        return IGNORED, " ".join(flags)
    if made_by := creator(path):
        return SYSTEM_FILE, f"created by {made_by}"
    if not is_image_by_name(path):
        return OTHER_FILE, f"{ending(path)} is not the ending of an image's name"
    return "", ""


def ending(path: str) -> str:
    """Returns how a file is called in a count: its ending in lower case, or its name without one."""
    name = posixpath.basename(path)
    return posixpath.splitext(name)[1].lower() or name
