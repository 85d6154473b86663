"""Wheel of this package, built from the installed files, which the workers of an engine install.

    installed jpeg2tpu (from a wheel, an sdist, or editable) ──▶ FOLDER/jpeg2tpu-VERSION-py3-none-any.whl

Beam would build an sdist from setup.py, which an installed package does not have, and each worker would build it again.
It requires the installed versions of the packages that the bytes of a dataset depend on, so that workers have them too.
A wheel is an archive of the modules and their metadata, which are all installed
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/), and is installed by unpacking it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

NAME = "jpeg2tpu"
# Packages whose other versions may write other bytes: re-encoded images, statistics, Parquet files.
_BYTES_DEPEND_ON = ("numpy", "pillow", "pyarrow", "simplejpeg")
_HEIC = "pillow-heif"  # of the extra heic
_WHEEL = "Wheel-Version: 1.0\nGenerator: jpeg2tpu\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def versions() -> dict[str, str]:
    """Returns the installed version of each package that the bytes of a dataset depend on, by its name."""
    installed = {package: importlib.metadata.version(package) for package in _BYTES_DEPEND_ON}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed[_HEIC] = importlib.metadata.version(_HEIC)
    return installed


def write_wheel(folder: str) -> str:
    """Writes the wheel into `folder`; returns its path.

    The build is deterministic: the same modules give the same bytes, so that engines can cache the wheel.

    Raises:
      ValueError: jpeg2tpu runs from a source tree without being installed.
    """
    try:
        installed = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"{NAME} is not installed, so workers cannot install it; run: pip install .") from None
    info = f"{NAME}-{installed.version}.dist-info"
    path = f"{folder}/{NAME}-{installed.version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in [*_modules(installed), *_metadata(installed, info)]:
            wheel.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join([*record, f"{info}/RECORD,,\n"]))
    return path


def _modules(installed: importlib.metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    """Yields (name in the wheel, content) of every file of the packages and modules that this process would import."""
    for package in (installed.read_text("top_level.txt") or "").split():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin and not spec.submodule_search_locations:  # a module that is a file
            yield Path(spec.origin).name, Path(spec.origin).read_bytes()
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _metadata(installed: importlib.metadata.Distribution, info: str) -> Iterator[tuple[str, bytes]]:
    # In the egg-info of a source tree, the file has the other name.
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    for name, text in (
        ("METADATA", _pinned(metadata or "")),
        ("top_level.txt", installed.read_text("top_level.txt")),
        ("WHEEL", _WHEEL),
    ):
        yield f"{info}/{name}", (text or "").encode()


def _pinned(metadata: str) -> str:
    """Returns the metadata with requirements of exactly the installed versions() instead of ranges."""
    for package, version in versions().items():
        line = re.compile(rf"^Requires-Dist: {package}\b[^;\n]*$", re.MULTILINE)
        metadata = line.sub(f"Requires-Dist: {package}=={version}", metadata)
    if _HEIC in versions():  # workers need the extra that this machine has
        metadata = metadata.replace("\n\n", f"\nRequires-Dist: {_HEIC}=={versions()[_HEIC]}\n\n", 1)
    return metadata
