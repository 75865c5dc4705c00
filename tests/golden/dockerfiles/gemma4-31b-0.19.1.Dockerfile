# Made by `./inv render --target gemma4-31b@0.19.1/gb10`; do not edit.
#
# target  gemma4-31b@0.19.1/gb10 for linux/arm64
# plan    none yet: a plan needs locks, and this cell's wheels have to be compiled first
#
# Not locked yet, so this says how the image is made, and not yet from which bytes:
#   - locks/0.19.1/gb10-linux-arm64.toml: the wheels of the image, with the two that are compiled among them
#   - the toolchain image: its packages and CUDA wheels
#   - FlashInfer's sources, and the git dependencies of vLLM's CMake
#
# `./inv compile --vllm 0.19.1 --arch gb10` does the first three stages step by step: it checks memory and
# disk beforehand, goes on where it was interrupted, and keeps the wheels by what they were made from. `./inv lock`
# then adopts them, and from there on this file is rendered from the plan, without a compiler in it.
#
# Every file of the build context stands in context.json, with where it comes from and its sha256 where it has one.

ARG SOURCE_DATE_EPOCH=315619200
# Jobs of nvcc at once; each needs 3 to 8 GB of memory.
ARG MAX_JOBS=4

# --- toolchain: gcc, cmake, ninja, ccache and CUDA 13 from wheels, assembled by the embedded engine and loaded
FROM imagefactory/toolchain:trixie AS toolchain
ENV TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    CCACHE_DIR="/ccache" \
    CCACHE_NOHASHDIR="1" \
    CMAKE_CUDA_COMPILER_LAUNCHER="ccache" \
    CMAKE_CXX_COMPILER_LAUNCHER="ccache" \
    LDFLAGS="-Wl,--build-id=none" \
    PYTHONHASHSEED="0" \
    UV_NO_CONFIG="1" \
    UV_OFFLINE="1" \
    UV_PYTHON="/opt/venv/bin/python3"

# --- vLLM 0.19.1
# with the mod fa3-on-hopper: Leaves FlashAttention 3 out of a compile without a Hopper among its chips, which are the only ones to run it
# with the mod gb10-cutlass-fallback: Keeps FP8 layers off CUTLASS kernels that do not run on compute capability 12.1
# with the mod marlin-fp8-sm121: Compiles the Marlin kernels with FP8 activations for 12.1 too, where they would be missing without an error
# with the mod native-fa2: Compiles FlashAttention 2 for the chips that are asked for, instead of 8.0 and PTX for the driver to translate
# with the mod no-older-kernels: Leaves the CUTLASS 2 kernels of Turing, Ampere and Ada out of a compile for newer chips, which never call them
FROM toolchain AS vllm
ARG SOURCE_DATE_EPOCH
ARG MAX_JOBS
COPY sources/vllm/ /src/vllm/
COPY sources/dependencies/ /src/dependencies/
WORKDIR /src/vllm
ENV VLLM_TARGET_DEVICE="cuda" \
    VLLM_VERSION_OVERRIDE="0.19.1" \
    CMAKE_ARGS="-DFETCHCONTENT_SOURCE_DIR_VLLM-FLASH-ATTN=/src/dependencies/flash-attention" \
    VLLM_CUTLASS_SRC_DIR="/src/dependencies/cutlass" \
    FLASH_MLA_SRC_DIR="/src/dependencies/flashmla" \
    QUTLASS_SRC_DIR="/src/dependencies/qutlass" \
    TRITON_KERNELS_SRC_DIR="/src/dependencies/triton_kernels"
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=cache,target=/ccache \
    /mnt/uv build --wheel --no-build-isolation --out-dir /wheels /src/vllm

# --- FlashInfer, in the version that this vLLM asks for
FROM toolchain AS flashinfer
ARG SOURCE_DATE_EPOCH
ARG MAX_JOBS
COPY sources/flashinfer/ /src/flashinfer/
WORKDIR /src/flashinfer
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=cache,target=/ccache \
    /mnt/uv build --wheel --no-build-isolation --out-dir /wheels /src/flashinfer

# --- both wheels in one place
FROM scratch AS compiled
COPY --from=vllm /wheels/ /
COPY --from=flashinfer /wheels/ /

# --- base: Debian trixie from 170 packages, assembled by the embedded engine and loaded
# layer key 0000000000000000000000000000000000000000000000000000000000000000
FROM imagefactory/base:0000000000000000

ARG SOURCE_DATE_EPOCH
ARG VIRTUAL_ENV=/opt/venv
ARG UV_CACHE_DIR=/opt/venv/.uv
ARG UV_LINK_MODE=hardlink
ARG UV_NO_CONFIG=1
ARG UV_OFFLINE=1
ARG UV_PYTHON=/opt/venv/bin/python3

# --- wheels: those of the lock to come, and the two from above, which it will hold to their sha256
RUN --mount=type=bind,source=tools,target=/mnt \
    --mount=type=bind,source=wheels,target=/srv \
    --mount=type=bind,from=compiled,target=/media \
    /mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv -r /srv/requirements.txt && \
    /mnt/uv pip install --no-deps --no-index /media/*.whl && \
    python3 -IB /mnt/settle.py finish

# --- serve program
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY serve/ /

# --- mod gb10-cutlass-fallback
# its layer has a key once the wheel that it changes is locked
COPY mods/01-gb10-cutlass-fallback/ /

# --- settings of the model gemma4-31b
# layer key 0000000000000000000000000000000000000000000000000000000000000000
COPY model/ /

# --- what the image says of itself
# hadolint takes numbers of tokens for secrets.
# hadolint ignore=DL3064
ENV ATTENTION_BACKEND="triton_attn" \
    CHECKS="enforce" \
    CUDA_CACHE_PATH="/var/cache/imagefactory/cuda" \
    ENABLE_TURBOQUANT="0" \
    ENFORCE_EAGER="1" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagefactory/flashinfer" \
    GPU_MEMORY_UTILIZATION="0.8" \
    HF_HOME="/root/.cache/huggingface" \
    HOST="0.0.0.0" \
    LANG="C.UTF-8" \
    LIMIT_MM_PER_PROMPT="{\"image\": 0, \"video\": 0}" \
    MAX_MODEL_LEN="16384" \
    MAX_NUM_BATCHED_TOKENS="16384" \
    MODEL="google/gemma-4-31B-it" \
    MODS_PATH="/mods" \
    PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    PORT="8000" \
    QUANTIZATION="fp8" \
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
      imagefactory.audit="not-audited" \
      imagefactory.audit.summary="no wheels are locked" \
      imagefactory.drafter="none" \
      imagefactory.kernels="compiled" \
      imagefactory.locked="no" \
      imagefactory.model="gemma4-31b" \
      imagefactory.mods="gb10-cutlass-fallback" \
      imagefactory.vllm="0.19.1" \
      org.opencontainers.image.base.name="trixie" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/OWNER/spark-image-factory" \
      org.opencontainers.image.title="vLLM 0.19.1 for gemma4-31b on gb10" \
      org.opencontainers.image.version="0.19.1"
EXPOSE 8000/tcp
WORKDIR /
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=3600s --retries=4 \
    CMD ["/usr/bin/python3", "-I", "-S", "/usr/share/imagefactory/serve", "health"]
# vLLM's caches and mounted model folders belong to root; `docker run --user` changes that where it matters.
# By name, as the embedded engine writes it.
# hadolint ignore=DL3002,DL3066
USER root
ENTRYPOINT ["/usr/bin/python3", "-I", "-S", "/usr/share/imagefactory/serve"]
CMD []
