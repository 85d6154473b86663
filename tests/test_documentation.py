"""The docs: what the code makes is up to date, every page has a test, every command parses, every link exists."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from documentation import pictures, prose, reference
from support.pages import ROOT, commands, ours, unwrapped
from tpu_input.command_line.jpeg2tpu import COMMANDS
from tpu_input.dataset_format.lengths import LENGTHS_NAME
from tpu_input.dataset_format.record_spec import LABELS_KEY
from tpu_input.dataset_format.records import FEATURES

DOCS = ROOT / "docs"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in DOCS.glob("**/*.md"))]

# The test that runs the commands and code blocks of a page. What no test runs needs servers or clouds of others, or
# downloads: its commands are parsed below.
TESTS = {
    "README.md": "test_tutorials.py",
    "docs/benchmarks.md": "test_benchmark_results.py",
    "docs/cloud.md": "test_guides.py",
    "docs/clusters.md": "beam_pipelines/test_job_server.py",
    "docs/conversion.md": "test_guides.py",
    "docs/datasets.md": "beam_pipelines/test_dataset_docs.py",
    "docs/exports.md": "beam_pipelines/test_exports_docs.py",
    "docs/index.md": "test_tutorials.py",
    "docs/input-service.md": "tpu_input/test_service_processes.py",
    "docs/input.md": "tpu_input/test_input_docs.py",
    "docs/install.md": "test_install.py",
    "docs/jax.md": "test_jax_docs.py",
    "docs/keras.md": "tpu_input/test_input_docs.py",
    "docs/moving.md": "tpu_input/test_input_docs.py",
    "docs/pipelines.md": "beam_pipelines/test_transforms.py",
    "docs/preflight.md": "test_guides.py",
    "docs/pytorch.md": "tpu_input/test_example_source.py",
    "docs/security.md": "test_security_docs.py",
    "docs/stores.md": "contracts/test_store_docs.py",
    "docs/terminal.md": "test_terminal.py",
    "docs/train.md": "test_python_docs.py",
    "docs/train_jax.md": "estimator_app/test_jax_guide.py",
    "docs/tutorials/imagenet.md": "test_tutorials.py",
    "docs/tutorials/photographs.md": "test_tutorials.py",
}


def test_every_page_with_commands_or_code_has_a_test():
    with_code = [
        page for page in PAGES if commands(page) or re.search(r"^ *```(?!text)\w", (ROOT / page).read_text(), re.M)
    ]
    assert with_code == sorted(TESTS)
    assert [test for test in TESTS.values() if not (ROOT / "tests" / test).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one_that_its_parser_takes(page):
    for words in filter(ours, commands(page)):
        module = importlib.import_module(f"{COMMANDS[words[1]].package}.__main__")
        arguments = [word for word in words[1:] if word not in ("…", "D", "M")]
        flags, unknown = module.make_parser().parse_known_args(arguments)
        assert not unknown or getattr(flags, "runner", None), words


def runs_on(block: str) -> list[str]:
    """Returns each command of a block that harms where the one above it has failed, and is not joined to it by &&.

    A shell into which a block is pasted goes on after a failure: pip would install outside the environment, docker
    would take an older image, and what is repaired, removed or trained on would be an older dataset.
    """
    lines = re.sub(r"\\\n +", "", block).splitlines()
    changes = r"repair |relabel |filter .*--near_duplicates=|.*--(?:overwrite|predictions)\b"
    harmful = []
    for above, line in itertools.pairwise(line.strip() for line in lines if line.strip()):
        trains = line.startswith("jpeg2tpu train ") and above.startswith(("jpeg2tpu convert ", "jpeg2tpu report "))
        if (trains or re.match(f"pip |docker |jpeg2tpu (?:{changes})", line)) and not above.endswith("&&"):
            harmful.append(line)
    return harmful


# The commands of docs/datasets.md are examples of each kind, of which relabel takes a file that somebody has written.
_EXAMPLES = {"docs/datasets.md": ["jpeg2tpu relabel dataset --labels=corrected.csv --output=relabeled"]}


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_pasted_whole_does_no_harm_after_a_failure(page):
    text = (ROOT / page).read_text()
    blocks = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE) + re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    assert [line for block in blocks for line in runs_on(block)] == _EXAMPLES.get(page, [])


@pytest.mark.parametrize(
    ("block", "harmful"),
    [
        ("python3 -m venv a && . a/bin/activate\npip install .\n", 1),
        ("python3 -m venv a && . a/bin/activate &&\npip install . &&\npip install x\n", 0),
        ("jpeg2tpu convert --input=a \\\n    --output=b\njpeg2tpu train --dataset=b\n", 1),
        ("jpeg2tpu convert --input=a \\\n    --output=b &&\njpeg2tpu train --dataset=b\n", 0),
        ("jpeg2tpu verify a\njpeg2tpu repair a\n", 1),
        ("jpeg2tpu verify a\njpeg2tpu report a\n", 0),
    ],
)
def test_commands_that_run_on_after_a_failure_are_noticed(block, harmful):
    assert len(runs_on(block)) == harmful


_OTHER_WAY = re.compile(r"""-m[\s"',f]+(?:beam_pipelines|estimator_app|tpu_input)\b""")  # also in two literals
# What users read or run: pages, messages, help, examples, the Makefile and what makes their numbers.
_READ = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs", "examples", "benchmarks", "documentation")


