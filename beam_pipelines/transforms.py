"""Transforms for pipelines of one's own: list inputs, read and check images, write an exact dataset.

    Source ──ListInputs──▶ InputFile ──ReadImages──▶ LabelledImage ──WriteDataset──▶ WrittenDataset
                │              └───────────┼───────────────────────────────┘
                └──────────────────────────┴──▶ RejectedInput, with a reason ──▶ DATASET/rejected.jsonl

Elements are named tuples with a Beam schema, so that SqlTransform, RunInference or ReadFromParquet can stand before,
between and after; rows of another type with the same fields are understood. WriteDataset is the conversion of
convert(): the same plan, shards, receipts and commit, here as steps of one pipeline. Image bytes never pass through a
shuffle: WriteDataset keeps them next to the dataset until the shards are written. Files are read where they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, get_type_hints

import apache_beam as beam
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import AsIter, AsSingleton, PBegin, PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines import storage
from beam_pipelines.conversion import output_checks, working_folder
from beam_pipelines.conversion.commit import commit_once
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.planning import beam_steps
from beam_pipelines.conversion.planning.plan_survey import add_remarks
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.conversion.working_folder import Output, WorkingFolder
from beam_pipelines.options import ConvertOptions, ImageOptions, LabelType, Source
from beam_pipelines.runners import phases, workers
from beam_pipelines.runners.executors import threads_or_inline
from beam_pipelines.runners.wheel import versions
from beam_pipelines.sources import listing
from beam_pipelines.sources.folders import Layout
from beam_pipelines.sources.naming import Numbering, name_classes
from beam_pipelines.sources.read_ahead import map_images
from beam_pipelines.sources.row_columns import BATCH_ROWS, Batch, batches_of
from beam_pipelines.sources.rows import Row, find, label_row, locate
from beam_pipelines.sources.unpacking import NOWHERE
from tpu_input.command_line import print_line
from tpu_input.command_line.cores import num_cores
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.dataset_format.decode_limits import too_many_bytes
from tpu_input.stored_images.check import CheckedImage, Rejected, check_image

# Options that WriteDataset does not have.
_INPUT_OPTIONS = ("sources", "output", "splits_required", "extend", "prune", "parent")
_BATCH = 256  # files that one call reads, many of them at the same time
_HANDED_OVER_BYTES = 100_000_000  # of images in one file next to the dataset


class InputFile(NamedTuple):
    """A file that may be an image.

    Attributes:
      key: Path within the input, which names the example.
      uri: Local path or gs:// URI; with "#bytes=BEGIN-END" for the member of an archive.
      label: Class name; with label_type="classes", names with ";" between them.
      split: Name of the split; "" to choose it by a hash of group or key.
      group: Name of a group of inputs that share a split; "" for none.
      num_bytes: Size of the file; 0 to look it up when it is written.
      version: Version of the file when it was listed: see storage.look(); 0 if unknown.
      number: Precedence among files with the same key: the one with the smallest number is written.
    """

    key: str
    uri: str
    label: str
    split: str = ""
    group: str = ""
    num_bytes: int = 0
    version: int = 0
    number: int = 0


class LabelledImage(NamedTuple):
    """An image with its label.

    Attributes:
      key: Name of the example, unique in the dataset; of two images with one key, one is rejected.
      image: Bytes of a JPEG, or of another image file that WriteDataset re-encodes.
      label: Class name; with label_type="classes", names with ";" between them.
      split: Name of the split; "" to choose it by a hash of group or key.
      group: Name of a group of images that share a split; "" for none.
    """

    key: str
    image: bytes
    label: str
    split: str = ""
    group: str = ""


class RejectedInput(NamedTuple):
    """An input that is in no shard.

    Attributes:
      key: Name of the example.
      uri: Where it was read; "" for an image that was made in the pipeline.
      reason: Reason code, as in rejected.jsonl.
      detail: Description of the problem.
    """

    key: str
    uri: str
    reason: str
    detail: str


class WrittenDataset(NamedTuple):
    """A dataset that is complete.

    Attributes:
      path: Folder or URI.
      fingerprint: Fingerprint of its manifest.
      num_examples: Number of records of all splits.
      num_inputs: Number of inputs, with those that were rejected.
      is_new: Whether this pipeline has written it; False if it was complete before.
    """

    path: str
    fingerprint: str
    num_examples: int
    num_inputs: int
    is_new: bool


for _type in (InputFile, LabelledImage, RejectedInput, WrittenDataset):
    # Beam reads a schema's field types here, and cannot resolve the strings that __future__.annotations leaves.
    _type.__annotations__ = get_type_hints(_type)
    registry.register_coder(_type, RowCoder)


class ListInputs(beam.PTransform[PBegin, Any]):
    """Lists class folders, archives and lists as the command line does: (InputFile, RejectedInput).

    What is rejected here are files that cannot be images, such as .DS_Store, or lines of a list without a file.
    """

    @checks_arguments
    def __init__(self, *sources: Source, output: str = NOWHERE, label_type: LabelType = "class") -> None:
        """Checks that the sources exist.

        Args:
          *sources: Inputs; if there are several, each needs a split of its own.
          output: Folder or URI of the dataset that WriteDataset makes of them, for compressed archives and Parquet:
            their images are copied to its working files, which WriteDataset removes at the end.
          label_type: As of ConvertOptions; with "classes", the label of an InputFile has ";" between names.

        Raises:
          ValueError: A source does not exist, or cannot be reached.
        """
        super().__init__()
        if not sources:
            raise ValueError("ListInputs needs at least one Source")
        self._options, remarks = listing.recognise(ConvertOptions(sources, output, label_type=label_type))
        for source in self._options.sources:
            listing.check_source(source, self._options)
        for remark in remarks:
            print_line(remark, sys.stderr)

    def expand(self, pipeline: PBegin) -> tuple[PCollection[InputFile], PCollection[RejectedInput]]:
        batches = beam_steps.list_labelled(pipeline.pipeline, self._options)
        rows = batches | "Rows of inputs" >> beam.FlatMap(lambda batch: batch.rows())
        usable = rows | "Usable inputs" >> beam.Filter(lambda row: not row.reason)
        rejected = rows | "Other inputs" >> beam.Filter(lambda row: bool(row.reason))
        return (
            usable | "To files" >> beam.Map(_file_of, self._options).with_output_types(InputFile),
            rejected | "To rejected inputs" >> beam.Map(_rejected_of, self._options).with_output_types(RejectedInput),
        )

    def display_data(self) -> dict[str, Any]:
        return {f"source_{number}": source.path for number, source in enumerate(self._options.sources)}


def _file_of(row: Row, options: ConvertOptions) -> InputFile:
    row = locate(row, options.sources)
    label = options.label_separator.join(options.label_kind.names(row.label))
    return InputFile(row.key, row.uri, label, row.split, row.group, row.num_bytes, row.version, row.number)


def _rejected_of(row: Row, options: ConvertOptions) -> RejectedInput:
    row = locate(row, options.sources)
    return RejectedInput(row.key, row.uri, row.reason, row.detail)


class ReadImages(beam.PTransform[PCollection[InputFile], Any]):
    """Reads files and checks each in one decode, as the command line does: (LabelledImage, RejectedInput).

    The image is the file itself if trainers can read it as it is, else a JPEG made of it (orientation, PNG, CMYK, color
    profile; a smaller one with ImageOptions.resize_shorter). A file that cannot be used is rejected with a reason.
    """

    def __init__(self, images: ImageOptions | None = None) -> None:
        """Makes the transform.

        Args:
          images: Checks and changes of images; None for the defaults.
        """
        super().__init__()
        self._images = images or ImageOptions()

    def expand(self, files: PCollection[InputFile]) -> tuple[PCollection[LabelledImage], PCollection[RejectedInput]]:
        batches = files | "Batch files" >> beam.BatchElements(_BATCH, _BATCH)
        num_decoders = workers.num_decoders(files.pipeline.options)
        read = batches | "Read images" >> beam.FlatMap(_read, self._images, num_decoders, versions()).with_outputs(
            "rejected", main="images"
        )
        return (
            read.images | "Images" >> beam.Map(lambda image: image).with_output_types(LabelledImage),
            read.rejected | "Rejected" >> beam.Map(lambda rejected: rejected).with_output_types(RejectedInput),
        )

    def display_data(self) -> dict[str, Any]:
        return _displayed(dataclasses.asdict(self._images))


def _read(files: list[Any], images: ImageOptions, num_decoders: int, launched_with: dict[str, str]) -> Iterator[Any]:
    workers.check_versions(launched_with)
    rows = list(map(_row_of_file, files))

    def check(_: Row, data: bytes) -> tuple[CheckedImage, float]:
        begin = time.perf_counter()
        return check_image(data, images, with_statistics=False), time.perf_counter() - begin

    for row, checked_or_rejected in map_images(rows, check, num_decoders or num_cores()):
        if isinstance(checked_or_rejected, Rejected):
            Metrics.counter("jpeg2tpu", f"rejected_{checked_or_rejected.reason}").inc()
            yield beam.pvalue.TaggedOutput(
                "rejected", RejectedInput(row.key, row.uri, checked_or_rejected.reason, checked_or_rejected.detail)
            )
        else:
            checked, seconds = checked_or_rejected
            Metrics.distribution("jpeg2tpu", "image_milliseconds").update(round(1000 * seconds))
            Metrics.distribution("jpeg2tpu", "image_bytes").update(len(checked.encoded))
            Metrics.distribution("jpeg2tpu", "image_pixels").update(checked.height * checked.width)
            yield LabelledImage(row.key, checked.encoded, row.label, row.split, row.group)


class WriteDataset(beam.PTransform[Any, PCollection[WrittenDataset]]):
    """Writes images as a dataset: shards, index, lengths.parquet, rejected.jsonl and, last, manifest.json.

    Its input is a PCollection of LabelledImage, or of rows with these fields; or a tuple of it and of PCollections of
    RejectedInput, which are listed in rejected.jsonl and count against max_rejected. Its output is one WrittenDataset.

    An InputFile, or a row with a `uri` instead of an `image`, is read and checked when its shard is written, as by
    the command line. So files that are chosen or labeled in the pipeline, but not changed, are neither read twice nor
    copied.

    The dataset is a function of the images and options, whatever the runner and its retries. If the job fails or is
    stopped, another run of the pipeline writes only the shards that are missing. A complete dataset is not written
    again. Another one in the output is an error, unless `overwrite` is given; then it is replaced at the end, in one
    moment.
    """

    def __init__(self, output: str | ConvertOptions, **options: Any) -> None:
        """Checks the options and the output.

        Args:
          output: Folder or gs:// URI of the dataset; or all options of a conversion, whose sources are ignored.
          **options: Fields of ConvertOptions, but those that are about inputs.

        Raises:
          ValueError: An option is out of range, or the output holds something else.
        """
        super().__init__()
        names = [field.name for field in dataclasses.fields(ConvertOptions) if field.name not in _INPUT_OPTIONS]
        if unknown := sorted(options.keys() - set(names)):
            raise ValueError(f"WriteDataset has no option {unknown[0]!r}; its options are {', '.join(names)}")
        if isinstance(output, ConvertOptions):
            self._options = dataclasses.replace(output, sources=(), splits_required=False, **options)
        else:
            self._options = ConvertOptions((), output, **options)
        output_checks.check_output(self._options)

    def expand(self, inputs: Any) -> PCollection[WrittenDataset]:
        images, *rejected = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        batches = [images | "Rows of images" >> beam.ParDo(_ToRows(self._options)).with_output_types(Batch)]
        for number, collection in enumerate(rejected):
            lines = collection | f"Batch rejected inputs {number}" >> beam.BatchElements(BATCH_ROWS, BATCH_ROWS)
            rows = beam.Map(_rows_of_rejected).with_output_types(Batch)
            batches.append(lines | f"Rejected inputs {number}" >> rows)
        sized = beam_steps.plan_images(batches | "Every input" >> beam.Flatten(), self._options)
        dataset: PCollection[WrittenDataset] = sized | WriteRows(self._options)
        return dataset

    def display_data(self) -> dict[str, Any]:
        return _displayed({"output": self._options.output} | self._options.shaping())


def _rows_of_rejected(inputs: list[Any]) -> Batch:
    return Batch.from_rows(
        [Row(rejected.key, rejected.uri).reject(rejected.reason, rejected.detail) for rejected in inputs]
    )


class _ToRows(beam.DoFn):
    """Writes images to files next to the dataset, one after another, and yields their rows; LabelledImage → Batch.

    The writers of shards read them there. A retried bundle writes another file, and the rows of the first one are gone.
    An InputFile is a row already.
    """

    def __init__(self, options: ConvertOptions) -> None:
        self._options, self._output = options, options.output

    def start_bundle(self) -> None:
        self._input_rows = list[Row]()
        self._open()

    def _open(self) -> None:
        self._path, self._rows, self._num_bytes = working_folder.new_images_path(self._output), list[Row](), 0
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def process(self, element: Any) -> Iterator[Batch]:
        try:
            if hasattr(element, "uri") and not hasattr(element, "image"):
                self._input_rows.append(_row_of_file(element, self._options))
                if len(self._input_rows) == BATCH_ROWS:
                    yield Batch.from_rows(self._input_rows)
                    self._input_rows = []
                return
            key, data, label, split, group = _values(element, LabelledImage)
        except ValueError:
            self._file.close()  # the bundle fails, and nothing else ends it
            raise
        begin = self._num_bytes
        self._file.write(data)
        self._num_bytes += len(data)
        # Of two images with one key, the one with the smaller hash is kept, whatever the order in which they come.
        number = int.from_bytes(hashlib.sha256(data).digest()[:6], "big")
        uri = storage.slice_uri(self._path, begin, len(data))
        row = _labelled(Row(key, uri, "", split, group, len(data), number=number), label, self._options)
        if not row.reason and (why := too_many_bytes(len(data))):
            row = row.reject("too_large", why)
        self._rows.append(row)
        if self._num_bytes >= _HANDED_OVER_BYTES:
            yield from batches_of(self._close())
            self._open()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(GlobalWindows.windowed_value_at_end_of_window, batches_of([*self._input_rows, *self._close()]))

    def _close(self) -> list[Row]:
        with self._file:
            if self._rows:
                self._file.seek(0)
                with storage.create(self._path) as file:
                    while piece := self._file.read(1 << 24):
                        file.write(piece)
        return self._rows


def _row_of_file(file: Any, options: ConvertOptions | None = None) -> Row:
    """Returns the row of an InputFile, without options with its label as it is; raises as _values()."""
    key, uri, label, split, group, num_bytes, version, number = _values(file, InputFile)
    row = Row(key, storage.absolute(uri), label, split, group, num_bytes, version=version, number=number)
    row = _labelled(row, label, options) if options else row
    return row if row.reason else find(row)


def _labelled(row: Row, label: str, options: ConvertOptions) -> Row:
    return name_classes(label_row(row, label, options), Numbering(), options)


def _values(element: Any, kind: Any) -> tuple[Any, ...]:
    """Returns the fields of `kind`, a NamedTuple, of an element of any type; those that are missing are the defaults.

    Raises:
      ValueError: It has not the fields of `kind`, or one of another type.
    """
    values = []
    for name in kind._fields:
        value = getattr(element, name, None)
        value = kind._field_defaults.get(name) if value is None else value
        if not isinstance(value, expected := kind.__annotations__[name]):
            got = type(value).__name__ if hasattr(element, name) else "none"
            raise ValueError(
                f"an element must have the fields of {kind.__name__}, {name} as {expected.__name__}; got {got} in the "
                f"element of key {getattr(element, 'key', None)!r}"
            )
        values.append(value)
    return tuple(values)


class WriteRows(beam.PTransform[PCollection[Batch], PCollection[WrittenDataset]]):
    """Plans, writes and commits a dataset of batches of labeled and sized rows, in one pipeline.

    batches ──assign──▶ plan, a file of rows per shard ──▶ names of shards ──write──▶ receipts ──commit──▶ manifest
    """

    def __init__(
        self,
        options: ConvertOptions,
        command: Sequence[str] = (),
        layout: PCollection[Layout] | None = None,
    ) -> None:
        """Makes the transform.

        Args:
          options: Options of the conversion.
          command: Command and its arguments on the command line, for messages while the conversion is unfinished.
          layout: How the folders of the inputs were interpreted; workers print its remarks.
        """
        super().__init__()
        sources = [source.fields() for source in options.sources]
        self._options, self._layout = options, layout
        self._conversion = working_folder.Conversion(list(command), os.getcwd(), sources, options.shaping())

    def expand(self, batches: PCollection[Batch]) -> PCollection[WrittenDataset]:
        plan, planned = beam_steps.assign(batches, self._options)
        if self._layout:
            plan = plan | "Add remarks" >> beam.Map(add_remarks, AsSingleton(self._layout), self._options)
        shards = (
            plan
            # The side input makes this step wait until the rows of every shard are written.
            | "Begin"
            >> beam.FlatMap(_begin, self._options, self._conversion, AsIter(planned)).with_output_types(str)  # shard
            | "Spread shards" >> beam.Reshuffle()
        )
        num_decoders = workers.num_decoders(batches.pipeline.options)
        written_shards = shards | "Write shards" >> beam.Map(  # shard
            _write_shard, AsSingleton(plan), self._options, num_decoders, versions()
        )
        committed: PCollection[WrittenDataset] = plan | "Commit" >> beam.Map(
            _commit, self._options, AsIter(written_shards)
        ).with_output_types(WrittenDataset)
        return committed


def _begin(
    plan: Plan, options: ConvertOptions, conversion: working_folder.Conversion, planned: Iterable[str]
) -> Iterator[str]:
    """Yields the names of the shards that have to be written; raises ValueError if the dataset must not be written."""
    for _ in planned:  # some runners fill a side input only when it is read
        pass
    phases.counter("images_outdated").inc(plan.num_outdated)
    output_checks.remove_replaced(options.output)
    output = Output(options.output)
    output_checks.check_plan(options, plan)
    for remark in plan.remarks:
        print_line(remark, sys.stderr)
    if output_checks.is_complete(output_checks.existing(options, plan, output), plan):
        return
    folder = WorkingFolder.for_plan(options.output, plan)
    folder.write_conversion(conversion)
    folder.write_plan(plan)
    unwritten = folder.reopen()
    phases.counter("shards_resumed").inc(len(plan.shard_names) - len(unwritten))
    if phases.is_shown():  # in a runner within the command's process
        phases.begin("writing", folder.num_rows(plan, unwritten))
    yield from unwritten


def _write_shard(
    shard: str, plan: Plan, options: ConvertOptions, num_decoders: int, launched_with: dict[str, str]
) -> str:
    workers.check_versions(launched_with)
    folder = WorkingFolder.for_plan(options.output, plan)
    with threads_or_inline(num_decoders or num_cores()) as executor:
        receipt = write_planned(shard, folder, options, executor, phases.count)
    for reason, count in Counter(rejection.reason for rejection in receipt.rejected).items() if receipt else ():
        phases.counter(f"rejected_{reason}").inc(count)
    return shard


def _commit(plan: Plan, options: ConvertOptions, shards: Iterable[str]) -> WrittenDataset:
    count = sum(1 for _ in shards)
    manifest = commit_once(options, plan)
    output_checks.remove_replaced(options.output)
    working_folder.remove_but_lock(options.output)
    num_examples = manifest.num_examples
    return WrittenDataset(manifest.path, manifest.fingerprint, num_examples, manifest.num_inputs, count > 0)


def _displayed(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns display data of options: numbers and text as they are, everything else as text."""
    return {name: value if isinstance(value, (str, int, float)) else str(value) for name, value in fields.items()}
