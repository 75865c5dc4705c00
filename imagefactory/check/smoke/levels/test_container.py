"""Runs the programs of the image in a container without network and GPU."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import pytest

from imagefactory.check.smoke.assignment import Assignment
from imagefactory.check.smoke.containers import Containers, docker
from imagefactory.check.smoke.subject import Subject
from imagefactory.launch.prepare import prepare
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.image_paths import CUDA_HOME, ENTRYPOINT
from imagefactory.project.cells import buildable
from imagefactory.project.project import Project
from imagefactory.serve_program import Server

Applies = Callable[[bool, str], None]
Measure = Callable[[str, object], None]
IN_CONTAINER = "/tmp/smoke"  # noqa: S108 - in a container of our own
SLOWEST_IMPORT = 300  # seconds
DRIVERS_OWN = {f"{name}.so.1" for name in ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode", "libnvoptix")}
"""Libraries of the GPU driver, which containers get from the host."""
EXCUSED_LIBRARIES = (
    # (who needs it, what it needs, why it is not needed)
    ("lib/lib*omptarget*.so*", "*", "OpenMP on accelerators of Intel; vLLM uses libiomp5 alone"),
    ("lib/libur_*.so*", "*", "the same: their loader and adapters"),
    ("lib/libpi_level_zero.so", "*", "the same, older"),
    ("lib/libarcher.so", "*", "a tool that finds races in OpenMP programs"),
    ("lib/libsycl_pi_trace_collector.so", "*", "a tool that traces SYCL programs"),
    ("*/torchcodec/libtorchcodec_*.so", "lib[ash][vwe]*.so.*", "video decoding with FFmpeg, which it lacks"),
    (
        "*/nvidia/nvshmem/lib/nvshmem_*.so.*",
        "*",
        "NVSHMEM over MPI, UCX, libfabric and so on, which it lacks",
    ),
    ("*/torch_memory_saver_hook_mode_*.so", "libcudart.so.12", "torch's CUDA chooses the one for CUDA 13"),
    ("*/numba/np/ufunc/tbbpool.*.so", "libtbb.so.*", "one of numba's three thread pools; it uses another"),
)
"""Optional plug-ins and tools in wheels."""
EXCUSED_SCRIPTS = {
    "gguf-editor-gui": "an editor with windows; needs the extra gguf[gui]",
    "mistral_common": "a server for tokenizing; needs the extra mistral-common[server]",
    "proton-viewer": "a viewer of Triton's profiler; needs pandas, which its wheel does not require",
}


def of_pair(project: Project, model: str) -> dict[str, str]:
    """Return the settings without which a model for two Sparks does not start."""
    return project.matrix.models[model].node_settings(0, "127.0.0.1")


@pytest.fixture(scope="session")
def run(
    assignment: Assignment, containers: Containers, project: Project, subject: Subject
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the image as users do."""
    needed = [word for setting in of_pair(project, subject.cell.model).items() for word in ("--env", "=".join(setting))]

    def once(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        caches = containers.caches(assignment.image)
        return containers.once(assignment.image, *arguments, options=(*caches, *needed, *options))

    return once


def ending(done: subprocess.CompletedProcess[str]) -> str:
    return f"it ended with code {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-800:]}"


@pytest.mark.parametrize(("options", "uid"), [((), "0"), (("--user", "vllm"), "1000")], ids=["root", "vllm"])
def test_it_starts_as_the_documented_user(
    run: Callable[..., Any], inside: Any, options: tuple[str, ...], uid: str
) -> None:
    """`docker run IMAGE` ends at once, or its files in mounted folders belong to the wrong user."""
    who = run("-u", options=(*options, "--entrypoint", "/usr/bin/id"))
    assert who.stdout.strip() == uid, ending(who)
    started = run("settings", options=options)
    assert started.returncode == 0, ending(started)
    assert "MAX_MODEL_LEN" in started.stdout, "no settings"
    assert inside.user("vllm").uid == 1000


def test_a_dry_run_shows_the_command(run: Callable[..., Any], plan: Plan, program: Server) -> None:
    """`docker run --rm IMAGE --dry-run` does not work."""
    done = run("--dry-run", "--json")
    assert done.returncode in (0, 67), ending(done)  # 67: a container of this test has no GPU
    shown = json.loads(done.stdout)
    model = next(layer.settings.model for layer in plan.layers if layer.kind == "model")
    would = f"it would run {shown['command']}"
    assert tuple(shown["command"][:2]) == program.command, would
    assert model["model"] in shown["command"][2:4], would
    results = {check["name"]: check["result"] for check in shown["checks"]}
    assert results["flags"] == "ok", f"{program.name} does not accept its flags: {shown['checks']}"


def test_the_server_can_be_imported(
    in_python: Callable[..., Any], plan: Plan, project: Project, program: Server, record_property: Measure
) -> None:
    """The server fails at start-up with an ImportError, or takes minutes to start."""
    first, second = (in_python("import_server.py", program.name) for _ in range(2))
    release = project.matrix.versions[plan.version].release
    assert plan.kernels != "upstream" or first["version"].partition("+")[0] == release, first["version"]
    record_property("first_import_seconds", first["seconds"])
    record_property("import_seconds", second["seconds"])
    assert second["seconds"] < SLOWEST_IMPORT, f"it took {second['seconds']} s"


@pytest.fixture(scope="module")
def help_text(run: Callable[..., Any], inside: Any, program: Server) -> tuple[str, float]:
    """What the server says about its flags, with the seconds it took."""
    started = time.monotonic()
    words = program.all_flags.split()
    if program.help_environment:
        done = run(*words[len(program.command) :])
        code, text = done.returncode, done.stdout
    else:
        # Not even its help works without a driver.
        asked = inside.run(f"sh {IN_CONTAINER}/with_driver_stub.sh /opt/venv/bin/{program.name} {' '.join(words[1:])}")
        code, text = asked.rc, asked.stdout
    assert code == 0, f"it ended with code {code}: {text[-800:]}"
    return text, time.monotonic() - started


def test_the_server_explains_its_flags(
    run: Callable[..., Any], help_text: tuple[str, float], record_property: Measure
) -> None:
    """The server's help does not work, so neither will the server; or it lacks a flag of the image's command."""
    text, seconds = help_text
    record_property("help_seconds", round(seconds, 1))
    wrong = unexplained(json.loads(run("--dry-run", "--json").stdout)["command"], text)
    assert not wrong, f"its help does not explain {', '.join(wrong)}"


def test_it_has_the_flags_of_every_model(
    help_text: tuple[str, float], project: Project, subject: Subject, record_property: Measure
) -> None:
    """Images of other models with the same server and arch do not start."""
    same = buildable(project.matrix, subject.cell.version, subject.cell.arch)
    cells = [cell for cell in same if cell.platform == subject.cell.platform]
    record_property("models", len(cells))
    wrong = {}
    for cell in cells:
        settings = of_pair(project, cell.model)
        command = prepare(project, cell, subject.config, given=settings, environment={}).command
        wrong[str(cell)] = unexplained(command, help_text[0])
    assert not any(wrong.values()), f"its help does not explain {wrong}"


def unexplained(command: Sequence[str], text: str) -> list[str]:
    """List the flags of a command that a help does not explain, and values that are not among its choices."""
    explained = {word.rstrip(",") for word in text.replace("[", " ").replace("]", " ").split()}
    # argparse writes choices as --flag {a,b}.
    choices = {flag: set(values.split(",")) for flag, values in re.findall(r"(?<![\w-])(--[\w-]+) \{([^}\s]+)\}", text)}
    # `sglang serve` reads --model-type before the parser that explains itself.
    missing = [word for word in command if word.startswith("--") and word not in explained | {"--model-type"}]
    return missing + [f"{flag} {value}" for flag, value in pairwise(command) if value not in choices.get(flag, {value})]


def test_apt_knows_the_mirrors_of_debian(run: Callable[..., Any], plan: Plan, project: Project) -> None:
    """`apt-get install` finds no package in images made `FROM` this one."""
    debian = project.matrix.bases[project.matrix.archs[plan.arch].base].debian
    done = run("update", "--print-uris", options=("--entrypoint", "/usr/bin/apt-get"))
    for suite in (debian, f"{debian}-security"):
        assert f"/dists/{suite}/main/" in done.stdout, f"{suite} is missing: {ending(done)}"


def test_every_console_script_loads(in_python: Callable[..., Any], record_property: Measure) -> None:
    """A command of the image (vllm, hf, torchrun, ...) fails because a package lacks a requirement."""
    report = in_python("console_scripts.py")
    record_property("scripts", report["loaded"])
    assert report["loaded"] > 0
    wrong = {name: why for name, why in report["failed"].items() if name not in EXCUSED_SCRIPTS}
    assert not wrong, "; ".join(f"{name}: {why}" for name, why in wrong.items())


def test_shared_libraries_resolve(in_python: Callable[..., Any], record_property: Measure) -> None:
    """vLLM fails with "cannot open shared object file" when it first needs the library."""
    report = in_python("shared_libraries.py")
    record_property("libraries", report["libraries"])
    assert report["libraries"] > 0
    wrong = {
        name: needing
        for name, users in report["missing"].items()
        if name not in DRIVERS_OWN and (needing := [user for user in users if not is_excused(user, name)])
    }
    assert not wrong, "; ".join(f"{name}, which {users[0]} needs" for name, users in sorted(wrong.items()))


def is_excused(user: str, name: str) -> bool:
    return any(fnmatchcase(user, who) and fnmatchcase(name, what) for who, what, _ in EXCUSED_LIBRARIES)


def test_the_compiler_supports_the_arch(
    inside: Any, project: Project, plan: Plan, applies: Applies, record_property: Measure
) -> None:
    """The server fails at its first request: FlashInfer and others compile kernels at run time, for this GPU."""
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
    # As in vLLM, torch has loaded the CUDA runtime before.
    loads = inside.run("python3 -c %s", "import torch, ctypes; ctypes.CDLL('/tmp/kernel.so')")
    assert loads.rc == 0, f"it does not load: {complaint(loads)}"
    record_property("arch", int(number.rstrip("af")))  # sm_121a, sm_120f: code for one chip or its family


def test_the_cuda_runtime_is_found_by_name(inside: Any, plan: Plan, applies: Applies) -> None:
    """The server does not start: fastsafetensors asks for it so, and says that there is no GPU."""
    applies("CUDA_HOME" in plan.config.env, "the image has no CUDA toolkit")
    lookup = inside.run("python3 -c %s", "import ctypes; ctypes.CDLL('libcudart.so').cudaGetDeviceCount")
    assert lookup.rc == 0, complaint(lookup)


def complaint(compiled: Any) -> str:
    lines = str(compiled.stderr or compiled.stdout).strip().splitlines() or ["no output"]
    return next((line for line in lines if "error" in line), lines[-1])


def test_the_health_check_is_configured(assignment: Assignment, inside: Any) -> None:
    """Docker takes a dead server for healthy, or keeps restarting a healthy one."""
    wired = json.loads(docker("inspect", "--format", "{{json .Config.Healthcheck}}", assignment.image).stdout)
    assert wired is not None, "the image has no health check"
    assert wired["Test"] == ["CMD", *ENTRYPOINT, "health"], f"it runs {wired['Test']}"
    health = inside.run(" ".join([*ENTRYPOINT, "health"]))
    assert health.rc == 1, f"without a server it says {health.stdout.strip()!r} with code {health.rc}"
    assert "is not healthy" in health.stdout


def test_tls_works(in_python: Callable[..., Any], record_property: Measure) -> None:
    """Models cannot be downloaded ("certificate verify failed"), or can be changed on the way."""
    report = in_python("tls.py")
    record_property("authorities", report["authorities"])
    # Mozilla's list, which Debian and certifi ship, has more than a hundred.
    assert report["authorities"] > 50, "the image trusts hardly any certificate authority"
    assert report["authorities_of_packages"] > 50
    assert report["trusted"] == "well", f"a valid certificate is refused: {report['trusted']}"
    refused = report["not_trusted"]
    assert refused == "SSLCertVerificationError", f"an invalid certificate: {refused}"
    # 60: curl could not verify the server's certificate.
    assert (report["curl_trusted"], report["curl_not_trusted"]) == (0, 60), f"curl: {report}"
