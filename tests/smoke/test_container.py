"""The programs of the image, in a container without network and without a GPU."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest

from imagefactory.locks.project import Project
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.image_paths import CUDA_HOME, ENTRYPOINT
from imagefactory.smoke.assignment import Assignment
from imagefactory.smoke.containers import Containers, docker

Applies = Callable[[bool, str], None]
Measure = Callable[[str, object], None]
IN_CONTAINER = "/tmp/smoke"  # noqa: S108 - in a container of our own
SLOWEST_IMPORT = 300
DRIVERS_OWN = {
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvoptix.so.1",
}
"""What comes with the GPU's driver, from the host, when a container gets a GPU."""
EXCUSED_LIBRARIES = (
    # (who needs it, what it needs, why nobody misses it)
    ("lib/lib*omptarget*.so*", "*", "OpenMP on accelerators of Intel; vLLM uses libiomp5 alone"),
    ("lib/libur_*.so*", "*", "the same: their loader, and an adapter for each kind of them"),
    ("lib/libpi_level_zero.so", "*", "the same, in its older form"),
    ("lib/libarcher.so", "*", "a tool that looks for races in OpenMP programs"),
    ("lib/libsycl_pi_trace_collector.so", "*", "a tool that looks into SYCL programs"),
    (
        "*/torchcodec/libtorchcodec_*.so",
        "lib[ash][vwe]*.so.*",
        "decoding of videos, by whichever FFmpeg is there; here is none",
    ),
    (
        "*/nvidia/nvshmem/lib/nvshmem_*.so.*",
        "*",
        "NVSHMEM over MPI, UCX, libfabric and the like; none is in the image",
    ),
    ("*/numba/np/ufunc/tbbpool.*.so", "libtbb.so.*", "one of numba's three thread pools; it takes another"),
)
"""Plug-ins and tools that come along in a wheel and are loaded only where somebody has what they are for."""
EXCUSED_SCRIPTS = {
    "proton-viewer": "a viewer of Triton's profiler; wants pandas, which its wheel does not ask for"
}


