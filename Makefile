# `make demo` and `make test` set up what they need, and are quick when run again. `make help` lists the targets: a comment
# that begins with ## is a target's line there.

SHELL := /bin/bash
VENV ?= .venv
VENV_DEMO ?= .venv-demo
VENV_NEWEST ?= .venv-newest
VENV_PEERS ?= .venv-peers
VENV_GCP ?= .venv-gcp
VENV_PREFLIGHT ?= .venv-preflight
VENV_BEAM_2_54 ?= .venv-beam-2.54
VENV_PEERS_TORCH ?= .venv-peers-torch
# Beside them, img2dataset, of whose dependencies some are older: python -m benchmarks.conversion.urls.
VENV_PEERS_URLS ?= .venv-peers-urls
VENV_DOCS ?= .venv-docs
VENV_TORCH ?= .venv-torch
export VENV_PEERS VENV_PEERS_TORCH VENV_PEERS_URLS
# Hundreds of processes of the tests would each compile this package again, and pytest its 250 files.
unexport PYTHONDONTWRITEBYTECODE
DEMO ?= demo
SEED ?= 0
# Where `make site` serves the site on this machine.
PORT ?= 8000
# How many hostile files `make fuzz` tries.
CASES ?= 500
# In how many moments `make kills` kills conversions and exports, at each place.
MOMENTS ?= 100
# How many steps each run of `make soak` takes.
STEPS ?= 20000
# A Google Cloud Storage on loopback, for `make test-cloud`; built by Go 1.26 or newer.
FAKE_GCS_VERSION = v1.56.1
FAKE_GCS_SERVER ?= .servers/fake-gcs-server-$(FAKE_GCS_VERSION)/fake-gcs-server
# Prism, Beam's runner in Go, of the version of the installed Beam, for `make test-engines`; built by Go 1.26 or newer.
BEAM_VERSION := $(shell sed -n 's/^apache-beam==\([0-9.]*\).*/\1/p' constraints.txt)
PRISM ?= .servers/prism-v$(BEAM_VERSION)/prism
# Flink, and Spark in local mode, with a job server of Beam's, for `make test-engines`.
FLINK_JOB_SERVER ?= .servers/flink/flink-job-server.jar
SPARK_JOB_SERVER ?= .servers/spark/spark-job-server.jar
# Rules of accessibility, which the browser test runs over the report; from the npm registry.
AXE_VERSION = 4.14.1
AXE_CORE ?= .servers/axe-core-$(AXE_VERSION)/node_modules/axe-core/axe.min.js
export AXE_CORE
# An Azure Blob Storage on loopback, for `make test-cloud`; from the npm registry.
AZURITE_VERSION = 3.35.0
AZURITE ?= .servers/azurite-$(AZURITE_VERSION)/node_modules/.bin/azurite-blob
# Vale, the checker of prose, for `make docs`; built by Go 1.26 or newer.
VALE_VERSION = v3.21.0
VALE ?= .servers/vale-$(VALE_VERSION)/vale
# The TPU's compiler for the JAX of $(VENV_NEWEST), beside it: where it is installed, each process looks for a TPU first.
LIBTPU_VERSION := $(shell sed -n 's/^libtpu==\([0-9.]*\).*/\1/p' constraints.txt)
LIBTPU ?= .servers/libtpu-$(LIBTPU_VERSION)
# Four digits that seed 0 puts into the validation split.
HELD_OUT = 0/0072.jpg 4/0064.jpg 8/0148.jpg 9/0073.jpg

# Pythons. make test prefers 3.11, whose TensorFlow 2.15 is the last with TPUEstimator; make demo prefers the newest.
# PYTHON= names one for both. A Python is taken if it can make environments: Debian's needs the package python3-venv.
NAMED := $(PYTHON)
# The path of the first Python of the versions $(1): the named one, on the PATH, or pyenv's.
find_python = $(shell for version in $(1); do \
	for python in $(if $(NAMED),"$(NAMED)") python$$version python3 python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	"$$python" -c "import ensurepip, sys, venv; '%d.%d' % sys.version_info[:2] == '$$version' or sys.exit(1); print(sys.executable)" \
	2>/dev/null && exit; done; done)
