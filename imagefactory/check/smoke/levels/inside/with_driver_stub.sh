#!/bin/sh
# Runs a Python program in an image for CUDA on a machine without a GPU: the libraries of vLLM and SGLang want symbols of
# the NVIDIA driver, so a library is made that has them all and refuses every call, with the code in DRIVER_ANSWER.
# Usage: with_driver_stub.sh PROGRAM [ARGUMENT...]
set -eu

folder=$(mktemp -d)
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The driver's own functions: cu and a capital letter. cudart, cuBLAS and the like come with the image.
for name in vllm sgl_kernel; do
    [ ! -d "$packages/$name" ] || find "$packages/$name" -name '*.so' -exec nm -D --undefined-only {} +
done |
    awk '$2 ~ /^cu[A-Z][A-Za-z0-9_]*$/ { print $2 }' | sort -u |
    sed "s/.*/int &(void) { return ${DRIVER_ANSWER:-999}; }/" >"$folder/stub.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$folder/stub.c"
LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec python3 "$@"
