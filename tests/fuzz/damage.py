"""What may be wrong with a file: each damage is plain data that Hypothesis draws, and is applied to a file's path.

Positions are drawn as shares of a file, or as numbers that are taken modulo what is there, so that the same draw means
the same damage when the good file changes a little.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tpu_input.dataset_format.tfrecord import Example, frame, read_frames

LARGE = 3 << 30  # bytes of a file that has none on disk
CASE = "{case}"  # stands for the case's folder in what is drawn

# Paths lead at most three folders up, and so stay in the case's folder.
STRINGS = [
    "",
    ".",
    "..",
    "/",
    "../precious",
    "../precious/photo.jpg",
    "../../precious/photo.jpg",
    "../../../precious",
    f"{CASE}/precious",
    f"{CASE}/precious/photo.jpg",
    f"{CASE}/work/precious/1700000000",
    f"file://{CASE}/precious/photo.jpg",
    "train-00000-of-00001.tfrecord/../../precious/photo.jpg",
    "index/../../precious",
    "train-00000-of-00001.tfrecord",
    "train-00001-of-00001.tfrecord",
    "validation-00000-of-00001.tfrecord",
    "manifest.json",
    ".jpeg2tpu",
    "unknown://bucket/name",
    "http://127.0.0.1:9/photo.jpg",
    "photo.jpg#bytes=0-99999999999999",
    "evil:network",
    "os:system",
    "~",
    "*",
    "[",
    "a\0b",
    "\ud800",
    "\u202egpj.exe",
    "two\nlines\r\n",
    "tab\there",
    "'; --",
    "<script>alert(1)</script>",
    "%s%n{0}{}",
    '=HYPERLINK("http://x")',
    "!!python/object/apply:os.system ['true']",
    "nan",
    "-1",
    "1e999",
    "x" * 300,
    "x" * 100_000,
    "d/" * 3_000,
]
NUMBERS = [0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**20, -(10**20), 10**400]
FLOATS = [0.5, -0.5, 1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")]

strings = st.sampled_from(STRINGS) | st.text(max_size=20)
numbers = st.sampled_from(NUMBERS) | st.sampled_from(FLOATS) | st.integers() | st.floats()
scalars = strings | numbers | st.sampled_from([None, True, False])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
shares = st.floats(0, 1, exclude_max=True)
picks = st.integers(0, 9_999)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes of a file that are lost, changed or added."""

    how: str
    share: float
    count: int
    mask: int

    def __call__(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        start = int(self.share * len(data))
        end = min(start + self.count, len(data))
        if self.how == "cut":
            del data[start:]
        elif self.how == "empty":
            data.clear()
        elif self.how == "flip":
            for position in range(start, min(start + self.count % 8 + 1, len(data))):
                data[position] ^= self.mask
        elif self.how == "zero":
            data[start:end] = bytes(end - start)
        elif self.how == "lose":
            del data[start:end]
        elif self.how == "repeat":
            data[start:start] = data[start:end]
        else:
            data[start:start] = bytes([self.mask]) * self.count
        path.write_bytes(data)


byte_damages = st.builds(
    Bytes,
    st.sampled_from(["cut", "empty", "flip", "zero", "lose", "repeat", "insert"]),
    shares,
    st.sampled_from([1, 2, 7, 64, 512, 5_000]),
    st.integers(1, 255),
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file that is not there, or something else in its place."""

    how: str

    def __call__(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        case = next(parent for parent in path.parents if (parent / "precious").exists() and parent.name == "case")
        if self.how == "folder":
            path.mkdir()
        elif self.how == "pipe":
            os.mkfifo(path)
        elif self.how == "holes":
            with path.open("wb") as file:
                file.truncate(LARGE)
        elif self.how == "hard link":
            os.link(case / "precious" / "photo.jpg", path)
        elif self.how == "full folder":
            path.mkdir()
            (path / "somebody's").write_text("own")
        elif self.how != "gone":
            targets: dict[str, str | Path] = {
                "dead link": "nowhere",
                "link to itself": path.name,
                "link to a file": case / "precious" / "photo.jpg",
                "link to a folder": case / "precious",
            }
            os.symlink(targets[self.how], path)


entry_damages = st.builds(
    Entry,
    st.sampled_from(
        [
            "gone",
            "folder",
            "full folder",
            "dead link",
            "link to itself",
            "link to a file",
            "link to a folder",
            "hard link",
            "pipe",
            "holes",
        ]
    ),
)


@dataclasses.dataclass(frozen=True)
class Text:
    """Text that is no longer what it was, whatever format it has."""

    how: str
    line: int
    text: str

    def __call__(self, path: Path) -> None:
        case = str(_case(path))
        data = path.read_bytes().decode(errors="replace")
        lines = data.splitlines(keepends=True) or [""]
        index = self.line % len(lines)
        text = self.text.replace(CASE, case)
        if self.how == "mark":
            data = "\ufeff" + data
        elif self.how == "deep":
            data = "[" * 100_000
        elif self.how == "deep objects":
            data = '{"a":' * 50_000
        elif self.how == "twice":
            data += data
        elif self.how == "number":
            data = "1" * 5_000
        elif self.how == "carriage returns":
            data = data.replace("\n", "\r\n")
        elif self.how == "one line":
            data = data.replace("\n", " ")
        else:
            if self.how == "lose":
                del lines[index]
            elif self.how == "repeat":
                lines *= 3
            elif self.how == "swap":
                lines[index], lines[0] = lines[0], lines[index]
            elif self.how == "insert":
                lines.insert(index, text + "\n")
            elif self.how == "cell":
                cells = lines[index].rstrip("\n").split(",")
                cells[len(text) % len(cells)] = text
                lines[index] = ",".join(cells) + "\n"
            elif self.how == "value":  # of NAME: "VALUE", as in TensorFlow's `checkpoint`
                lines[index] = f'{lines[index].partition(":")[0]}: "{text}"\n'
            data = "".join(lines)
        encoding = "utf-16" if self.how == "utf-16" else "utf-8"
        path.write_bytes(data.encode(encoding, errors="surrogatepass"))


_LINE_CHANGES = ["lose", "repeat", "swap", "insert", "cell", "cell", "value", "one line"]
text_damages = st.builds(
    Text,
    st.sampled_from([*_LINE_CHANGES, "mark", "utf-16", "deep", "deep objects", "twice", "number", "carriage returns"]),
    picks,
    strings,
)


@dataclasses.dataclass(frozen=True)
class Json:
    """One value of a JSON file that is another; of a file of lines, in one of them."""

    how: str
    line: int
    node: int
    value: Any

    def __call__(self, path: Path) -> None:
        case = str(_case(path))
        text = path.read_bytes().decode(errors="replace")
        lines = text.splitlines() if path.suffix in (".jsonl", ".rows") else [text]
        index = self.line % len(lines) if lines else 0
        try:
            lines[index] = self._change(json.loads(lines[index])).replace(CASE, case)
        except (ValueError, IndexError, RecursionError):  # an earlier damage has left no JSON
            return
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")

    def _change(self, root: Any) -> str:
        nodes = [([root], 0), *_nodes(root)]
        parent, key = nodes[self.node % len(nodes)]
        if self.how == "replace":
            parent[key] = self.value
        elif self.how == "lose":
            del parent[key]
        elif self.how == "wrap":
            parent[key] = [parent[key]]
        elif self.how == "as text":
            parent[key] = str(parent[key])
        elif self.how == "negate":
            parent[key] = -parent[key] if isinstance(parent[key], int | float) else False
        elif self.how == "more":
            parent[key] = parent[key] + 1 if isinstance(parent[key], int | float) else [parent[key]] * 2
        elif self.how == "extend":
            parent[key] = f"{parent[key]}/../../precious" if isinstance(parent[key], str) else self.value
        elif self.how == "another's":
            other, other_key = nodes[(self.node * 7 + self.line) % len(nodes)]
            parent[key] = other[other_key]
        elif isinstance(parent, dict):
            parent[str(self.value)[:1000]] = parent.pop(key) if self.how == "rename" else self.value
        elif parent is nodes[0][0]:
            parent[0] = self.value
        else:
            parent.append(self.value)
        try:
            return json.dumps(nodes[0][0][0] if nodes[0][0] else None)
        except ValueError:  # a value that holds itself
            return "[]"


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (parent, key) of every value inside a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _nodes(value[key])


json_damages = st.builds(
    Json,
    st.sampled_from(
        ["replace"] * 5
        + ["lose", "lose", "rename", "add", "wrap", "as text", "negate", "more", "extend", "extend", "another's"]
    ),
    picks,
    picks,
    values,
)


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of a record in a shard, whose checksums are right all the same."""

    record: int
    feature: int
    how: str
    value: Any

    def __call__(self, path: Path) -> None:
        try:
            payloads = [payload for _, payload in read_frames(io.BytesIO(path.read_bytes()))]
        except ValueError:  # an earlier damage
            return
        if not payloads:
            return
        index = self.record % len(payloads)
        if self.how in ("no message", "nothing"):
            payloads[index] = b"\xff" * 40 if self.how == "no message" else b""
        elif self.how == "again":
            payloads.append(payloads[index])
        else:
            payloads[index] = self._change(Example.FromString(payloads[index]))
        path.write_bytes(b"".join(map(frame, payloads)))

    def _change(self, example: Any) -> bytes:
        features = example.features.feature
        names = sorted(features)
        if not names:
            return b""
        name = names[self.feature % len(names)]
        if self.how == "lose":
            del features[name]
        elif isinstance(self.value, bytes):
            features[name].bytes_list.value[:] = [self.value] * (2 if self.how == "double" else 1)
        else:
            features[name].int64_list.value[:] = [self.value] * (2 if self.how == "double" else 1)
        return bytes(example.SerializeToString(deterministic=True))


record_damages = st.builds(
    Feature,
    picks,
    picks,
    st.sampled_from(["replace"] * 6 + ["lose", "double", "no message", "nothing", "again"]),
    st.sampled_from([name.encode(errors="surrogatepass") for name in STRINGS])
    | st.sampled_from([number for number in NUMBERS if -(2**63) <= number < 2**63])
    | st.binary(max_size=40),
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a shard's index that says something else."""

    column: int
    row: int
    how: str
    value: Any

    def __call__(self, path: Path) -> None:
        try:
            table = pq.read_table(io.BytesIO(path.read_bytes()))
        except (OSError, pa.ArrowException):  # an earlier damage
            return
        if not table.num_columns:
            return
        index = self.column % table.num_columns
        name = table.column_names[index]
        cells = table.column(index).to_pylist()
        if self.how == "lose":
            table = table.remove_column(index)
        elif self.how == "rename":
            table = table.rename_columns(["other" if other == name else other for other in table.column_names])
        elif self.how == "fewer":
            table = table.slice(1)
        elif self.how == "none":
            table = table.slice(0, 0)
        else:
            if cells:
                cells[self.row % len(cells)] = self.value
            try:
                changed = pa.array(cells)
            except (pa.ArrowException, OverflowError, UnicodeError):
                changed = pa.array([str(cell).encode(errors="replace") for cell in cells])
            table = table.set_column(index, name, changed)
        pq.write_table(table, path)


column_damages = st.builds(
    Column, picks, picks, st.sampled_from(["replace"] * 5 + ["lose", "rename", "fewer", "none"]), scalars
)


@dataclasses.dataclass(frozen=True)
class Members:
    """An archive of members that no honest program would write; those of {photo} hold an image."""

    members: tuple[tuple[str, bytes, int | None, str, bytes, bytes | None], ...]

    def __call__(self, path: Path) -> None:
        photo = (_case(path) / "precious" / "photo.jpg").read_bytes()
        case = str(_case(path))
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                for name, *_, data in self.members:
                    text = name.replace(CASE, case).encode(errors="replace")[:65_535].decode(errors="ignore")
                    archive.writestr(text or "empty", photo if data is None else data)
            return
        blocks = [_member(*member, photo, case) for member in self.members]
        path.write_bytes(b"".join(blocks) + bytes(1024))


def _member(
    name: str, kind: bytes, size: int | None, link: str, magic: bytes, data: bytes | None, photo: bytes, case: str
) -> bytes:
    """Returns a member of a tar, https://www.gnu.org/software/tar/manual/html_node/Standard.html."""
    body = photo if data is None else data
    number = len(body) if size is None else size
    octal, base_256 = b"%011o\0" % number, b"\x80" + (number % 2**88).to_bytes(11, "big")
    header = bytearray(512)
    header[0:100] = name.replace(CASE, case).encode(errors="surrogatepass")[:100].ljust(100, b"\0")
    header[100:136] = b"0000644\0" + b"0000000\0" * 2 + (octal if number < 8**11 else base_256)
    header[136:148] = b"00000000000\0"
    header[156:157] = kind
    header[157:257] = link.replace(CASE, case).encode(errors="surrogatepass")[:100].ljust(100, b"\0")
    header[257:265] = magic
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + body + bytes(-len(body) % 512)


_PAX = [
    b"19 path=../x/y.jpg\n",
    b"30 size=999999999999999999999\n",
    b"99999999999 path=x\n",
    b"9 size=-1\n",
    b"x size=1\n",
    b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
    b"",
    b"\0" * 64,
]
archive_damages = st.builds(
    Members,
    st.lists(
        st.tuples(
            st.sampled_from(["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg", "c.tar", "train/a/1.jpg"]) | strings,
            st.sampled_from([b"0"] * 6 + [b"\0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"S", b"x", b"g"]),
            st.sampled_from([None] * 6 + [0, 1, 511, 2**33, 2**60, 2**63, 2**87]),
            strings,
            st.sampled_from([b"ustar\x0000", b"ustar  \0", bytes(8)]),
            st.sampled_from([None] * 6 + _PAX) | st.binary(max_size=40),
        ),
        min_size=1,
        max_size=6,
    ).map(tuple),
)


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image file that says of itself what is not so, its checksums right."""

    how: str
    width: int
    height: int

    def __call__(self, path: Path) -> None:
        if self.how == "png":
            header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
            chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
            data = b"\x89PNG\r\n\x1a\n" + b"".join(
                struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
                for name, body in chunks
            )
        elif self.how == "bmp":
            data = b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, self.width, -self.height, 1, 24, *[0] * 6)
        elif self.how == "gif":
            data = b"GIF89a" + struct.pack("<HHBBB", self.width % 65536, self.height % 65536, 0, 0, 0)
            data += b"," + struct.pack("<HHHHB", 0, 0, self.width % 65536, self.height % 65536, 0) + b"\x02\x02D\x01\0;"
        else:  # a JPEG whose frame has another size
            data = path.read_bytes()
            offset = data.find(b"\xff\xc0") + 5
            size = struct.pack(">HH", self.height % 65536, self.width % 65536)
            data = data[:offset] + size + data[offset + 4 :] if offset > 4 else data
        path.write_bytes(data)


sizes = st.sampled_from([0, 1, 2, 9, 1000, 65_535, 100_000, 2**31 - 1])
picture_damages = st.builds(Picture, st.sampled_from(["png", "bmp", "gif", "jpeg"]), sizes, sizes)


def _case(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == "case")


def several(*kinds: Any) -> Any:
    """Returns a strategy of one to three damages; those of the whole file alone."""
    return st.lists(st.one_of(*kinds), min_size=1, max_size=3) | st.lists(entry_damages, min_size=1, max_size=1)
