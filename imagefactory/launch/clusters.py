"""Writes the start of an image for what runs many machines: Kubernetes, Slurm, GPUStack.

None of them is told more than `docker run` is: the image by digest, settings by name, volumes, and the files with the
key and the nodes' secret. What joins several nodes comes from the cluster's own variables.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from imagefactory.errors import UsageError, unknown_name
from imagefactory.launch.docker_run import STOP_SECONDS, TOKEN, Launch, block_text
from imagefactory.launch.recipes import CLUSTERS, FIRST_START
from imagefactory.launch.rendering import render_text, render_yaml
from imagefactory.plan.serve.description import image_environment
from imagefactory.plan.serve.image_paths import CACHES, ENTRYPOINT, KEY_FILE, MODEL_CACHE
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import MachineMemory, Matrix
from imagefactory.project.server_versions import TITLES
from imagefactory.serve_program import memory

KUBERNETES, SLURM, GPUSTACK = CLUSTERS
OF_NODES: Final = ("NODES", "NODE_RANK", "HEAD_ADDRESS", "PAIR_SECRET_FILE")
"""Settings that a cluster's own variables and files give to each node."""
DRAIN_SECONDS: Final = 5  # until a Service has noticed that a pod ends
RDMA: Final = "rdma/hca_shared_devices_a"  # what the example of NVIDIA's shared device plugin calls the adapters
KERNELS_GB: Final = 20
SPARE: Final = 1.1  # how much larger than its files a volume is
_SECRETS: Final = PurePosixPath(KEY_FILE).parent
_PAIR_FILE: Final = f"{_SECRETS}/pair_secret"
_LONGEST_NAME: Final = 50  # of 63 characters: names of pods add to those of their owners