# Found when first used, once.
PYTHON ?= $(eval PYTHON := $$(call find_python,3.11 3.13 3.12))$(PYTHON)
PYTHON_DEMO ?= $(eval PYTHON_DEMO := $$(or $$(NAMED),$$(call find_python,3.13 3.12 3.11)))$(PYTHON_DEMO)
PYTHON_NEWEST ?= $(eval PYTHON_NEWEST := $$(call find_python,3.13 3.12))$(PYTHON_NEWEST)
PYTHON_3_11 ?= $(eval PYTHON_3_11 := $$(call find_python,3.11))$(PYTHON_3_11)
python_version = $(shell "$(1)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# FORCE, which makes the environment $(1) anew, if it is of another version of Python than $(2), or its Python is gone.
renew = $(if $(wildcard $(1)/installed),$(if $(filter $(call python_version,$(1)/bin/python),$(or $(call python_version,$(2)),$(call python_version,$(1)/bin/python))),,FORCE))
comma := ,
# $(call environment,FOLDER,NAME OF THE VARIABLE,VERSIONS,SIZE,PIP_ARGUMENTS)
define environment
	@test -n "$($(2))" || { echo 'error: no Python $(3) found that can make environments; install it (on Debian and Ubuntu: apt-get install python3-venv), or name it: make $(2:_DEMO=)=/path/to/python' >&2; exit 2; }
	@.ci/environment $(1) "$($(2))" $(4) $(5)
endef
# The files that have tests with a marker: to import all others, with TensorFlow and Beam, takes half a minute.
marked = $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.$(1)\b' tests)
BENCHMARK = $(VENV)/bin/python -W ignore -m benchmarks
# A benchmark starts its bucket as the tests do, once `make cloud-server` has built the server.
WITH_BUCKET = PYTHONPATH=tests $(if $(wildcard $(FAKE_GCS_SERVER)),FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)))

.PHONY: FORCE help demo docs site reference pictures environments test test-core test-all test-long test-newest test-cloud test-engines test-preflight test-torch test-peers lint fuzz kills soak mutants cloud-server bucket preflight benchmark benchmark-input release-check clean

# A target that is always made; and $$ in what a target depends on is expanded when the target is looked at.
FORCE:
.SECONDEXPANSION:

## help: list the targets
help:
	@sed -n 's/^## \([a-z-]*\): \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name line; do \
		printf '%-16s %s\n' "$$name" "$$line"; done

# What trains the demo under the Python $(1): JAX, or where that Python is too old for it, TensorFlow 2.15.
demo_trainer = $(or $(TRAINER),$(if $(filter 3.11,$(call python_version,$(1))),tpu_estimator,jax))

## demo: install what the demo needs, then digits → shards → training → predictions
# Real handwritten digits; run again, it goes on from what is there. It has an environment of its own, which is smaller
# than that of the tests: VENV is this one in the lines below. A run of another Python or trainer, which cannot be resumed
# here, is moved to model.previous. TRAINER= names the trainer.
demo: override VENV = $(VENV_DEMO)
demo: $(VENV_DEMO)/installed
	@made_by='$(call python_version,$(VENV_DEMO)/bin/python) $(call demo_trainer,$(VENV_DEMO)/bin/python)'; mkdir -p $(DEMO); \
	if [ -e $(DEMO)/model ] && [ "$$(cat $(DEMO)/made_by 2>/dev/null)" != "$$made_by" ]; then \
		echo "$(DEMO)/model was trained by another Python or trainer: it is now $(DEMO)/model.previous"; \
		rm -rf $(DEMO)/model.previous; mv $(DEMO)/model $(DEMO)/model.previous; fi; \
	echo "$$made_by" > $(DEMO)/made_by
	$(VENV)/bin/jpeg2tpu sample $(DEMO)/digits
	$(VENV)/bin/jpeg2tpu convert --input=$(DEMO)/digits --output=$(DEMO)/dataset \
		--splits=train=80%,validation=20% --shard_size=100KB --seed=$(SEED)
	$(VENV)/bin/jpeg2tpu verify $(DEMO)/dataset
	$(VENV)/bin/jpeg2tpu train --dataset=$(DEMO)/dataset --model_dir=$(DEMO)/model --image_size=32 \
		--train_batch_size=64 --train_steps=600 --steps_per_eval=200 --learning_rate=0.1 --crop_area=0.6,1 \
		--no_flip --eval_crop=1 --seed=$(SEED) --trainer=$(call demo_trainer,$(VENV)/bin/python)
	$(VENV)/bin/jpeg2tpu predict --export_dir=$(DEMO)/model/export \
		$(addprefix $(DEMO)/digits/,$(HELD_OUT))

