"""Packaging of jpeg2tpu. Dataflow workers install from this file, so it stays a plain setup.py."""

from __future__ import annotations

import pathlib
import re

from setuptools import find_packages, setup

FOLDER = pathlib.Path(__file__).parent

# What a conversion on this machine needs, and what reads a dataset: neither Beam nor TensorFlow nor JAX. The workers of
# an engine have Beam in their image.
BASE = [
    "argcomplete>=3.2",  # jpeg2tpu completion
    "google-cloud-storage>=2.19",
    "google-crc32c>=1.5",
    "jinja2>=3.1",
    "numpy>=1.24",
    "pillow>=11.3",  # the first whose wheels read AVIF
    "pyarrow>=14",
    "simplejpeg>=1.8",  # libjpeg-turbo whose warnings are errors, where Pillow hides them
    "tqdm>=4.60",
    "urllib3>=2.2",  # images behind URLs; the first with read1()
    "zstandard>=0.18",  # .tar.zst
]
# What submits a conversion to an engine (--runner), and runs our transforms in a pipeline of the user's. Beam without
# its [gcp] extra reaches gs:// with the two Google packages below; the extra would pull in some sixty more, and beside
# TensorFlow 2.15 (protobuf < 5) an older Beam.
BEAM = ["apache-beam>=2.72,<3", "google-apitools>=0.5.31", "google-auth-httplib2>=0.2"]
# What a training run needs under every trainer.
RUN = [
    "matplotlib>=3.7",
    "pyyaml>=6",  # train --config
]
# --trainer=jax, without TensorFlow; jax[cuda] or jax[tpu] are installed beside it. jax.export, which does not require
# flatbuffers, writes and reads with them.
JAX = [*RUN, "flatbuffers>=23.5", "jax>=0.10", "keras>=3.10", "optax>=0.2.5"]
# preflight --trainer=jax, on any machine with Linux on x86-64: the TPU's compiler of this JAX, 0.2 GB to load and 0.6
# GB on disk. Where it is installed, each process that uses JAX looks for a TPU first.
PREFLIGHT = [*JAX, "jax[tpu]>=0.10"]
# TPUEstimator ends with TensorFlow 2.15, whose last Python is 3.11.
TRAIN = [
    *RUN,
    "tensorboard>=2.15",  # tf.summary's images; TensorFlow 2.20 and newer come without it
    "tensorflow>=2.15,<2.16; python_version<'3.12'",
    "tensorflow>=2.16; python_version>='3.12'",
]
# What TensorFlow's TPUClusterResolver asks Google Cloud with for the address of a TPU that is given by name.
TPU = ["google-api-python-client>=2", "oauth2client>=4.1.3"]
GCP = [*BEAM, "apache-beam[gcp]"]
HEIC = ["pillow-heif>=1.0"]  # photographs of iPhones
# Inputs at s3://, az://, hf:// and https://: obstore reads, boto3 finds the credentials of S3.
STORES = ["boto3>=1.34", "obstore>=0.8"]
# TrainSource and EvalSource resize with it where it is installed, in a tenth of NumPy's time.
OPENCV = ["opencv-python-headless>=4.8"]
ARRAY_RECORD = ["array_record>=0.6; sys_platform == 'linux'"]  # export-dataset --format=array_record
DEMO = ["scikit-learn>=1.3"]
# TensorFlow Serving's own messages, to read our warm-up requests with; it follows TensorFlow's version.
SERVING = ["tensorflow-serving-api>=2.15,<2.16; python_version<'3.12'"]
# examples/jax_train.py needs these, too.
JAX_EXAMPLE = ["flax>=0.12", "orbax-checkpoint>=0.11"]
# grain has wheels for Linux and macOS.
DEV = [
    *BEAM,
    *SERVING,
    *HEIC,
    *STORES,
    "flask-cors>=4",  # and Flask: moto's server
    "moto[s3]>=5",  # a store of S3's kind on loopback
    # Where TensorFlow and NumPy are new enough to be beside JAX.
    *(f"{requirement}; python_version>='3.12'" for requirement in [*JAX, *JAX_EXAMPLE]),
    *OPENCV,
    *ARRAY_RECORD,
    "grain>=0.2.10; sys_platform != 'win32'",
    "hypothesis>=6.100",  # the fuzzer's damaged files
    "mypy>=1.10",
    # Exports in another runtime. From 1.19 on, onnx needs a newer ml_dtypes than TensorFlow 2.15 allows.
    "onnx>=1.16,<1.19; python_version<'3.12'",
    "onnxruntime>=1.17; python_version<'3.12'",
    "psutil>=5.9",  # benchmarks: memory of a process and its children
    "pytest>=8",
    "pytest-cov>=6",  # which lines the tests run: make test-newest
    "pytest-xdist>=3.6",
    "ruff>=0.6",
    "scikit-image>=0.22",  # benchmarks: more photographs than scikit-learn has
    "setuptools>=65",
    "tensorflow-datasets>=4.9.10; python_version>='3.12'",  # opens our datasets, in a test
    "tf2onnx>=1.17; python_version<'3.12'",
    "trustme>=1.1",
]

