"""The layout: what may import what, how many entries a folder has, and the public names of each package."""

from __future__ import annotations

import ast
import collections
import importlib
import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")
# What a package may import of the others; no other package of ours.
ALLOWED_IMPORTS = {
    "beam_pipelines": ("tpu_input.dataset_format", "tpu_input.command_line", "tpu_input.stored_images"),
    "tpu_input": (),
    "estimator_app": ("tpu_input",),
}
FORBIDDEN = {"beam_pipelines": {"tensorflow"}, "tpu_input": {"apache_beam"}, "estimator_app": {"apache_beam"}}
# On the top floor of a package are its commands, which folders do not import; but each folder takes its options from
# there, and a benchmark of the input times the very input_fns.
LEAVES = {"config", "options"}
COMMAND_OF_FOLDER = {("tpu_input.benchmark", "tpu_input.train")}
TRAINERS = tuple(f"estimator_app.trainers.{name}" for name in ("tpu_estimator", "tf_distribute", "jax"))
JAX_MODULES = (
    "estimator_app.trainers.jax",
    "estimator_app.saved_model.stablehlo",
    "estimator_app.preflight.libtpu_program",
)
REPEATED = {"__init__", "__main__", "commands", "config", "train", "evaluate", "predict", "export"}
WITHOUT_TENSORFLOW = (
    "beam_pipelines",
    "tpu_input/dataset_format",
    "tpu_input/command_line",
    "tpu_input/stored_images",
    "tpu_input/without_tensorflow",
)
# What is loaded for --help, or by those who read records without TensorFlow, or whose device runs JAX.
BEFORE_TENSORFLOW = (
    *("tpu_input", "tpu_input.__main__", "tpu_input.datasets", "tpu_input.record_source"),
    *("tpu_input.example_source", "tpu_input.pipeline.device", "tpu_input.pipeline.hosts", "tpu_input.pipeline.order"),
    *("tpu_input.storage.byte_ranges", "tpu_input.storage.positions", "estimator_app.__main__"),
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for package in PACKAGES for path in (ROOT / package).glob("**/*.py")}


def imported(module: str) -> Iterator[str]:
    """Yields what a module imports, wherever in the file: modules, and names as MODULE.NAME."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_module(name: str) -> str | None:
    """Returns the module of ours that MODULE or MODULE.NAME is or lies in."""
    return name if name in MODULES else name.rpartition(".")[0] if name.rpartition(".")[0] in MODULES else None


def folder(module: str) -> str:
    """Returns PACKAGE.FOLDER of a module in a folder; of one on the top floor, itself."""
    return ".".join(module.split(".")[:2])


IMPORTS = {
    module: {target for name in imported(module) if (target := own_module(name))} - {module, *PACKAGES}
    for module in MODULES
}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of nodes that can be reached from each other (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in edges:
        if node not in number:
            visit(node)
    return groups


def test_circles_finds_one():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_import_circle_between_files_or_folders():
    assert circles(IMPORTS) == []
    between: dict[str, set[str]] = collections.defaultdict(set)
    for module, others in IMPORTS.items():
        between[folder(module)] |= {folder(other) for other in others} - {folder(module)}
    assert circles(between) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_design_allows(package):
    for module in (module for module in MODULES if module.split(".")[0] == package):
        for name in imported(module):
            assert name.split(".")[0] not in FORBIDDEN[package], f"{module} imports {name}"
            if name.split(".")[0] in {*PACKAGES} - {package}:
                assert name.startswith(ALLOWED_IMPORTS[package]), f"{module} imports {name}"


def test_a_folder_imports_no_file_of_the_top_floor_but_options():
    wrong = {
        (module, other)
        for module, others in IMPORTS.items()
        for other in others
        if len(module.split(".")) > 2
        and other.split(".")[0] == module.split(".")[0]
        and len(other.split(".")) == 2
        and MODULES[other].name != "__init__.py"
        and other.split(".")[1] not in LEAVES
        and (folder(module), other) not in COMMAND_OF_FOLDER
    }
    assert not wrong


def test_the_trainers_do_not_import_each_other():
    for one, other in itertools.permutations(TRAINERS, 2):
        imports = {(module, name) for module in MODULES if module.startswith(one) for name in imported(module)}
        assert not [(module, name) for module, name in imports if name.startswith(other)]


def test_the_tpu_s_compiler_is_reached_through_files_alone():
    program = "estimator_app.preflight.libtpu_program"
    importers = {module for module in MODULES for name in imported(module) if name.split(".")[0] == "jax"}
    assert program in importers
    assert not [module for module in importers if not module.startswith(JAX_MODULES)]
    assert not [module for module, others in IMPORTS.items() if program in others]
    assert not {name.split(".")[0] for name in imported(program)} & {*PACKAGES, "tensorflow"}


def test_module_names_do_not_repeat():
    names = collections.Counter(
        path.stem
        for module, path in MODULES.items()
        if not module.startswith(TRAINERS[1:]) and path.stem not in REPEATED
    )
    assert not [name for name, count in names.items() if count > 1]


def modules_below(folders: Iterable[str]) -> list[str]:
    return sorted(
        module
        for module, path in MODULES.items()
        if str(path.relative_to(ROOT)).startswith(tuple(f"{folder}/" for folder in folders))
    )


def test_what_is_free_of_tensorflow_can_be_imported_where_there_is_none():
    modules = [*modules_below(WITHOUT_TENSORFLOW), *BEFORE_TENSORFLOW]
    if not importlib.util.find_spec("obstore"):  # of the extra stores, as make test installs it
        for name in ("hub", "hub_api", "object_stores"):
            modules.remove(f"beam_pipelines.storage.{name}")
    code = f"import importlib, sys; sys.modules['tensorflow'] = None; [importlib.import_module(m) for m in {modules}]"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_cores_are_counted_in_one_place():
    """The affinity alone does not know the CPU quota of a container."""
    assert [module for module, path in MODULES.items() if "sched_getaffinity" in path.read_text()] == [
        "tpu_input.command_line.cores"
    ]


# Below the executors: requests to a storage, and files that are read while others are decoded. Beside them: shards that
# are written at the same time, each with units of its own, what ticks while a command works, the end of a request that
# takes too long, and locks for the bytes that several threads unpack together and for what they ask a store for.
WITH_THREADS_OF_THEIR_OWN = {
    "beam_pipelines.conversion.shard_owners",
    "beam_pipelines.conversion.shard_writing",
    "beam_pipelines.runners.executors",
    "beam_pipelines.runners.phases",
    "beam_pipelines.runners.worker_output",
    "beam_pipelines.sources.read_ahead",
    "beam_pipelines.sources.unpacking",
    "beam_pipelines.sources.url_download",
    "beam_pipelines.sources.url_reading",
    "beam_pipelines.storage",
    "beam_pipelines.storage.gcs",
    "beam_pipelines.storage.gcs_lock",
    "beam_pipelines.storage.hub",
    "beam_pipelines.storage.hub_api",
}


def test_work_in_parallel_goes_through_the_executors():
    parallel = {"concurrent.futures", "multiprocessing", "threading"}
    parallel |= {"concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"}
    own_threads = {
        module
        for module in MODULES
        if module.startswith("beam_pipelines.") and any(name in parallel for name in imported(module))
    }
    assert own_threads == WITH_THREADS_OF_THEIR_OWN


def test_worker_processes_load_neither_beam_nor_arrow():
    """Both take time and memory, and Arrow starts a thread, with which the server of the workers must not fork."""
    code = "import sys; import beam_pipelines.conversion.units; print({'apache_beam', 'pyarrow'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "set()\n"


def test_a_conversion_loads_neither_the_client_of_urls_nor_the_page_of_a_report():
    """They take a fifth of its start, and most conversions use neither."""
    code = "import sys; import beam_pipelines.commands; print({'urllib3', 'jinja2'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "set()\n"


@pytest.mark.long
def test_the_tests_of_tpu_input_need_no_beam():
    code = """