## test: install what the tests need, then ruff, mypy and the tests
# Without npm, the test of the report's accessibility is left out; .ci/run has it.
test: $(VENV)/installed lint $(if $(shell command -v npm),$(AXE_CORE))
	$(VENV)/bin/python -m pytest -n auto --dist worksteal

## test-core: what .ci/run has of the long tests, and of those under the newest TensorFlow
# Long tests that are marked core: a scene for each promise that nothing shorter shows. And under the newest TensorFlow,
# what differs most under it, and the contracts that lead through every command, kind of input, trainer and framework.
NOT_ALONE = not cloud and not engines and not preflight and not torch and not peers
# Contracts of conversion alone, in which no framework takes part.
OF_CONVERSION = $(patsubst %,tests/contracts/test_%.py,class_numbers copies csv_cells inflation input_kinds label_kinds \
	missing_paths named_paths store_docs text_files)
# The order of the input, and what follows from it: computed in Python, the same under every TensorFlow. That the kernels
# of both are equal, test_without_tensorflow.py shows; that errors name their record, the contract of the trainers.
OF_ORDER = $(patsubst %,tests/tpu_input/test_%.py,balanced_order corrupt example_source load order train_input train_options)
# Keras has one backend in a process: what is of the trainer on JAX runs apart.
OF_JAX = tests/contracts/test_trainers.py \
	$(patsubst %,tests/estimator_app/test_%.py,jax_export jax_guide jax_initial_values jax_processes jax_step jax_trainer tpu_jax)
test-core: $(VENV)/installed $(VENV_NEWEST)/installed
	$(VENV)/bin/python -m pytest -m 'core and long' -n auto --dist worksteal $(call marked,core)
	$(VENV_NEWEST)/bin/python -m pytest -m '(core or not long) and $(NOT_ALONE)' -n auto --dist worksteal \
		tests/test_jax_example.py $(filter-out $(OF_ORDER),$(wildcard tests/tpu_input/test_*.py)) \
		$(filter-out $(OF_CONVERSION),$(wildcard tests/contracts/test_*.py)) \
		$(patsubst %,tests/estimator_app/test_%.py,export keras_networks networks predict starting_weights strategy)
	KERAS_BACKEND=jax $(VENV_NEWEST)/bin/python -m pytest -m 'core or not long' -n auto --dist worksteal $(OF_JAX)

## test-all: every test that there is, in a day; for a release
# In order of what takes long: what fails is said as early as can be. The last line is for the checklist of a release.
test-all: test docs test-long test-newest test-cloud test-engines test-preflight test-peers test-torch
	$(MAKE) fuzz CASES=20000
	$(MAKE) mutants
	$(MAKE) kills
	$(MAKE) soak
	@echo "make test-all passed on $$(date -I), commit $$(git rev-parse --short HEAD)"