def test_every_command_is_called_as_jpeg2tpu_in_all_that_users_read():
    roots = [ROOT / name for name in (*_READ, ".ci", *reference.PACKAGES, "jpeg2tpu.py")]
    files = [path for root in roots for path in (root, *root.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    matches = {str(path.relative_to(ROOT)): _OTHER_WAY.findall(path.read_text(errors="replace")) for path in files}
    assert {path: len(names) for path, names in matches.items() if names} == {"docs/install.md": 3}


def test_pages_of_reference_are_what_the_code_says():
    for path, text in reference.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date; make reference"


@pytest.mark.parametrize(("name", "most"), [("keras", 75), ("jax", 150)])
def test_an_example_is_as_short_as_its_guide_says(name, most):
    assert f"training in {most} lines" in unwrapped(f"docs/{name}.md")
    assert len((ROOT / "examples" / f"{name}_train.py").read_text().splitlines()) <= most


def test_the_tables_of_features_and_lengths_are_complete():
    page = (DOCS / "reference" / "dataset.md").read_text()
    assert sorted(re.findall(r"^\| `(image/[^`]+)` \| (?:bytes|int64) \|", page, re.MULTILINE)) == sorted(FEATURES)
    assert f"`{LABELS_KEY}`" in page
    section = page.partition(f"## {LENGTHS_NAME}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == ["shard", "length"]


def test_lengths_have_the_columns_of_the_page(digits_dataset):
    import pyarrow.parquet as pq

    schema = pq.read_schema(Path(digits_dataset.path) / LENGTHS_NAME)
    assert schema.names == ["shard", "length"]
    assert pa.types.is_dictionary(schema.field("shard").type)
    assert schema.field("length").type == pa.int64()


def test_messages_of_the_page_are_messages_of_the_code():
    page = (DOCS / "reference" / "messages.md").read_text().partition("\n## Conversion\n")[2]
    quoted = re.findall(r"^\| `(.+?)` \| ", page, re.MULTILINE)
    assert len(quoted) >= 30
    literals = "\n".join(
        text
        for package in reference.PACKAGES
        for path in (ROOT / package).glob("**/*.py")
        for text in texts(ast.parse(path.read_text()))
    )
    for message in quoted:
        for part in message.split("…"):
            assert part.strip(" (%),") in literals, message


def texts(tree: ast.AST) -> list[str]:
    """Returns the literal texts of a module, f-strings without their values."""
    result = []
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        literals = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        result.append("".join(literals))
    return result


def test_readme_links_to_files_and_headings_that_exist():
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = ROOT / (path or "README.md")
        assert file.exists(), target
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings]


def test_pictures_are_those_that_a_command_makes_and_are_small():
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").iterdir()}
    assert sorted(sizes) == sorted(pictures.NAMES)
    assert max(sizes.values()) < 300_000
    text = "".join((ROOT / page).read_text() for page in PAGES)
    assert all(f"pictures/{name}" in text for name in sizes)


@pytest.fixture(scope="module")
def packaging() -> dict[str, Any]:
    """The names in setup.py and, as "given", the arguments of setup()."""
    setup_arguments: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **arguments: setup_arguments.update(arguments))
        return runpy.run_path(str(ROOT / "setup.py")) | {"given": setup_arguments}


@pytest.fixture(scope="module")
def long_description(packaging):
    return packaging["long_description"]


def test_extras_and_constraints_that_the_pages_name_exist(packaging):
    text = "".join((ROOT / page).read_text() for page in PAGES)
    extras = {name for names in re.findall(r"(?:jpeg2tpu|[ '`]\.)\[([a-z,]+)\]", text) for name in names.split(",")}
    assert extras >= {"train", "tpu", "gcp", "heic", "demo", "all"}
    assert extras <= packaging["given"]["extras_require"].keys()
    files = set(re.findall(r"(?:constraints/[\w.-]+|constraints)\.txt", text))
    assert "constraints.txt" in files
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("text", "nowhere", "published"),
    [
        ("[a](docs/train.md)", "a", "[a](https://x/train.html)"),
        ("[a](docs/train.md#the-loop)", "a", "[a](https://x/train.html#the-loop)"),
        ("![a](docs/pictures/a.png)", "", "![a](https://x/pictures/a.png)"),
        ("[a](LICENSE)", "a", "a"),
        ("[a](#install)", "[a](#install)", "[a](#install)"),
        ("[a](https://y/docs/z.md)", "[a](https://y/docs/z.md)", "[a](https://y/docs/z.md)"),
    ],
)
def test_links_on_an_index_s_page_lead_to_the_site_or_are_plain_text(long_description, text, nowhere, published):
    assert long_description(text, "") == nowhere
    assert long_description(text, "https://x") == published