import sys
sys.modules["apache_beam"] = None
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/tpu_input", "-k", "test_records or of_an_input_fn"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


PUBLIC = {
    "beam_pipelines": [
        "ConvertOptions",
        "ConvertPipelineOptions",
        "Converted",
        "Differences",
        "Findings",
        "ImageOptions",
        "InputFile",
        "LabelledImage",
        "ListInputs",
        "ReadImages",
        "RejectedInput",
        "Source",
        "WriteDataset",
        "WrittenDataset",
        "convert",
        "diff",
        "exporting",
        "repair",
        "rewriting",
        "verify",
        "write_report",
    ],
    "tpu_input": [
        "EvalSource",
        "InputConfig",
        "Manifest",
        "Order",
        "RecordSource",
        "RecordSpec",
        "TrainSource",
        "as_numpy",
        "eval_steps",
        "find_undecodable",
        "from_infeed",
        "load",
        "make_eval_input_fn",
        "make_predict_input_fn",
        "make_serving_input_receiver_fn",
        "make_train_input_fn",
        "manifest_from_shards",
        "params_from_context",
        "read_manifest",
        "training_order",
    ],
    "estimator_app": [
        "Callback",
        "Classifier",
        "Evaluation",
        "Finished",
        "Metrics",
        "Prediction",
        "Tpu",
        "TrainConfig",
        "evaluate",
        "export",
        "load_classifier",
        "predict",
        "predict_dataset",
        "predict_folds",
        "train",
        "watch",
    ],
}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_of_a_package_are_pinned_listed_and_documented(package):
    module = importlib.import_module(package)
    assert module.__all__ == PUBLIC[package]
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__name__ == name
        assert value.__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'make_magic'"):
        _ = module.make_magic


def test_a_public_function_is_not_hidden_by_the_module_of_its_name():
    code = """
import beam_pipelines, estimator_app
import beam_pipelines.convert, beam_pipelines.verify, estimator_app.train
assert callable(beam_pipelines.convert) and callable(beam_pipelines.verify) and callable(estimator_app.train)
from beam_pipelines.convert import Converted
assert Converted is beam_pipelines.Converted
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_nothing_heavy(package):
    code = f"import sys, {package}; print({{'tensorflow', 'apache_beam', 'numpy', 'PIL'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout == "set()\n"


# Modules of other projects that are not part of their documented API, and the files of ours that may import them.
PRIVATE = {
    ("tensorflow.python", "tensorflow_estimator"): {"estimator_app.runtime.tensorflow_private"},
    ("jax._src",): {"estimator_app.trainers.jax.jax_private", "estimator_app.preflight.libtpu_program"},
    ("apache_beam.runners", "apache_beam.internal"): {"beam_pipelines.runners.beam_private"},
}


@pytest.mark.parametrize(("prefixes", "users"), PRIVATE.items())
def test_private_parts_of_other_projects_are_touched_in_one_file(prefixes, users):
    assert {module for module in MODULES if any(name.startswith(prefixes) for name in imported(module))} == users