## test-long: whole runs that are killed or compared with others, and statistics
# Whole runs that are killed, stopped or held against others, and what takes many random draws to tell. Those of
# examples/ need Keras 3 and JAX.
test-long: $(VENV)/installed $(VENV_NEWEST)/installed
	$(VENV)/bin/python -m pytest -m long -n auto --dist worksteal $(call marked,long)
	$(VENV_NEWEST)/bin/python -m pytest -m long -n auto --dist worksteal \
		tests/test_jax_example.py tests/tpu_input/test_keras_example.py
	KERAS_BACKEND=jax $(VENV_NEWEST)/bin/python -m pytest -m long -n auto --dist worksteal $(OF_JAX)

## lint: ruff and mypy
lint: $(VENV)/installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(if $(filter 3.12 3.13,$(call python_version,$(VENV)/bin/python)),@echo 'mypy is left out: it needs the packages of Python 3.11',$(VENV)/bin/python -m mypy)

## docs: the site of docs/ in site/, with its prose and links checked
# The site of docs/ and the docstrings, in site/: every link must lead somewhere, and the prose must pass vale's rules.
docs: $(VENV)/installed $(VENV_DOCS)/installed $(VALE)
	$(VENV)/bin/python -W ignore -m documentation.prose --vale=$(VALE)
	NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/python -m mkdocs build --quiet

## site: build the site and serve it on http://127.0.0.1:8000
# Without vale's check, so neither Go nor TensorFlow is needed. A page that is changed is built again. PORT= takes another
# port. Search works only where the site is served: a browser does not let it read its index from a folder.
site: $(VENV_DOCS)/installed
	NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/python -m mkdocs serve --dev-addr=127.0.0.1:$(PORT)

## reference: make the pages of docs/reference anew from the code
# The parts of docs/ that are made: pages of reference from the code, and pictures, which need Chromium.
reference: $(VENV)/installed
	$(VENV)/bin/python -W ignore -m documentation.reference

## pictures: make the pictures of docs/ anew, in Chromium
pictures: $(VENV)/installed
	PYTHONPATH=tests TF_CPP_MIN_LOG_LEVEL=3 $(VENV)/bin/python -W ignore -m documentation.pictures

## test-newest: make test under the newest Python and TensorFlow
# The same under the newest TensorFlow, which has no TPUEstimator: there training is --trainer=tf_distribute, and then, in
# processes of their own, the tests of the trainer on JAX. The share of lines is that of both.
# Coverage through sys.monitoring takes a third less CPU time in all.
test-newest: $(VENV_NEWEST)/installed $(if $(shell command -v npm),$(AXE_CORE))
	COVERAGE_CORE=sysmon $(VENV_NEWEST)/bin/python -m pytest -n auto --dist worksteal \
		--cov --cov-report= --cov-fail-under=0
	KERAS_BACKEND=jax COVERAGE_CORE=sysmon $(VENV_NEWEST)/bin/python -m pytest -m 'core or not long' -n auto --dist worksteal \
		--cov --cov-append --cov-report=term $(OF_JAX)

## test-cloud: what touches gs:// and az://, against servers on this machine
# Everything that touches gs://, with Google's own clients, and az://, against servers on this machine.
test-cloud: $(VENV)/installed $(FAKE_GCS_SERVER) $(AZURITE)
	FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)) AZURITE=$(abspath $(AZURITE)) $(VENV)/bin/python -m pytest -m cloud -n 4 --dist worksteal \
		$(call marked,cloud)

## fuzz: damaged and hostile files
# Damaged and hostile files by seed, each given to the command that reads it; 20,000 take an hour on two cores.
fuzz: $(VENV)/installed
	cd tests && PYTHONPATH=..:. $(abspath $(VENV))/bin/python -W ignore -m fuzz --cases=$(CASES) --seed=$(SEED)