def settings_of_one_node(form: str, matrix: Matrix, cell: Cell, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with those of a first node, which an image wants to see; a cluster knows the real ones."""
    nodes = given.get("NODES", str(matrix.models[cell.model].sparks))
    if nodes == "1":
        return dict(given)
    if form == GPUSTACK:
        raise _unfit("NODES", "GPUStack starts a backend of one's own on one machine.", "--recipe kubernetes or slurm")
    for name in ("NODE_RANK", *(("HEAD_ADDRESS",) if form == SLURM else ())):
        if name in given:
            raise _unfit(name, "All nodes start from one file; the cluster tells each what it is.", f"no {name}")
    return {"HEAD_ADDRESS": "192.0.2.1", **given, "NODES": nodes, "NODE_RANK": "0"}


def _unfit(setting: str, why: str, instead: str) -> UsageError:
    what = f"{setting} does not go into this file."
    return UsageError("bad-setting", what, where="the --set option", why=why, fix=f"Use {instead}.")


def written(
    form: str, launch: Launch, machine: MachineMemory | None, given: Mapping[str, str], profiles: Sequence[str] = ()
) -> str:
    """Return the file for a cluster; `given` are the user's own settings."""
    if form == KUBERNETES:
        return kubernetes(launch, machine, given.get("HEAD_ADDRESS", ""), profiles)
    return slurm(launch, machine) if form == SLURM else gpustack(launch)


def kubernetes(launch: Launch, machine: MachineMemory | None, head: str = "", profiles: Sequence[str] = ()) -> str:
    """Return manifests; `head` is the address on the cable, if the nodes should not meet at that of the leader's host.

    The server always needs a key: everybody in a cluster can reach a Service.
    """
    for profile in profiles:
        if profile != "metrics":
            raise unknown_name("profile for Kubernetes", profile, ["metrics"], "the --with option")
    name, nodes = _name(launch), _nodes(launch)
    rdma = launch.on_gpu and nodes > 1
    labels = {"app.kubernetes.io/name": name}
    head_labels = labels | ({"imagefactory/node": "head"} if nodes > 1 else {})
    files = {"api-key": PurePosixPath(KEY_FILE).name} | ({"pair-secret": "pair_secret"} if nodes > 1 else {})
    limits = ({"nvidia.com/gpu": 1} if launch.on_gpu else {}) | ({RDMA: 1} if rdma else {})
    values: dict[str, Any] = {
        "launch": launch,
        "name": name,
        "nodes": nodes,
        "shared_labels": labels,
        "head_labels": head_labels,
        "claims": _claims(launch),
        "port": int(_settings(launch)["PORT"]),
        "settings": {key: value for key, value in sorted(launch.given.items()) if key not in OF_NODES},
        "head_address": head or "$(LWS_LEADER_ADDRESS)",
        "pinned": bool(head),
        "kv_disk": launch.given.get("KV_DISK"),
        "key_file": KEY_FILE,
        "pair_file": _PAIR_FILE,
        "secrets": str(_SECRETS),
        "items": [{"key": key, "path": path} for key, path in files.items()],
        "memory": _requested_memory(launch, machine),
        "limits": limits,
        "rdma": rdma,
        "token": TOKEN,
        "model_cache": MODEL_CACHE,
        "caches": CACHES,
        "first_start": FIRST_START,
        "stop_seconds": STOP_SECONDS,
        "drain_seconds": DRAIN_SECONDS,
        "monitor": "metrics" in profiles,
    }
    pods = {
        role: render_yaml("kubernetes-pod.yaml", **values, labels=own_labels, is_head=role == "head")
        for role, own_labels in (("head", head_labels), ("worker", labels))
    }
    documents = render_yaml("kubernetes.yaml", **values, labels=labels, **pods)["documents"]
    unified = launch.on_gpu and machine is not None and machine.unified
    lines = [*_needs(nodes, unified=unified, rdma=rdma), *_how_to_apply(launch, name, nodes, pinned=bool(head))]
    return "".join(f"# {line}\n" for line in lines) + "---\n".join(map(block_text, documents))


def _needs(nodes: int, *, unified: bool, rdma: bool) -> list[str]:
    """Return what a cluster must have."""
    lines = []
    if unified:
        # Earlier ones fail at a GPU that reports no memory: NVIDIA/k8s-device-plugin#1482, NVIDIA/gpu-operator#1794.
        lines.append("Needs NVIDIA's device plugin 0.17.4 or later (GPU Operator 25.10).")
    if nodes > 1:
        lines.append("Needs LeaderWorkerSet 0.8.0 or later (https://lws.sigs.k8s.io).")
    if rdma:
        lines.append(f"Needs a device plugin for RDMA; correct {RDMA} if it has another name for the adapters.")
    return lines


def _how_to_apply(launch: Launch, name: str, nodes: int, *, pinned: bool) -> list[str]:
    made = '"$(openssl rand -hex 32)"'
    key = f"--from-file=api-key={launch.key_file}" if launch.key_file else f"--from-literal=api-key={made}"
    pair = f" --from-literal=pair-secret={made}" if nodes > 1 else ""
    lines = [f'kubectl create secret generic {name} {key}{pair} --from-literal=hf-token="$HF_TOKEN"']
    if pinned:
        lines.append(f"kubectl label node HEAD imagefactory/head={name}")
    return [*lines, "kubectl apply -f THIS_FILE"]


def _claims(launch: Launch) -> dict[str, str]:
    """Return the sizes of volumes."""
    facts = launch.description["image"].get("memory") or {}
    files = sum(facts.get(part, 0) for part in ("download", "drafter", "table"))
    sizes = {"weights": files / 1e9, "kernels": KERNELS_GB}
    if "KV_DISK" in launch.given:
        sizes["kv"] = float(_settings(launch)["KV_DISK_GB"])
    return {claim: f"{max(1, round(size * SPARE))}G" for claim, size in sizes.items()}


def _requested_memory(launch: Launch, machine: MachineMemory | None) -> str:
    """Return what a scheduler should keep for the server: on a unified memory its share of it."""
    needed = memory.KNOWN.host_reserve if launch.on_gpu else memory.KNOWN.last_reserve
    share = _settings(launch).get("GPU_MEMORY_UTILIZATION", "")
    if machine and machine.unified:
        needed = int(machine.total * (float(share) if re.fullmatch(r"[0-9.]+", share) else 0.9))
    return f"{needed // 2**20}Mi"


def slurm(launch: Launch, machine: MachineMemory | None) -> str:
    """Return a batch file; ranks and addresses come from Slurm's variables."""
    nodes, options = _nodes(launch), []
    if launch.on_gpu:
        options.append("--gpus-per-node=1")
    if machine and not machine.unified:
        options.append(f"--mem={memory.KNOWN.host_reserve // 10**9}G")
    else:
        # What else runs there would take memory that no limit guards.
        options += ["--exclusive", "--mem=0"]
    gpu = ("--device", "nvidia.com/gpu=all", "--ulimit", "host") if launch.on_gpu else ()
    rdma = ("--device", "/dev/infiniband") if launch.on_gpu and nodes > 1 else ()
    podman = ("--network", "host", "--ipc", "host", *gpu, *rdma)
    volumes = [f"{launch.cache_volume}:{CACHES}"]
    if kv_disk := launch.given.get("KV_DISK"):
        volumes.append(f"{launch.kv_volume}:{kv_disk}")
    job = {
        "name": _name(launch),
        "nodes": nodes,
        "options": options,
        "image": launch.image,
        "models": launch.models,
        "volumes": volumes,
        "cable": launch.given.get("CABLE", ""),
        "podman": podman,
        "patience": STOP_SECONDS - 10,
        "apptainer": ("--nv",) if launch.on_gpu else (),
        "model_cache": MODEL_CACHE,
        "port": _settings(launch)["PORT"],
    }
    own = (*OF_NODES, "CABLE")
    settings = {key: value for key, value in sorted(launch.given.items()) if key not in own}
    return render_text("slurm.sh", "shell", job=job, settings=settings, key_file=launch.key_file)


def gpustack(launch: Launch) -> str:
    """Return a backend for GPUStack, which downloads the model itself and puts its own values for {{names}}.

    Its form for a model proposes variables of a backend, but a container gets only those of the model: `env` sets them.
    """
    version = f"{launch.description['image'][launch.cell.server]}-custom"
    names = {"MODEL_PATH": "{{model_path}}", "PORT": "{{port}}", "SERVED_MODEL_NAME": "{{model_name}}"}
    settings = dict(sorted(launch.given.items())) | names
    words = [f"{name}={value}" if name in names else shlex.quote(f"{name}={value}") for name, value in settings.items()]
    document = {
        "backend_name": f"{_name(launch)}-custom",
        "description": f"{launch.cell.model} by {TITLES[launch.cell.server]}",
        "default_version": version,
        "health_check_path": "/health",
        "version_configs": {
            version: {
                "image_name": launch.image,
                "custom_framework": "cuda" if launch.on_gpu else "cpu",
                "entrypoint": "/usr/bin/env",
                "run_command": " ".join((*words, *ENTRYPOINT)),
            }
        },
    }
    return block_text(document)


def _settings(launch: Launch) -> dict[str, str]:
    return image_environment(launch.description) | dict(launch.given)


def _nodes(launch: Launch) -> int:
    return int(_settings(launch).get("NODES", "1"))


def _name(launch: Launch) -> str:
    """Return a name that every object of Kubernetes may have."""
    return re.sub(r"[^a-z0-9]+", "-", launch.container.lower())[:_LONGEST_NAME].strip("-")