# Read as text: importing it would need the package's own requirements.
VERSION = re.search(r'^__version__ = "(.+)"', (FOLDER / "tpu_input/command_line/distribution.py").read_text(), re.M)[1]

# Where the site of `make docs` is published, such as "https://example.org/jpeg2tpu"; "" until there is such a place.
# README's links into docs/ lead there from the package's page on an index, which has no docs/ beside it.
DOCUMENTATION_URL = ""


def long_description(readme: str, url: str) -> str:
    """Returns README for the package's page on an index.

    Args:
      readme: README.md, whose links are relative to the repository.
      url: Where the site is published; "" for nowhere: relative links then become plain text, and pictures disappear.
    """

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target:
            return match[0]
        if not url or not path.startswith("docs/"):
            return "" if mark else text
        page = re.sub(r"\.md$", ".html", path.removeprefix("docs/"))
        return f"{mark}[{text}]({url}/{page}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)]+)\)", link, readme)


setup(
    name="jpeg2tpu",
    version=VERSION,
    description="JPEGs and labels to sharded TFRecords to a TPU: Beam pipelines, exact input_fns, a reference trainer",
    long_description=long_description((FOLDER / "README.md").read_text(encoding="utf-8"), DOCUMENTATION_URL),
    long_description_content_type="text/markdown",
    author="The jpeg2tpu maintainers",
    license="Apache-2.0",
    keywords=[
        "apache-beam",
        "computer-vision",
        "dataset",
        "image-classification",
        "imagenet",
        "input-pipeline",
        "tensorflow",
        "tf.data",
        "tfrecord",
        "tpu",
        "tpuestimator",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Multimedia :: Graphics :: Graphics Conversion",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    project_urls={"Documentation": DOCUMENTATION_URL} if DOCUMENTATION_URL else {},
    python_requires=">=3.11",
    packages=find_packages(include=["beam_pipelines*", "tpu_input*", "estimator_app*"]),
    py_modules=["jpeg2tpu"],  # python -m jpeg2tpu
    package_data={"": ["py.typed"], "beam_pipelines.report": ["template/*"], "estimator_app": ["recipes/*.yaml"]},
    entry_points={"console_scripts": ["jpeg2tpu=tpu_input.command_line.jpeg2tpu:main"]},
    install_requires=BASE,
    extras_require={
        "train": TRAIN,
        "tpu": TRAIN + TPU,
        "beam": BEAM,
        "gcp": GCP,
        "jax": JAX,
        "preflight": PREFLIGHT,
        "heic": HEIC,
        "opencv": OPENCV,
        "array_record": ARRAY_RECORD,
        "stores": STORES,
        "demo": DEMO,
        "dev": TRAIN + TPU + DEMO + DEV,
        "all": TRAIN + TPU + GCP + DEMO + DEV,
    },
)