## kills: conversions that are killed and completed
# Conversions into local files, into a bucket and on Prism that are killed (SIGKILL), completed by the same command and
# compared with undisturbed ones, and exports of two formats; a moment takes some 10 s on two cores. PLACES= names some of
# local, webdataset, mds, gs and prism. Then a conversion of 3,000 URLs; python -m kills.urls has more.
kills: $(VENV)/installed $(FAKE_GCS_SERVER) $(PRISM)
	cd tests && PYTHONPATH=..:. PRISM=$(abspath $(PRISM)) FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)) \
		$(abspath $(VENV))/bin/python -W ignore -m kills --moments=$(MOMENTS) --seed=$(SEED) $(addprefix --place=,$(PLACES))
	cd tests && PYTHONPATH=..:. $(abspath $(VENV))/bin/python -W ignore -m kills.urls --count=3000 --kills=5 --seed=$(SEED)

## soak: a training run that is killed every random minute
# A run that is killed every random minute, whose disk fills up twice and whose bucket is away for a minute, against one
# that nothing happens to. TRAINER= names the trainer; with 200,000 STEPS both together take some hours. JAX is in the
# environment of the newest Python.
soak_venv = $(if $(filter jax,$(TRAINER)),$(VENV_NEWEST),$(VENV))
soak: $(soak_venv)/installed $(FAKE_GCS_SERVER)
	cd tests && PYTHONPATH=..:. TF_CPP_MIN_LOG_LEVEL=3 FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)) \
		unshare --map-root-user --mount $(abspath $(soak_venv))/bin/python -W ignore -m soak --steps=$(STEPS) --seed=$(SEED) \
		$(if $(TRAINER),--trainer=$(TRAINER))

## mutants: whether the tests notice changed arithmetic
# Whether the tests notice a changed operator or number in the arithmetic of tests/mutants/targets.py: at least 95 % of
# some 3,900 changes; it prints those that no test notices. An hour and a half on two cores; MODULES= names some of the modules.
mutants: $(VENV)/installed
	cd tests && PYTHONPATH=..:. $(abspath $(VENV))/bin/python -W ignore -m mutants $(addprefix --module=,$(MODULES))

## cloud-server: build the storage server of test-cloud
cloud-server: $(FAKE_GCS_SERVER)

## bucket: an empty gs://bucket on this machine, until Ctrl-C
# An empty gs://bucket on this machine, to try commands with until Ctrl-C; prints the environment that they need.
bucket: $(VENV)/installed $(FAKE_GCS_SERVER)
	@cd tests && PYTHONPATH=..:. FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)) $(abspath $(VENV))/bin/python -W ignore -m support.bucket

## environments: install all that any test needs
# All that the tests set up; make environments --jobs=4 sets it up side by side.
environments: $(VENV)/installed $(VENV_NEWEST)/installed $(VENV_GCP)/installed $(VENV_BEAM_2_54)/installed \
		$(VENV_PREFLIGHT)/installed $(VENV_DOCS)/installed $(AXE_CORE) $(FAKE_GCS_SERVER) $(AZURITE) $(FLINK_JOB_SERVER) \
		$(SPARK_JOB_SERVER) $(PRISM) $(VALE) $(LIBTPU)/libtpu/__init__.py

.servers/fake-gcs-server-$(FAKE_GCS_VERSION)/fake-gcs-server:
	@command -v go >/dev/null || { echo 'error: no Go found, which builds fake-gcs-server; install it, or name a built one: make test-cloud FAKE_GCS_SERVER=/path/to/fake-gcs-server' >&2; exit 2; }
	GOBIN=$(abspath $(@D)) GOFLAGS=-buildvcs=false go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)

.servers/azurite-$(AZURITE_VERSION)/node_modules/.bin/azurite-blob:
	@command -v npm >/dev/null || { echo 'error: no npm found, which fetches Azurite; install it, or name the program: make test-cloud AZURITE=/path/to/azurite-blob' >&2; exit 2; }
	npm install --silent --no-audit --no-fund --no-save --prefix .servers/azurite-$(AZURITE_VERSION) azurite@$(AZURITE_VERSION)

