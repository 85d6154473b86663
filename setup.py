"""Packaging of jpeg2tpu. Dataflow workers install from this file, so it stays a plain setup.py."""

from __future__ import annotations

import pathlib

from setuptools import find_packages, setup

# What a conversion worker needs. Beam without its [gcp] extra reaches gs:// with the three Google packages below; the
# extra would pull in some sixty more, and beside TensorFlow 2.15 (protobuf < 5) an older Beam.
BASE = [
    "apache-beam>=2.72,<3",
    "google-apitools>=0.5.31",
    "google-auth-httplib2>=0.2",
    "google-cloud-storage>=2.19",
    "google-crc32c>=1.5",
    "jinja2>=3.1",
    "numpy>=1.24",
    "pillow>=11.3",  # the first whose wheels read AVIF
    "pyarrow>=14",
    "simplejpeg>=1.8",  # libjpeg-turbo whose warnings are errors, where Pillow hides them
    "tqdm>=4.60",
    "zstandard>=0.18",  # .tar.zst; Beam needs it, too
]
# TPUEstimator ends with TensorFlow 2.15, whose last Python is 3.11.
TRAIN = [
    "matplotlib>=3.7",
    "pyyaml>=6",  # train --config
    "tensorboard>=2.15",  # tf.summary's images; TensorFlow 2.20 and newer come without it
    "tensorflow>=2.15,<2.16; python_version<'3.12'",
    "tensorflow>=2.16; python_version>='3.12'",
]
# What TensorFlow's TPUClusterResolver asks Google Cloud with for the address of a TPU that is given by name.
TPU = ["google-api-python-client>=2", "oauth2client>=4.1.3"]
GCP = ["apache-beam[gcp]"]
HEIC = ["pillow-heif>=1.0"]  # photographs of iPhones
# TrainSource and EvalSource resize with it where it is installed, in a tenth of NumPy's time.
OPENCV = ["opencv-python-headless>=4.8"]
DEMO = ["scikit-learn>=1.3"]
# TensorFlow Serving's own messages, to read our warm-up requests with; it follows TensorFlow's version.
SERVING = ["tensorflow-serving-api>=2.15,<2.16; python_version<'3.12'"]
# grain has wheels for Linux and macOS.
DEV = [
    *SERVING,
    *HEIC,
    *OPENCV,
    "grain>=0.2.10; sys_platform != 'win32'",
    "hypothesis>=6.100",  # the fuzzer's damaged files
    "mypy>=1.10",
    "psutil>=5.9",  # benchmarks: memory of a process and its children
    "pytest>=8",
    "pytest-cov>=6",  # which lines the tests run: make test-newest
    "pytest-xdist>=3.6",
    "ruff>=0.6",
    "scikit-image>=0.22",  # benchmarks: more photographs than scikit-learn has
    "setuptools>=65",
    "trustme>=1.1",
]

setup(
    name="jpeg2tpu",
    version="0.1.0",
    description="JPEGs and labels to sharded TFRecords to a TPU: Beam pipelines, exact input_fns, a reference trainer",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["beam_pipelines*", "tpu_input*", "estimator_app*"]),
    package_data={"": ["py.typed"], "beam_pipelines.report": ["report.html.j2"], "estimator_app": ["recipes/*.yaml"]},
    entry_points={"console_scripts": ["jpeg2tpu=tpu_input.command_line.jpeg2tpu:main"]},
    install_requires=BASE,
    extras_require={
        "train": TRAIN,
        "tpu": TRAIN + TPU,
        "gcp": GCP,
        "heic": HEIC,
        "opencv": OPENCV,
        "demo": TRAIN + DEMO,
        "dev": TRAIN + TPU + DEMO + DEV,
        "all": TRAIN + TPU + GCP + DEMO + DEV,
    },
)
