#!/bin/sh
# Runs a Python program in an image for CUDA on a machine without a GPU: vLLM's libraries want symbols of the NVIDIA
# driver, so a library is made that has them all and refuses every call. Usage: with_driver_stub.sh PROGRAM
set -eu

folder=$(mktemp -d)
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The driver's own functions: cu and a capital letter. cudart, cuBLAS and the like come with the image.
find "$packages/vllm" -name '*.so' -exec nm -D --undefined-only {} + |
    awk '$2 ~ /^cu[A-Z][A-Za-z0-9_]*$/ { print $2 }' | sort -u |
    sed 's/.*/int &(void) { return 999; }/' >"$folder/stub.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$folder/stub.c"
LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" python3 "$1"
