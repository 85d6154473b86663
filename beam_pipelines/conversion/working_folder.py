"""DATASET/.jpeg2tpu: working files of an unfinished conversion, removed when it is complete.

.jpeg2tpu/lock                                held by the process that converts into this dataset (output_folder.py)
.jpeg2tpu/replaced.json                       manifest of the dataset that --overwrite replaces, while it does
.jpeg2tpu/FINGERPRINT/conversion.json         command, sources and options, shown while the conversion is unfinished
.jpeg2tpu/FINGERPRINT/plan.json               plan of a conversion of these inputs and options
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.rows     inputs of a shard, one file per shard
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.data-ID  shard as one attempt wrote it; moved into place when all are written
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.index-ID its index
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.receipt  receipt of the first attempt that was complete, which it names
.jpeg2tpu/images-ID                           images that a pipeline of a user's own hands to WriteDataset
.jpeg2tpu/checks-ID.jsonl                     what workers of verify have found
.jpeg2tpu/NAME.part-ID                        temporary file that is being written

Several attempts at a shard may run at the same time, and a late one may end after the dataset is complete: an engine
retries what is slow, and a process may be suspended. Each attempt writes files of its own, and a receipt is never
replaced. Therefore nothing late can change what a receipt names, nor a shard that is in place.

Files with other names do not belong to this package: they are never deleted, and a conversion refuses to start if
there are any.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from beam_pipelines import storage
from beam_pipelines.conversion import row_lines
from beam_pipelines.conversion.output_folder import (
    LOCK_NAME,
    dataset_files,
    edition_beside,
    every_shard,
    is_dataset_file,
    list_dataset,
    optional_files,
    read_manifest,
    shard_files,
)
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.receipts import ATTEMPT, Receipt
from beam_pipelines.conversion.row_lines import Unit
from beam_pipelines.options import WORK_NAME
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.records import MAX_MANIFEST_BYTES, Manifest, in_edition, parse_shard_name

REPLACED_NAME = "replaced.json"
_FOLDER = re.compile(r"[0-9a-f]{16}")  # working folder of a plan
_PART = re.compile(r"\.part-[0-9a-f]{32}$")  # see storage/local.py, create()
_NEW_PLAN = re.compile(r"plan-[0-9a-f]{32}\.json")  # see planning.make_plan()
_IMAGES = re.compile(r"images-[0-9a-f]{32}")
_CHECKS = re.compile(r"checks-[0-9a-f]{32}\.jsonl")
_MAX_BYTES = 1 << 31  # limit of a working file: the rows of about seven million inputs, if all are in one shard
_Read = TypeVar("_Read")


def is_working_file(path: str) -> bool:
    """Returns whether a path, within .jpeg2tpu, has a name that a conversion or a repair uses."""
    final_path = _PART.sub("", path)
    folder, _, name = final_path.rpartition("/")
    if final_path != path and not folder:
        is_renamed_later = is_dataset_file(name) or is_dataset_file(f"index/{name}") or _is_attempt(name)
        return is_renamed_later or _is_on_top(name)
    if not folder:
        return name == LOCK_NAME or _is_on_top(name)
    if not _FOLDER.fullmatch(folder):
        return False
    shard, _, kind = name.rpartition(".")
    is_of_shard = kind in ("rows", "receipt") and parse_shard_name(shard)
    return name in ("plan.json", "conversion.json") or bool(is_of_shard) or _is_attempt(name)


def _is_on_top(name: str) -> bool:
    return name == REPLACED_NAME or any(kind.fullmatch(name) for kind in (_NEW_PLAN, _IMAGES, _CHECKS))


def _is_attempt(name: str) -> bool:
    """Returns whether a file name belongs to a shard or an index that an attempt has written."""
    shard, _, kind = name.rpartition(".")
    kind, _, attempt = kind.partition("-")
    return kind in ("data", "index") and parse_shard_name(shard) is not None and bool(ATTEMPT.fullmatch(attempt))


def is_in_working_folder(path: str) -> bool:
    """Returns whether a path, within the dataset, belongs to a working file."""
    return path.startswith(f"{WORK_NAME}/") and is_working_file(path.removeprefix(f"{WORK_NAME}/"))


@dataclasses.dataclass(frozen=True)
class WorkingFolder:
    """The working folder of one plan.

    Attributes:
      output: Folder or URI of the dataset.
      name: Name of the folder in OUTPUT/.jpeg2tpu: the first 16 characters of the plan's fingerprint.
    """

    output: str
    name: str

    @classmethod
    def for_plan(cls, output: str, plan: Plan) -> WorkingFolder:
        """Returns the working folder of a plan."""
        return cls(output, plan.fingerprint[:16])

    @property
    def folder(self) -> str:
        return f"{self.output}/{WORK_NAME}/{self.name}"

    def attempt_paths(self, shard: str, attempt: str) -> tuple[str, str]:
        """Returns the paths, within the output, of the shard and of its index that an attempt writes."""
        path = f"{WORK_NAME}/{self.name}/{shard}"
        return f"{path}.data-{attempt}", f"{path}.index-{attempt}"

    def write_plan(self, plan: Plan) -> None:
        with storage.create(f"{self.folder}/plan.json") as file:
            file.write(plan.to_json().encode())

    def write_conversion(self, conversion: Conversion) -> None:
        with storage.create(f"{self.folder}/conversion.json") as file:
            file.write(json.dumps(dataclasses.asdict(conversion)).encode())

    def read_conversion(self) -> Conversion | None:
        """Returns the command and its options; None if they were not stored, as by an earlier version."""
        path = f"{self.folder}/conversion.json"
        return self._checked(path, Conversion.from_json) if storage.exists(path) else None

    def is_open(self) -> bool:
        """Returns whether the conversion is running or can be continued: whether its plan exists."""
        return storage.exists(f"{self.folder}/plan.json")

    def read_plan(self) -> Plan:
        """Returns the plan; the last one read is cached.

        Raises:
          ValueError: It is damaged, or the plan of another conversion.
        """
        return _read_plan(self)

    def shard_names(self, plan: Plan | None = None) -> list[str]:
        """Returns the names that the shards of its plan may have in the dataset, without and with an edition.

        Args:
          plan: The plan, if it may not be stored yet; None to read it.

        Raises:
          ValueError: The plan is damaged.
        """
        bare_names = (plan or self.read_plan()).shard_names
        return [*bare_names, *(in_edition(name, self.name[:8]) for name in bare_names)]

    def write_rows(self, shard: str, batches: Iterable[Batch]) -> None:
        """Writes the inputs of a shard, which have URIs."""
        with storage.create(f"{self.folder}/{shard}.rows") as file:
            file.writelines(map(row_lines.lines_of, batches))

    def read_units(self, shard: str, most_rows: int) -> Iterator[Unit]:
        """Yields the inputs of a shard in units of at most `most_rows` inputs.

        Raises:
          ValueError: They are damaged.
        """
        path = f"{self.folder}/{shard}.rows"
        content = storage.read_bytes(path, most=_MAX_BYTES)
        units = row_lines.units(content, most_rows)
        while unit := self._explained(path, lambda _: next(units, None), content):
            yield unit

    def read_rows(self, shard: str) -> Iterator[Row]:
        """Yields the inputs of a shard; raises as read_units()."""
        for unit in self.read_units(shard, row_lines.MOST_ROWS):
            yield from row_lines.rows_of(unit)

    def num_rows(self, plan: Plan, shards: list[str]) -> int:
        """Returns the number of inputs of these shards; reads their rows unless they are all shards of the plan."""
        if len(shards) == len(plan.shard_names):
            return plan.num_inputs
        return sum(
            data.count(b"\n")
            for data in storage.read_files((f"{self.folder}/{shard}.rows" for shard in shards), _MAX_BYTES)
        )

    def unwritten(self, output: Output | None = None) -> list[str]:
        """Returns the names of the shards that have to be written.

        These are shards without a receipt, shards whose files are missing or differ from the receipt, and shards with
        an input that could not be read, which is retried.

        Args:
          output: What its output holds; None to look now.
        """
        output = output or Output(self.output)
        present, edition = output.files, edition_beside(output.manifest, self.name)
        shards = self.read_plan().shard_names
        candidates = [shard for shard in shards if f"{WORK_NAME}/{self.name}/{shard}.receipt" in present]
        complete = {
            receipt.name
            for receipt in self.read_receipts(candidates)
            if not any(rejection.reason == "unreadable" for rejection in receipt.rejected)
            and None not in self.places(receipt, edition, present)
        }
        return [shard for shard in shards if shard not in complete]

    def places(
        self, receipt: Receipt, edition: str, present: dict[str, tuple[int, str]]
    ) -> list[tuple[str, str] | None]:
        """Returns (path now, path in the dataset) of the shard of a receipt and of its index, within the output.

        It has None for a file that is at neither place with the size and the checksum of the receipt, and is empty if
        the receipt has no records, and so no files.
        """
        if not receipt.num_examples:
            return []
        shard = in_edition(receipt.name, edition)
        sizes = (receipt.num_bytes, receipt.crc32c), (receipt.index_bytes, receipt.index_crc32c)
        places: list[tuple[str, str] | None] = []
        paths = self.attempt_paths(receipt.name, receipt.attempt)
        # An export has no index.
        for attempt, target, (num_bytes, checksum) in zip(paths, shard_files(shard), sizes, strict=False):
            same = [path for path in (attempt, target) if present.get(path) in ((num_bytes, checksum), (num_bytes, ""))]
            places.append((same[0], target) if same else None)
        return places

    def write_receipt(self, receipt: Receipt) -> bool:
        """Writes the receipt of an attempt; returns whether it is the first of its shard, else nothing is written."""
        try:
            with storage.create(f"{self.folder}/{receipt.name}.receipt", new=True) as file:
                file.write(receipt.to_json().encode())
        except FileExistsError:
            return False
        return True

    def reopen(self, output: Output | None = None) -> list[str]:
        """Returns what unwritten() does, and removes the receipts of these shards, as a receipt is never replaced."""
        output = output or Output(self.output)
        unwritten = self.unwritten(output)
        stale = [shard for shard in unwritten if f"{WORK_NAME}/{self.name}/{shard}.receipt" in output.files]
        storage.delete([f"{self.folder}/{shard}.receipt" for shard in stale])
        return unwritten

    def remove_attempt(self, shard: str, attempt: str) -> None:
        """Removes the files of an attempt, and the folders that become empty."""
        storage.delete([f"{self.output}/{path}" for path in self.attempt_paths(shard, attempt)])
        storage.delete_empty([self.folder, f"{self.output}/{WORK_NAME}", self.output])

    def read_receipts(self, shards: Iterable[str], num_classes: int | None = None) -> Iterator[Receipt]:
        """Yields the receipts of `shards`, which must all have one.

        Args:
          shards: Names of shards.
          num_classes: Number of classes of the dataset; None for its plan's.

        Raises:
          ValueError: One is damaged, or belongs to another shard or conversion.
        """
        shards = list(shards)
        num_classes = len(self.read_plan().classes) if num_classes is None else num_classes
        paths = [f"{self.folder}/{shard}.receipt" for shard in shards]
        for shard, path, content in zip(shards, paths, storage.read_files(paths, _MAX_BYTES), strict=True):
            read = functools.partial(Receipt.from_json, shard=shard, num_classes=num_classes)
            yield self._explained(path, read, content)

    def receipts_of(self, plan: Plan) -> dict[str, list[Receipt]]:
        """Returns the receipts of all shards of its plan, by split; raises as read_receipts()."""
        return {split: list(self.read_receipts(names)) for split, names in plan.shards.items()}

    def _checked(self, path: str, read: Callable[[bytes], _Read]) -> _Read:
        return self._explained(path, read, storage.read_bytes(path, most=_MAX_BYTES))

    def _explained(self, path: str, read: Callable[[bytes], _Read], content: bytes) -> _Read:
        """Returns read(content); adds the path of the file and advice to the message of a ValueError."""
        try:
            return read(content)
        except ValueError as error:
            raise ValueError(
                f"{path!r} is damaged or belongs to another conversion: {error}; remove the folder {self.folder!r} "
                "and rerun the same command"
            ) from error


@dataclasses.dataclass(frozen=True)
class Output:
    """What an output folder holds: each part is read once, when it is first asked for, and handed along.

    Whoever holds the lock reads it when the command begins. What the command itself writes is not in it.

    Attributes:
      path: Folder or URI.
    """

    path: str

    @functools.cached_property
    def manifest(self) -> Manifest | None:
        """Manifest of the complete dataset, None if there is none; raises ValueError if it cannot be read."""
        return read_manifest(self.path)

    @functools.cached_property
    def files(self) -> dict[str, tuple[int, str]]:
        """{path within the folder: (bytes, checksum)} of every file, as storage.list_checksums() has them."""
        return {path: (num_bytes, checksum) for path, num_bytes, checksum in storage.list_checksums(self.path)}

    def others(self) -> set[str]:
        """Returns the paths of the files that are not working files."""
        return {path for path in self.files if not is_in_working_folder(path)}

    def unfinished(self) -> set[WorkingFolder]:
        """Returns the working folders that hold a plan."""
        parts = [path.split("/") for path in self.files if is_in_working_folder(path)]
        return {WorkingFolder(self.path, path[1]) for path in parts if len(path) == 3 and path[2] == "plan.json"}


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Command and options of an unfinished conversion, for messages.

    Attributes:
      command: Command and its arguments on the command line; empty if it was called from Python.
      folder: Working directory of the command.
      sources: Inputs, with the fields of options.Source.
      options: Options that determine the content of the shards, as returned by ConvertOptions.shaping().
    """

    command: list[str]
    folder: str
    sources: list[dict[str, str]]
    options: dict[str, object]

    @classmethod
    def from_json(cls, content: bytes) -> Conversion:
        """Returns the content of conversion.json.

        Raises:
          ValueError: It is damaged, or its command has unprintable characters, such as terminal control codes.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        fields = json_fields.fields(json_fields.load(content), "a conversion", names)
        command = [json_fields.text(word, "an argument") for word in json_fields.array(fields["command"], "command")]
        folder = json_fields.text(fields["folder"], "folder")
        if unprintable := [word for word in (*command, folder) if not word.isprintable()]:
            raise ValueError(f"its command contains unprintable characters: {json_fields.short_repr(unprintable[0])}")
        sources = [
            {name: json_fields.text(text, name) for name, text in json_fields.mapping(source, "a source").items()}
            for source in json_fields.array(fields["sources"], "sources")
        ]
        return cls(command, folder, sources, json_fields.mapping(fields["options"], "options"))


@functools.lru_cache(maxsize=1)
def _read_plan(folder: WorkingFolder) -> Plan:
    def read(content: bytes) -> Plan:
        plan = Plan.from_json(content)
        if WorkingFolder.for_plan(folder.output, plan) != folder:
            raise ValueError(f"it is the plan of another conversion, {plan.fingerprint[:16]}")
        return plan

    return folder._checked(f"{folder.folder}/plan.json", read)


def unfinished(output: str) -> set[WorkingFolder]:
    """Returns the working folders that hold a plan."""
    parts = [path.split("/") for path in working_files(output)]
    return {WorkingFolder(output, path[0]) for path in parts if len(path) == 2 and path[1] == "plan.json"}


def files_in_transit(output: str) -> set[str]:
    """Returns the paths, within the output, of files that may temporarily belong to no complete dataset.

    These are files that an unfinished conversion has begun to move into place, and files of a replaced dataset that
    are being removed.

    Raises:
      ValueError: A plan or the manifest of the replaced dataset is damaged.
    """
    names = [name for folder in unfinished(output) for name in folder.shard_names()]
    if replaced := read_replaced(output):
        names += every_shard(replaced)
    return dataset_files(names) | optional_files(names) if names else set()


def read_replaced(output: str) -> Manifest | None:
    """Returns the manifest of the dataset that a conversion replaces, None if none is being replaced.

    Raises:
      ValueError: It is damaged.
    """
    path = f"{output}/{WORK_NAME}/{REPLACED_NAME}"
    try:
        replaced = Manifest.from_json(storage.read_bytes(path, most=MAX_MANIFEST_BYTES), path, allow_export=True)
        return dataclasses.replace(replaced, path=output)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{path!r}, which lists the files to remove, is damaged; remove it: {error}") from error


def new_images_path(output: str) -> str:
    """Returns the path of a new file for images that a pipeline hands over: see transforms.WriteDataset."""
    return f"{output}/{WORK_NAME}/images-{uuid.uuid4().hex}"


def new_checks_path() -> str:
    """Returns the path, within a dataset, of a new file for what workers of verify find."""
    return f"{WORK_NAME}/checks-{uuid.uuid4().hex}.jsonl"


def remove_checks(dataset: str, path: str) -> None:
    """Removes a file from new_checks_path(), and the working folder if it becomes empty."""
    storage.delete([f"{dataset}/{path}"])
    storage.delete_empty([f"{dataset}/{WORK_NAME}"])


def remove(output: str) -> None:
    """Removes all working files, by the one who holds the lock, which is one of them."""
    remove_chosen(output, lambda path: True)


def remove_but_lock(output: str) -> None:
    """Removes all working files but the lock, which a command may hold."""
    remove_chosen(output, lambda path: path != LOCK_NAME)


def remove_lock(output: str) -> None:
    """Removes the lock, by the one who holds it, and the folders that become empty."""
    remove_chosen(output, lambda path: path == LOCK_NAME)


def remove_one(folder: WorkingFolder) -> None:
    """Removes one plan's working files."""
    remove_chosen(folder.output, lambda path: path.startswith(f"{folder.name}/"))


def working_files(output: str) -> list[str]:
    """Returns the paths, within .jpeg2tpu, of the files with names of working files."""
    return [path for path, _ in list_dataset(f"{output}/{WORK_NAME}") if is_working_file(path)]


def remove_chosen(output: str, is_chosen: Callable[[str], bool]) -> None:
    """Removes the chosen working files, and the folders that become empty."""
    root = f"{output}/{WORK_NAME}"
    paths = list(filter(is_chosen, working_files(output)))
    storage.delete([f"{root}/{path}" for path in paths])
    folders = {path.rpartition("/")[0] for path in paths}
    storage.delete_empty([f"{root}/{folder}" for folder in sorted(folders - {""}, reverse=True)])
    storage.delete_empty([root])


def tidy(output: str, keep: set[WorkingFolder]) -> None:
    """Removes what a refused conversion leaves: working files outside `keep`, and folders that become empty."""
    protected = {folder.name for folder in keep} | ({LOCK_NAME} if keep else set())
    remove_chosen(output, lambda path: path.split("/")[0] not in protected)
    storage.delete_empty([output])
