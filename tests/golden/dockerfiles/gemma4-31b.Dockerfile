# Made by `./inv render --target gemma4-31b@0.32.0/gb10`; do not edit.
#
# target  gemma4-31b@0.32.0/gb10 for linux/arm64
# plan    0000000000000000000000000000000000000000000000000000000000000000
#
# `./inv build --engine docker --target gemma4-31b@0.32.0/gb10` puts the build context together, of locked files, and runs this.
# What it makes is compared path by path with the image of the embedded engine: docs/engines.md.
#
# One step per layer of the plan, slowest to change first: a changed wheel leaves the steps before it cached.
# hadolint global ignore=DL3059

# --- base: Debian trixie from 170 packages, assembled by the embedded engine and loaded
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

# --- nvidia-cublas: 1 wheel, 542.8 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/01-nvidia-cublas,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cudnn-cu13: 1 wheel, 444.6 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/02-nvidia-cudnn-cu13,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- torch: 1 wheel, 427.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/03-torch,target=/srv \
    python3 -IB /mnt/settle.py keep /srv/torch.yields && \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/torch.txt && \
    python3 -IB /mnt/settle.py restore /srv/torch.yields && \
    python3 -IB /mnt/settle.py finish

# --- vllm: 1 wheel, 321.4 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/04-vllm,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cusolver: 1 wheel, 223.5 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/05-nvidia-cusolver,target=/srv \
    python3 -IB /mnt/settle.py keep /srv/nvidia-cusolver.yields && \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/nvidia-cusolver.txt && \
    python3 -IB /mnt/settle.py restore /srv/nvidia-cusolver.yields && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cusparselt-cu13: 1 wheel, 221.1 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/06-nvidia-cusparselt-cu13,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cufft: 1 wheel, 214.1 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/07-nvidia-cufft,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-nccl-cu13: 1 wheel, 206.0 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/08-nvidia-nccl-cu13,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- triton: 1 wheel, 184.7 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/09-triton,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cusparse: 1 wheel, 162.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/10-nvidia-cusparse,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cutlass-dsl-libs-cu13: 1 wheel, 91.0 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/11-nvidia-cutlass-dsl-libs-cu13,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-curand: 1 wheel, 62.0 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/12-nvidia-curand,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-nvshmem-cu13: 1 wheel, 60.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/13-nvidia-nvshmem-cu13,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-nvvm: 1 wheel, 59.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/14-nvidia-nvvm,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- llvmlite: 1 wheel, 55.1 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/15-llvmlite,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- tilelang: 1 wheel, 46.3 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/16-tilelang,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-nvjitlink: 1 wheel, 45.3 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/17-nvidia-nvjitlink,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cuda-nvrtc: 1 wheel, 43.0 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/18-nvidia-cuda-nvrtc,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- opencv-python-headless: 1 wheel, 39.6 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/19-opencv-python-headless,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- pynvvideocodec: 1 wheel, 35.8 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/20-pynvvideocodec,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- flashinfer-python: 1 wheel, 33.7 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/21-flashinfer-python,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- nvidia-cuda-nvcc: 1 wheel, 32.5 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/22-nvidia-cuda-nvcc,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- z3-solver: 1 wheel, 27.2 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/23-z3-solver,target=/srv \
    python3 -IB /mnt/settle.py keep /srv/z3-solver.yields && \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/z3-solver.txt && \
    python3 -IB /mnt/settle.py restore /srv/z3-solver.yields && \
    python3 -IB /mnt/settle.py finish

# --- nccl-extensions: 1 wheel, 22.3 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/24-nccl-extensions,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- pure-bundle: 106 wheels, 54.4 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/25-pure-bundle,target=/srv \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    python3 -IB /mnt/settle.py finish

# --- platform-bundle: 65 wheels, 155.1 MB
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels/26-platform-bundle,target=/srv \
    python3 -IB /mnt/settle.py keep /srv/torch-c-dlpack-ext.yields && \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/torch-c-dlpack-ext.txt && \
    python3 -IB /mnt/settle.py restore /srv/torch-c-dlpack-ext.yields && \
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

# --- bytecode of start-up and mods
# layer key 0000000000000000000000000000000000000000000000000000000000000000
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=bytecode/start-up,target=/srv \
    PYTHONHASHSEED=0 /usr/bin/python3 -P -s -S -B -W ignore /mnt/compile.py / /srv/modules.txt > /dev/null

# --- settings of the model gemma4-31b
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY model/ /

# --- what the image says of itself
# hadolint takes numbers of tokens for secrets.
# hadolint ignore=DL3064
ENV ATTENTION_BACKEND="triton_attn" \
    CHECKS="enforce" \
    CUDA_CACHE_PATH="/var/cache/imagefactory/cuda" \
    CUDA_HOME="/usr/local/cuda" \
    DFLASH_DRAFTER="z-lab/gemma-4-31B-it-DFlash" \
    DFLASH_NUM_SPEC_TOKENS="15" \
    DO_NOT_TRACK="1" \
    DRAFT_ATTENTION_BACKEND="flash_attn" \
    ENABLE_TURBOQUANT="0" \
    ENFORCE_EAGER="1" \
    FLASHINFER_CUBINS_REPOSITORY="file:///nonexistent" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NO_DOWNLOAD="1" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagefactory/flashinfer" \
    GPU_MEMORY_UTILIZATION="0.8" \
    HANG_LIMIT="300" \
    HEAD_PORT="29501" \
    HF_HOME="/root/.cache/huggingface" \
    HOST="0.0.0.0" \
    KV_DISK_GB="64" \
    KV_DISK_STAGE_GB="4" \
    LANG="C.UTF-8" \
    LIMIT_MM_PER_PROMPT="{\"image\": 0, \"video\": 0}" \
    LOAD_FORMAT="instanttensor" \
    MAX_MODEL_LEN="16384" \
    MAX_NUM_BATCHED_TOKENS="16384" \
    MEMORY_FLOOR="2" \
    MODEL="google/gemma-4-31B-it" \
    MODS_PATH="/mods" \
    NODES="1" \
    PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin" \
    PORT="8000" \
    PROTECT_METRICS="0" \
    QUANTIZATION="fp8_per_tensor" \
    TORCHINDUCTOR_CACHE_DIR="/var/cache/imagefactory/inductor" \
    TQ_INITIAL_LAYERS="4" \
    TQ_KEY_BITS="4" \
    TQ_MODE="hybrid" \
    TQ_RING_CAPACITY="128" \
    TQ_VALUE_BITS="4" \
    TRITON_CACHE_DIR="/var/cache/imagefactory/triton" \
    VIRTUAL_ENV="/opt/venv" \
    VLLM_CACHE_ROOT="/var/cache/imagefactory/vllm" \
    VLLM_DISABLE_COMPILE_CACHE="1" \
    WARMUP="1"
LABEL imagefactory.arch="gb10" \
      imagefactory.audit="passed" \
      imagefactory.audit.summary="3 native, 1 jit, 5 other chips" \
      imagefactory.drafter="z-lab/gemma-4-31B-it-DFlash" \
      imagefactory.kernels="upstream" \
      imagefactory.locked="yes" \
      imagefactory.model="gemma4-31b" \
      imagefactory.mods="inspect-in-fork" \
      imagefactory.plan="0000000000000000000000000000000000000000000000000000000000000000" \
      imagefactory.vllm="0.32.0" \
      org.opencontainers.image.base.name="trixie" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.title="vLLM 0.32.0 for gemma4-31b on gb10" \
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