.servers/axe-core-$(AXE_VERSION)/node_modules/axe-core/axe.min.js:
	@command -v npm >/dev/null || { echo 'error: no npm found, which fetches axe-core; install it, or name the file: AXE_CORE=/path/to/axe.min.js' >&2; exit 2; }
	npm install --silent --no-audit --no-fund --no-save --prefix .servers/axe-core-$(AXE_VERSION) axe-core@$(AXE_VERSION)

.servers/prism-v$(BEAM_VERSION)/prism:
	@command -v go >/dev/null || { echo 'error: no Go found, which builds Prism; install it, or name a built one: make test-engines PRISM=/path/to/prism' >&2; exit 2; }
	GOBIN=$(abspath $(@D)) GOFLAGS=-buildvcs=false go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(BEAM_VERSION)

.servers/vale-$(VALE_VERSION)/vale:
	@command -v go >/dev/null || { echo 'error: no Go found, which builds vale; install it, or name a built one: make docs VALE=/path/to/vale' >&2; exit 2; }
	GOBIN=$(abspath $(@D)) GOFLAGS=-buildvcs=false go install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)

## test-engines: conversions on Flink, Spark, Prism and other engines
# Conversion on engines that are processes of their own, and all of one on Dataflow but the submission. For that, Beam's
# Google Cloud clients are installed apart, without TensorFlow, as they would be by one who launches jobs. The job servers
# are tried by the newest Beam, and Flink's by the Beam of its own version too.
test-engines: $(VENV)/installed $(VENV_BEAM_2_54)/installed $(VENV_GCP)/installed $(FAKE_GCS_SERVER) $(FLINK_JOB_SERVER) \
		$(SPARK_JOB_SERVER) $(PRISM)
	PRISM=$(abspath $(PRISM)) $(VENV)/bin/python -m pytest -m engines tests/beam_pipelines/test_prism.py tests/beam_pipelines/test_transforms.py
	FLINK_JOB_SERVER=$(abspath $(FLINK_JOB_SERVER)) SPARK_JOB_SERVER=$(abspath $(SPARK_JOB_SERVER)) \
		$(VENV)/bin/python -m pytest -m engines tests/beam_pipelines/test_job_server.py
	FLINK_JOB_SERVER=$(abspath $(FLINK_JOB_SERVER)) $(VENV_BEAM_2_54)/bin/python -m pytest -m engines tests/beam_pipelines/test_job_server.py
	FAKE_GCS_SERVER=$(abspath $(FAKE_GCS_SERVER)) $(VENV_GCP)/bin/python -m pytest -m 'engines or not cloud' \
		tests/beam_pipelines/test_engines.py tests/beam_pipelines/test_packing.py tests/beam_pipelines/test_dataflow.py

.servers/flink/flink-job-server.jar: tests/flink/pom.xml
.servers/spark/spark-job-server.jar: tests/spark/pom.xml
.servers/flink/flink-job-server.jar .servers/spark/spark-job-server.jar:
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo 'error: no Maven or no JRE found, which fetch and run Flink and Spark; install them: apt-get install maven' >&2; exit 2; }
	mvn --quiet --batch-mode --file $< package -Doutput=$(abspath $(@D))

$(VENV_GCP)/installed: setup.py constraints/python3.11-dataflow.txt $$(call renew,$(VENV_GCP),$$(PYTHON_3_11))
	$(call environment,$(VENV_GCP),PYTHON_3_11,3.11,'0.3 GB',--constraint constraints/python3.11-dataflow.txt --editable '.[gcp]' pytest scikit-learn trustme)

# Older than setup.py asks for, as all else is tested with newer ones; hence this package without what it requires.
$(VENV_BEAM_2_54)/installed: constraints/beam-2.54.txt $$(call renew,$(VENV_BEAM_2_54),$$(PYTHON_3_11))
	$(call environment,$(VENV_BEAM_2_54),PYTHON_3_11,3.11,'0.2 GB',--requirement constraints/beam-2.54.txt -- --no-deps --editable .)

