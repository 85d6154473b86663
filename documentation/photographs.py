"""A small collection of photographs with the flaws that collections have, for the tutorial's test and the pictures.

    python -m documentation.photographs photos

Six classes of crops of the photographs that scikit-learn and scikit-image bring along (benchmarks/corpus.py). Among
them are a PNG, a photograph that its EXIF data turn, one that is cut off, and an error page that is called .jpg.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.corpus import photograph

CLASSES = {"cat": 3, "coffee": 4, "flower": 1, "motorcycle": 5, "palace": 0, "rocket": 6}  # numbers in originals()
_ORIENTATION = 0x0112  # https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, table 4
SIZE = (500, 375)


def write_photographs(folder: Path, per_class: int = 30) -> None:
    """Writes class folders of JPEGs, and in four of them one file with a flaw."""
    for name, number in CLASSES.items():
        (folder / name).mkdir(parents=True)
        for index in range(per_class):
            random = np.random.default_rng([number, index])
            (folder / name / f"{index:03d}.jpg").write_bytes(photograph(random, SIZE, number))
    cat, coffee, flower, rocket = (folder / name / "000.jpg" for name in ("cat", "coffee", "flower", "rocket"))
    Image.open(cat).save(cat.with_name("from_the_web.png"))
    turned = Image.open(flower).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[_ORIENTATION] = 6  # viewers turn it by 90 degrees clockwise
    turned.save(file := io.BytesIO(), "JPEG", quality=90, exif=exif)
    flower.with_name("from_a_phone.jpg").write_bytes(file.getvalue())
    coffee.with_name("download.jpg").write_bytes(coffee.read_bytes()[:30_000])
    rocket.with_name("not_found.jpg").write_text("<html><body>404 Not Found</body></html>\n")


if __name__ == "__main__":
    write_photographs(Path(sys.argv[1]))
