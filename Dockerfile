# jpeg2tpu for training on a CPU (docs/install.md); docs/worker.Dockerfile is for workers of Dataflow:
#
#     docker build --tag jpeg2tpu . &&
#     docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" jpeg2tpu sample digits
#
# With 3.11, it has TensorFlow 2.15 and TPUEstimator.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim
WORKDIR /jpeg2tpu
COPY setup.py pyproject.toml README.md LICENSE constraints.txt jpeg2tpu.py ./
COPY beam_pipelines beam_pipelines
COPY tpu_input tpu_input
COPY estimator_app estimator_app
RUN pip install --upgrade pip
RUN pip install --no-cache-dir --constraint constraints.txt '.[train,demo]'
# Any user can run it: caches go there.
ENV HOME=/tmp
WORKDIR /data
ENTRYPOINT ["jpeg2tpu"]
