"""Compiles modules of FlashInfer inside the toolchain container, and packs them into a wheel.

FlashInfer compiles its kernels at first use and caches them, but first looks into a package called
flashinfer_jit_cache. Run by `./inv compile` with a JSON job as the only argument.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import os
import shutil
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

from driver_stub import make_stub

SOURCE = Path("/factory/src/flashinfer")
BUILD = Path("/factory/build")
OUT = Path("/factory/out")
UNKNOWN_TARGET = 3
LAUNCHER = Path(__file__).with_name("seeded")
LINKER = "-Wl,--build-id=none,-s"
"""Without build ids, which differ between links, and symbol tables, which name the compiler's temporary files."""
DATE = (1980, 1, 2, 0, 0, 0)
PACKAGE = "flashinfer_jit_cache"

INIT = '''\
"""Kernels of FlashInfer, compiled ahead of time."""

from pathlib import Path
from types import SimpleNamespace

__version__ = {version!r}
_FOLDER = Path(__file__).parent / "jit_cache"


def get_jit_cache_dir():
    """Return where the modules are."""
    return str(_FOLDER)


def get_jit_cache_providers():
    """Describe this package to FlashInfer 0.7 and newer."""
    return [
        SimpleNamespace(
            provider_id="flashinfer-jit-cache",
            distribution="flashinfer-jit-cache",
            version=__version__,
            jit_cache_dir=str(_FOLDER),
            cuda_architectures=frozenset({architectures!r}),
            modules=frozenset({modules!r}),
        )
    ]
'''


def main() -> None:
    """Run the job that the argument describes."""
    job = json.loads(sys.argv[1])
    os.environ.update(
        {
            "FLASHINFER_CXX_LAUNCHER": str(LAUNCHER),
            "FLASHINFER_EXTRA_LDFLAGS": LINKER,
            "FLASHINFER_NVCC_LAUNCHER": str(LAUNCHER),
            "FLASHINFER_WORKSPACE_BASE": str(BUILD),
            "LIBRARY_PATH": str(make_stub(BUILD / "stubs")),
            "MAX_JOBS": str(job["jobs"]),
            "NVCC_APPEND_FLAGS": "-forward-unknown-to-host-compiler",  # some modules are linked by nvcc
        }
    )
    import_flashinfer()
    wanted = job["targets"] or job["modules"]
    specs = {spec.name: spec for spec in all_modules()}
    unknown = [name for name in wanted if name not in specs]
    if unknown:
        print(f"FACTORY-UNKNOWN {json.dumps({'unknown': unknown, 'known': sorted(specs)})}", flush=True)
        raise SystemExit(UNKNOWN_TARGET)
    from flashinfer.jit.core import build_jit_specs

    build_jit_specs([specs[name] for name in wanted], verbose=True, skip_prebuilt=False)
    libraries = {name: specs[name].jit_library_path for name in wanted}
    if job["targets"]:
        for name, library in libraries.items():
            shutil.copy2(library, OUT / f"{name}.so")
    else:
        print(f"packed {write_wheel(job, libraries).name}", flush=True)


def import_flashinfer() -> None:
    """Make FlashInfer's compiler importable without the many requirements of its kernels.

    The package imports everything at once; the part that compiles only needs torch and tvm-ffi. FlashInfer 0.7.2 also
    imports what asks the driver about GPUs, and here there is none.
    """
    data = SOURCE / "flashinfer" / "data"
    data.mkdir(exist_ok=True)
    parts = {"csrc": "csrc", "include": "include"}
    parts |= {path.name: f"3rdparty/{path.name}" for path in sorted((SOURCE / "3rdparty").iterdir())}
    for name, target in parts.items():
        if not (data / name).exists():
            (data / name).symlink_to(Path("../..") / target)
    package: Any = types.ModuleType("flashinfer")
    package.__path__ = [str(SOURCE / "flashinfer")]
    sys.modules["flashinfer"] = package
    sys.modules["pynvml"] = types.ModuleType("pynvml")


def all_modules() -> list[Any]:
    """Return every module that FlashInfer can compile ahead of time for the requested chips."""
    from flashinfer import aot

    # The parameters differ between releases, and are named after the defaults.
    values = aot.get_default_config() | {"sm_capabilities": aot.detect_sm_capabilities()}
    wanted = inspect.signature(aot.gen_all_modules).parameters
    return list(aot.gen_all_modules(**{name: values[name.rstrip("_")] for name in wanted}))


def write_wheel(job: dict[str, Any], libraries: dict[str, Path]) -> Path:
    """Pack the modules into a wheel; the same modules produce the same bytes."""
    version, tag = job["version"], f"py3-none-{job['platform_tag']}"
    info = f"{PACKAGE}-{version}.dist-info"
    architectures = sorted(f"sm{arch.replace('.', '')}" for arch in job["archs"].split())
    init = INIT.format(version=version, architectures=architectures, modules=sorted(libraries))
    metadata = (
        f"Metadata-Version: 2.1\nName: flashinfer-jit-cache\nVersion: {version}\n"
        "Summary: Kernels of FlashInfer, compiled ahead of time\nLicense: Apache-2.0\nRequires-Python: >=3.10\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: imagefactory\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {
        f"{PACKAGE}/__init__.py": init.encode(),
        **{f"{PACKAGE}/jit_cache/{name}/{name}.so": path.read_bytes() for name, path in libraries.items()},
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in sorted(files.items()))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = OUT / f"{PACKAGE}-{version}-{tag}.whl"
    with zipfile.ZipFile(path.with_suffix(".writing"), "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted(files.items(), key=lambda item: (item[0].startswith(info), item[0])):
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)
    path.with_suffix(".writing").rename(path)
    return path


def digest(data: bytes) -> str:
    """Return the hash of a file in RECORD's format."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
