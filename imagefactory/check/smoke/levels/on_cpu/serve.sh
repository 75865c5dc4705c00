#!/bin/sh
# Starts the server of an image for GPUs on a CPU. What that takes comes from this folder and stays in the container: a
# stub of the driver that finds no device, and a shim that Python runs first in every process of the server.
set -eu

here=$(dirname "$0")
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$here/cpu_shim.py" "$packages/imagefactory_cpu_shim.py"
echo 'import imagefactory_cpu_shim' >"$packages/imagefactory_cpu_shim.pth"
# CUDA_ERROR_NO_DEVICE
export DRIVER_ANSWER=100
exec sh "$here/with_driver_stub.sh" -I -S /usr/share/imagefactory/serve