def test_no_relative_link_is_left_on_an_index_s_page(long_description):
    readme = (ROOT / "README.md").read_text()
    for url in ("", "https://x"):
        targets = re.findall(r"\]\(([^)]+)\)", long_description(readme, url))
        assert [target for target in targets if not target.startswith(("#", "https://"))] == []


VALE = os.environ.get("VALE") or next(iter(sorted(ROOT.glob(".servers/vale-*/vale"))), None) or shutil.which("vale")


@pytest.mark.skipif(not VALE, reason="needs vale: make docs builds it")
@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Everything else is encoded anew.", "Words"),
        ("The same command goes on from the last checkpoint.", "Words"),
        ("What is wrong is said in one line.", "Words"),
        ("Damage that libjpeg decodes past, as it does a flipped bit, ends no image.", "Words"),
        ("An example of which the record is damaged is rejected.", "Words"),
        ("Pixels are those of a full decode.", "Words"),
        ("An index lies beside each shard.", "Words"),
        ("A list is given in the place of a folder.", "Words"),
        ("Add --overwrite, because the inputs are then others.", "Words"),
        ("The probabilities are held against Keras' own.", "Words"),
        ("Labelled images in grey are normalised.", "Spelling"),
        ("A core decodes 40 images a second.", "Per"),
        ("It takes 620 bytes a row.", "Per"),
        ("A file that is no image is rejected.", "IsNo"),
        (" ".join(itertools.repeat("word", 46)) + ".", "Length"),
        ("A file that is not an image is rejected. A core decodes 40 images per second, and training resumes.", ""),
        ("Labeled images in gray. `--colour` and --unlabelled are options, and grey_sample() is a name.", ""),
        ("It prints which record of which shard is damaged.", ""),
        ("There is no longer a file of this name, and there is no state in which it is half written.", ""),
    ],
)
def test_rules_of_prose_find_our_habits(tmp_path, sentence, rule):
    (tmp_path / "page.md").write_text(f"# Title\n\n{sentence}\n")
    code, lines = prose.check(str(VALE), [tmp_path / "page.md"])
    assert (code, set(re.findall(r"Jpeg2tpu\.(\w+)", lines))) == ((1, {rule}) if rule else (0, set()))


def test_help_is_checked_option_by_option(tmp_path):
    files = {path.stem: path.read_text() for path in prose.help_texts(tmp_path)}
    assert "--image_size=PIXELS height and width of the images" in files["train"]
    assert "\n\n--seed=N " in files["train"]
    assert "130 ended" not in files["train"]


def test_texts_of_code_are_checked_on_their_lines(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""A module.\n\nIts values are those of a table.\n"""\n\n'
        "that_of = 1  # of a colour\n"
        'raise ValueError(f"{that_of!r} lies "\n    f"beside {that_of}")\n'
        'print("beside", {"colour": 1})\n'
    )
    lines = prose.prose_of(module).split("\n")
    assert [(number, line) for number, line in enumerate(lines, 1) if line] == [
        (1, "A module."),
        (3, "Its values are those of a table."),
        (6, "of a colour"),
        (7, "… lies beside …"),
    ]


@pytest.mark.skipif(not VALE, reason="needs vale: make docs builds it")
def test_a_habit_in_a_message_of_the_code_is_found(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text('\nraise ValueError("the file lies beside the list")\n')
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "PACKAGES", ("package",))
    code, lines = prose.check(str(VALE), prose.code_texts(tmp_path / "texts"))
    assert (code, re.findall(r"package/a\.py\.md:(\d+):\d+:(\S+?):", lines)) == (1, [("2", "Jpeg2tpu.Words")])


def test_the_photographs_have_the_flaws_that_the_tutorial_names(tmp_path):
    from documentation.photographs import write_photographs

    write_photographs(tmp_path / "photos", per_class=1)
    names = subprocess.run(["ls", *sorted((tmp_path / "photos").iterdir())], capture_output=True, text=True).stdout
    for flaw in ("download.jpg", "not_found.jpg", "from_a_phone.jpg", "from_the_web.png"):
        assert flaw in names


@pytest.mark.long
def test_pictures_can_be_made(tmp_path, monkeypatch):
    from support.browser import find_chromium

    if find_chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    monkeypatch.setattr(sys, "argv", ["pictures", f"--output={tmp_path}", "--train_steps=2"])
    pictures.main()
    for name in pictures.NAMES:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
