"""Pictures of the pages: the report of a dataset of photographs in a browser, and the curves of a training on digits.

    PYTHONPATH=tests python -m documentation.pictures [--output=docs/pictures] [--train_steps=600]

`make pictures` runs it. It needs Chromium, and takes a minute on two idle cores.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import tempfile
from pathlib import Path

from beam_pipelines.__main__ import main as beam_pipelines
from documentation.photographs import write_photographs
from estimator_app.__main__ import main as estimator_app
from support.browser import browse, find_chromium

OUTPUT = Path(__file__).parent.parent / "docs" / "pictures"
NAMES = ("report.png", "curves.png")
_WIDTH, _HEIGHT = 1000, 860  # pixels of the report's beginning that are shown


def draw_report(folder: Path, output: Path) -> None:
    """Writes a picture of the beginning of a report."""
    write_photographs(folder / "photos")
    dataset = folder / "photos_tfrecords"
    flags = [f"--input={folder / 'photos'}", f"--output={dataset}", "--resize_shorter=256", "--max_rejected=5%"]
    _succeed(beam_pipelines(["convert", *flags]))
    _succeed(beam_pipelines(["report", str(dataset), f"--sources={folder / 'photos'}"]))
    take_screenshot(dataset / "report.html", output, (_WIDTH, _HEIGHT), folder / "profile")


def draw_curves(folder: Path, output: Path, train_steps: int) -> None:
    """Writes the curves of a training on digits."""
    _succeed(beam_pipelines(["sample", str(folder / "digits")]))
    dataset, model_dir = folder / "dataset", folder / "model"
    splits = ["--splits=train=80%,validation=20%", "--shard_size=100KB"]
    _succeed(beam_pipelines(["convert", f"--input={folder / 'digits'}", f"--output={dataset}", *splits]))
    flags = [f"--dataset={dataset}", f"--model_dir={model_dir}", "--config=digits", f"--train_steps={train_steps}"]
    _succeed(estimator_app(["train", *flags, f"--steps_per_eval={max(1, train_steps // 6)}"]))
    shutil.copyfile(model_dir / "curves.png", output)


def take_screenshot(page: Path, output: Path, size: tuple[int, int], profile: Path, scheme: str = "light") -> None:
    """Writes a PNG of the beginning of a local page.

    Args:
      page: HTML file.
      output: PNG file to write.
      size: Width and height of the browser's window in pixels.
      profile: Empty folder for the browser's profile.
      scheme: "light" or "dark", which the page is told that its reader prefers.
    """
    program = find_chromium()
    if program is None:
        raise SystemExit("error: no Chromium found; install it: apt-get install chromium")
    with browse(program, profile) as browser:
        browser.resize(*size)
        browser.send("Emulation.setScrollbarsHidden", hidden=True)
        browser.prefer(scheme)
        browser.open(page)
        output.write_bytes(base64.b64decode(browser.send("Page.captureScreenshot", format="png")["data"]))


def _succeed(code: int) -> None:
    if code:
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--train_steps", type=int, default=600)
    flags = parser.parse_args()
    flags.output.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.gettempdir()) / "jpeg2tpu"  # which the report shows
    shutil.rmtree(folder, ignore_errors=True)
    try:
        draw_report(folder, flags.output / NAMES[0])
        draw_curves(folder, flags.output / NAMES[1], flags.train_steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
