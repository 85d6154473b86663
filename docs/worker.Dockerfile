# The image of a worker that installs nothing when it starts (docs/clusters.md):
#
#     docker build --file docs/worker.Dockerfile --tag REGISTRY/jpeg2tpu-worker .
#
# Python's minor version and Beam's version have to be those of the machine that launches.
ARG PYTHON=3.11
ARG BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM}
ARG PYTHON
COPY setup.py pyproject.toml README.md LICENSE /tmp/jpeg2tpu/
COPY beam_pipelines /tmp/jpeg2tpu/beam_pipelines
COPY tpu_input /tmp/jpeg2tpu/tpu_input
COPY estimator_app /tmp/jpeg2tpu/estimator_app
COPY constraints /tmp/jpeg2tpu/constraints
RUN pip install --no-cache-dir --constraint /tmp/jpeg2tpu/constraints/python${PYTHON}-dataflow.txt /tmp/jpeg2tpu \
    && pip check && rm -r /tmp/jpeg2tpu
# Beam's own entry point, which starts a worker, stays.