## test-preflight: what asks the TPU's compiler
# It takes minutes. The steps of the trainer on JAX are compiled by the libtpu of its own JAX.
test-preflight: $(VENV)/installed $(VENV_PREFLIGHT)/installed $(VENV_NEWEST)/installed $(LIBTPU)/libtpu/__init__.py
	$(VENV)/bin/python -m pytest -m preflight $(call marked,preflight)
	KERAS_BACKEND=jax PYTHONPATH=$(abspath $(LIBTPU)) $(VENV_NEWEST)/bin/python -m pytest -m preflight \
		tests/estimator_app/test_tpu_jax.py

$(LIBTPU)/libtpu/__init__.py: | $(VENV_NEWEST)/installed
	$(VENV_NEWEST)/bin/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(LIBTPU) libtpu

## test-peers: other libraries' readers on our datasets
# Other people's readers, of the environment of the benchmarks. Not part of .ci/run: it is 0.95 GB to load.
test-peers: $(VENV)/installed $(VENV_PEERS)/installed
	VENV_PEERS=$(VENV_PEERS) VENV_PEERS_TORCH=$(wildcard $(VENV_PEERS_TORCH)) \
		$(VENV)/bin/python -m pytest -m peers $(call marked,peers)

## test-torch: the PyTorch example and its guide, and the weights of timm
# examples/torch_train.py and the guide to PyTorch, where TensorFlow is not installed; and published weights, which our
# networks have to compute as timm, torchvision and transformers do, on TensorFlow and on JAX. Not part of .ci/run:
# PyPI's only PyTorch for Linux brings CUDA along, 3 GB to load and 6 GB on disk, of which nothing is used here.
test-torch: $(VENV)/installed $(VENV_NEWEST)/installed $(VENV_TORCH)/installed
	$(VENV_TORCH)/bin/python -m pytest -m torch tests/test_torch_train.py
	VENV_TORCH=$(VENV_TORCH) $(VENV)/bin/python -m pytest -m torch tests/estimator_app/test_published_references.py
	VENV_TORCH=$(VENV_TORCH) KERAS_BACKEND=jax $(VENV_NEWEST)/bin/python -m pytest -m torch tests/estimator_app/test_published_references.py

$(VENV_TORCH)/installed: setup.py constraints.txt constraints/torch.txt $$(call renew,$(VENV_TORCH),$$(PYTHON_3_11))
	$(call environment,$(VENV_TORCH),PYTHON_3_11,3.11,'3 GB',--constraint constraints.txt --editable . --requirement constraints/torch.txt pytest scikit-learn trustme)

## preflight: install the TPU's compiler, which jpeg2tpu preflight uses
# The TPU's compiler, for jpeg2tpu preflight: an environment of its own, for JAX needs another NumPy than
# TensorFlow 2.15; 1.2 GB.
preflight: $(VENV_PREFLIGHT)/installed

$(VENV)/installed: setup.py constraints.txt constraints/references.txt $$(call renew,$(VENV),$$(PYTHON))
	$(call environment,$(VENV),PYTHON,3.11$(comma) 3.12 or 3.13,'1.1 GB',--constraint constraints.txt --editable '.[dev]' -- --no-deps --requirement constraints/references.txt)

demo_has_jax = $(filter jax,$(call demo_trainer,$(PYTHON_DEMO)))
$(VENV_DEMO)/installed: setup.py constraints.txt $$(call renew,$(VENV_DEMO),$$(PYTHON_DEMO))
	$(call environment,$(VENV_DEMO),PYTHON_DEMO,3.11$(comma) 3.12 or 3.13,$(if $(demo_has_jax),'0.3 GB','0.8 GB'),--constraint constraints.txt --editable '.[$(if $(demo_has_jax),jax,train)$(comma)demo]')

$(VENV_NEWEST)/installed: setup.py constraints.txt constraints/references.txt $$(call renew,$(VENV_NEWEST),$$(PYTHON_NEWEST))
	$(call environment,$(VENV_NEWEST),PYTHON_NEWEST,3.12 or 3.13,'1.1 GB',--constraint constraints.txt --editable '.[dev]' -- --no-deps --requirement constraints/references.txt)