@pytest.fixture(scope="session")
def run(assignment: Assignment, containers: Containers) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the image as its users do."""

    def once(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        caches = containers.caches(assignment.image)
        return containers.once(assignment.image, *arguments, options=(*caches, *options))

    return once


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"it ended with code {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-800:]}"


@pytest.mark.parametrize(("options", "uid"), [((), "0"), (("--user", "vllm"), "1000")], ids=["root", "vllm"])
def test_it_starts_as_the_documented_user(
    run: Callable[..., Any], inside: Any, options: tuple[str, ...], uid: str
) -> None:
    """`docker run IMAGE` ends at once, or files that it writes to mounted folders belong to somebody else."""
    who = run("-u", options=(*options, "--entrypoint", "/usr/bin/id"))
    assert who.stdout.strip() == uid, said(who)
    started = run("settings", "--json", options=options)
    assert started.returncode == 0, said(started)
    assert json.loads(started.stdout), "no settings"
    assert inside.user("vllm").uid == 1000


def test_a_dry_run_shows_what_it_would_do(run: Callable[..., Any], plan: Plan) -> None:
    """`docker run --rm IMAGE --dry-run`, which every guide starts with, does not work."""
    done = run("--dry-run", "--json")
    assert done.returncode == 0, said(done)
    told = json.loads(done.stdout)
    model = next(layer.settings.model for layer in plan.layers if layer.kind == "model")
    assert told["command"][:3] == ["vllm", "serve", model["model"]], f"it would run {told['command']}"
    results = {check["name"]: check["result"] for check in told["checks"]}
    assert results["flags"] == "ok", f"vLLM does not take its flags: {told['checks']}"


def test_vllm_can_be_imported(in_python: Callable[[str], Any], plan: Plan, record_property: Measure) -> None:
    """The server stops while it starts, with a traceback of an import; or its users wait for minutes."""
    first, second = (in_python("import_vllm.py") for _ in range(2))
    assert plan.kernels != "upstream" or first["version"].partition("+")[0] == plan.vllm, first["version"]
    record_property("first_import_seconds", first["seconds"])
    record_property("import_seconds", second["seconds"])
    assert second["seconds"] < SLOWEST_IMPORT, f"it took {second['seconds']} s"


def test_vllm_explains_its_flags(run: Callable[..., Any], record_property: Measure) -> None:
    """`vllm serve --help` does not work: neither will `vllm serve`."""
    started = time.monotonic()
    done = run("--help=all")
    assert done.returncode == 0, said(done)
    assert "--max-model-len" in done.stdout, said(done)
    record_property("help_seconds", round(time.monotonic() - started, 1))


def test_every_console_script_loads(in_python: Callable[[str], Any], record_property: Measure) -> None:
    """A command of the image (vllm, hf, torchrun, ...) ends with a traceback: a package lacks what it needs."""
    found = in_python("console_scripts.py")
    record_property("scripts", found["loaded"])
    assert found["loaded"] > 0
    wrong = {name: why for name, why in found["failed"].items() if name not in EXCUSED_SCRIPTS}
    assert not wrong, "; ".join(f"{name}: {why}" for name, why in wrong.items())


def test_shared_libraries_resolve(in_python: Callable[[str], Any], record_property: Measure) -> None:
    """vLLM stops with "cannot open shared object file" when it first needs the library."""
    found = in_python("shared_libraries.py")
    record_property("libraries", found["libraries"])
    assert found["libraries"] > 0
    wrong = {
        name: needing
        for name, users in found["missing"].items()
        if name not in DRIVERS_OWN and (needing := [user for user in users if not is_excused(user, name)])
    }
    assert not wrong, "; ".join(f"{name}, which {users[0]} needs" for name, users in sorted(wrong.items()))


def is_excused(user: str, name: str) -> bool:
    return any(fnmatchcase(user, who) and fnmatchcase(name, what) for who, what, _ in EXCUSED_LIBRARIES)


def test_the_compiler_makes_kernels_for_the_arch(
    inside: Any, project: Project, plan: Plan, applies: Applies, record_property: Measure
) -> None:
    """The server stops at its first request: FlashInfer and others compile kernels at run time, for this chip."""
    arch = project.matrix.archs[plan.arch]
    applies(arch.capability is not None, "the image is for CPUs")
    assert "CUDA_HOME" in plan.config.env, "the image has no CUDA compiler"
    number = str(arch.flashinfer_cuda_arch_list).replace(".", "")
    target = f"arch=compute_{number},code=sm_{number}"
    compiled = inside.run(
        "cd /tmp && nvcc -gencode %s -std=c++17 -O2 --shared -Xcompiler -fPIC -o kernel.so %s -L%s/lib64 -lcudart",
        target, f"{IN_CONTAINER}/kernel.cu", f"/{CUDA_HOME}",
    )  # fmt: skip
    assert compiled.rc == 0, f"nvcc {target}: {complaint(compiled)}"
    cubin = inside.run(
        "nvcc -gencode %s -std=c++17 --cubin -o /tmp/kernel.cubin %s",
        target, f"{IN_CONTAINER}/kernel.cu",
    )  # fmt: skip
    assert cubin.rc == 0, f"nvcc --cubin {target}: {complaint(cubin)}"
    assert inside.file("/tmp/kernel.cubin").content.startswith(b"\x7fELF")  # noqa: S108
    # As vLLM loads it: into a process in which torch has brought the CUDA runtime already.
    loads = inside.run("python3 -c %s", "import torch, ctypes; ctypes.CDLL('/tmp/kernel.so')")
    assert loads.rc == 0, f"it does not load: {complaint(loads)}"
    record_property("arch", int(number.rstrip("af")))


def complaint(compiled: Any) -> str:
    """Find what a compiler complains about, among the lines that lead to it."""
    lines = str(compiled.stderr or compiled.stdout).strip().splitlines() or ["it says nothing"]
    return next((line for line in lines if "error" in line), lines[-1])


def test_the_health_check_is_wired(assignment: Assignment, inside: Any) -> None:
    """Docker calls a dead server healthy, or a living one dead, and restarts it for ever."""
    wired = json.loads(docker("inspect", "--format", "{{json .Config.Healthcheck}}", assignment.image).stdout)
    assert wired is not None, "the image has no health check"
    assert wired["Test"] == ["CMD", *ENTRYPOINT, "health"], f"it runs {wired['Test']}"
    asked = inside.run(" ".join([*ENTRYPOINT, "health"]))
    assert asked.rc == 1, f"without a server it says {asked.stdout.strip()!r} with code {asked.rc}"
    assert "no healthy answer" in asked.stdout


def test_tls_works(in_python: Callable[[str], Any], record_property: Measure) -> None:
    """Models cannot be downloaded ("certificate verify failed"), or anybody in between can change them."""
    found = in_python("tls.py")
    record_property("authorities", found["authorities"])
    assert found["authorities"] > 50, "the image trusts hardly any authority"
    assert found["authorities_of_packages"] > 50
    assert found["trusted"] == "well", f"a good certificate is refused: {found['trusted']}"
    assert found["not_trusted"] == "SSLCertVerificationError", f"a bad certificate: {found['not_trusted']}"
    assert (found["curl_trusted"], found["curl_not_trusted"]) == (0, 60), f"curl: {found}"