## benchmark: measure everything in docs/benchmarks.md
# Everything that docs/benchmarks.md's numbers come from, in parts meant to take under 10 minutes each on
# two cores; for a machine that does nothing else. Results: benchmarks/results/; plots and tables of them are in docs/.
# `make .venv-peers-torch/installed benchmark` adds MosaicML's and litData's converters and
# MosaicML's loader, whose packages take 6.3 GB.
benchmark: $(VENV)/installed $(VENV_PEERS)/installed
	$(BENCHMARK).conversion
	$(WITH_BUCKET) $(BENCHMARK).input
	$(BENCHMARK).order
	$(BENCHMARK).evaluation
	$(BENCHMARK).training
	$(BENCHMARK).training.fine_tuning
	$(BENCHMARK).training.recipes
	$(BENCHMARK).exports
	PYTHONPATH=tests $(BENCHMARK).conversion.urls
	$(WITH_BUCKET) $(BENCHMARK).conversion.stores
	PYTHONPATH=tests $(BENCHMARK).conversion.stores --reads=300
	$(BENCHMARK).plots
	$(BENCHMARK).tables

## benchmark-input: measure the input alone
# The input alone, beside libjpeg-turbo, NVIDIA DALI, Keras, grain and webdataset.
benchmark-input: $(VENV)/installed $(VENV_PEERS)/installed
	$(WITH_BUCKET) $(BENCHMARK).input

$(VENV_PEERS)/installed: benchmarks/requirements-peers.txt $(VENV)/installed
	@.ci/environment $(VENV_PEERS) $(VENV)/bin/python '0.95 GB' --requirement $<

# With this package, which steps in JAX import, and without what else it requires.
$(VENV_PREFLIGHT)/installed: constraints/preflight.txt $$(call renew,$(VENV_PREFLIGHT),$$(PYTHON_3_11))
	$(call environment,$(VENV_PREFLIGHT),PYTHON_3_11,3.11,'0.4 GB',--requirement constraints/preflight.txt -- --no-deps --editable .)

$(VENV_DOCS)/installed: constraints/docs.txt $$(call renew,$(VENV_DOCS),$$(PYTHON))
	$(call environment,$(VENV_DOCS),PYTHON,3.11$(comma) 3.12 or 3.13,'0.1 GB',--requirement constraints/docs.txt)

$(VENV_PEERS_TORCH)/installed: benchmarks/requirements-peers-torch.txt $(VENV)/installed
	@.ci/environment $(VENV_PEERS_TORCH) $(VENV)/bin/python '3 GB' --requirement $<

$(VENV_PEERS_URLS)/installed: benchmarks/requirements-peers-urls.txt $(VENV)/installed
	@.ci/environment $(VENV_PEERS_URLS) $(VENV)/bin/python '0.3 GB' --requirement $<

## release-check: build the release and try it on every Python
# Builds the sdist and the wheel, runs the tests of the sdist, and the demo from the wheel in an empty environment of each
# Python from 3.11 to 3.13: CONTRIBUTING.md. PYTHONS= and TESTS= name some of them; TESTS= alone leaves the tests out.
release-check: $(VENV)/installed
	$(VENV)/bin/python .ci/release_check.py $(if $(PYTHONS),--pythons=$(PYTHONS)) $(if $(filter undefined,$(origin TESTS)),,--tests='$(TESTS)')

## clean: delete everything that make has made
clean:
	rm -rf $(VENV) $(VENV_DEMO) $(VENV_NEWEST) $(VENV_PEERS) $(VENV_PEERS_TORCH) $(VENV_PEERS_URLS) $(VENV_GCP) $(VENV_PREFLIGHT) $(VENV_BEAM_2_54) \
		$(VENV_DOCS) $(VENV_TORCH) $(DEMO) .servers site benchmarks/results build dist release *.egg-info
