"""Files for clusters: what each says is what `docker run` would say, in the words of Kubernetes, Slurm and GPUStack."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.launch import clusters
from imagefactory.launch.docker_run import Launch
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import select_one
from tests.fixtures.engines import wait_until
from tests.fixtures.failures import raises
from tests.fixtures.serving import IMAGE, prepared

PAIR = "deepseek-v4-flash"
LATER = {"LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"}
"""Variables that LeaderWorkerSet puts before those of a pod."""


def launch(matrix: Matrix, target: str, form: str = clusters.KUBERNETES, **given: str) -> Launch:
    own = clusters.settings_of_one_node(form, matrix, select_one(matrix, target), given)
    return prepared(target, environment={}, **own).launch


def documents(text: str) -> dict[str, dict[str, Any]]:
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


def manifests(matrix: Matrix, target: str, *profiles: str, **given: str) -> dict[str, dict[str, Any]]:
    machine = matrix.archs[select_one(matrix, target).arch].memory
    text = clusters.written("kubernetes", launch(matrix, target, **given), machine, given, profiles)
    return documents(text)


def container(template: Mapping[str, Any]) -> dict[str, Any]:
    [found] = template["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(template: Mapping[str, Any]) -> dict[str, str]:
    """Return what Kubernetes makes of the variables: $$ is a dollar, $(NAME) the variable of an earlier line."""
    found: dict[str, str] = {}
    for entry in container(template)["env"]:
        if "value" not in entry:
            continue
        known = {"": "$"} | found | {name: f"<{name}>" for name in LATER}
        parts = re.split(r"\$(?:\$|\(([A-Z_]+)\))", entry["value"])
        # Every second part is the name of a variable, or None for an escaped dollar.
        found[entry["name"]] = "".join(known[part or ""] if index % 2 else part for index, part in enumerate(parts))
    return found


def test_one_node_is_a_deployment_with_probes_on_the_routes_that_mean_them(real_matrix: Matrix) -> None:
    found = manifests(real_matrix, "gemma4-31b", KV_DISK="/kv", MAX_MODEL_LEN="8k")
    pod = found["Deployment"]["spec"]["template"]
    server = container(pod)
    assert server["image"] == IMAGE
    routes = {kind: server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert routes == {"startup": "/health", "readiness": "/health", "liveness": "/alive"}
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    assert found["Deployment"]["spec"]["progressDeadlineSeconds"] > 3600
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert environment(pod)["MAX_MODEL_LEN"] == "8192"
    # No limit sees what CUDA takes on a GB10; a request keeps the scheduler from adding to it.
    assert server["resources"] == {"requests": {"memory": "98056Mi"}, "limits": {"nvidia.com/gpu": 1}}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert pod["spec"]["enableServiceLinks"] is False, "vLLM reads variables of a Service named like it"
    stop = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > stop + 30
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert mounts == {
        "weights": "/root/.cache/huggingface",
        "kernels": "/var/cache/imagefactory",
        "kv": "/kv",
        "shm": "/dev/shm",  # noqa: S108 - a path of the container
        "secret": "/run/secrets",
    }
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == server["ports"][0]["name"]


def test_claims_hold_the_files_and_newer_images_compile_their_own_kernels(real_matrix: Matrix) -> None:
    first = prepared("gemma4-31b", KV_DISK="/kv", KV_DISK_GB="100").launch
    texts = [clusters.kubernetes(one, None) for one in (first, replace(first, image=IMAGE.replace("cd", "ab")))]
    sizes = {
        found["metadata"]["name"]: found["spec"]["resources"]["requests"]["storage"]
        for found in yaml.safe_load_all(texts[0])
        if found["kind"] == "PersistentVolumeClaim"
    }
    assert sizes == {
        "vllm-gemma4-31b-weights": "74G",  # 63 GB, a drafter of 4 GB, and a tenth to spare
        "vllm-gemma4-31b-kernels": "22G",
        "vllm-gemma4-31b-kv": "110G",
    }
    folders = [re.findall(r"subPath: (.*)", text) for text in texts]
    assert folders[0] != folders[1]
    assert documents(texts[0])["Service"] == documents(texts[1])["Service"]
    assert real_matrix.models["gemma4-31b"].memory is not None


def test_key_and_token_come_from_a_secret_and_no_server_starts_without_a_key(
    real_matrix: Matrix, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("hunter2")
    for key in (None, tmp_path / "key"):
        text = clusters.kubernetes(replace(launch(real_matrix, "gemma4-31b"), key_file=key), None)
        pod = documents(text)["Deployment"]["spec"]["template"]
        [secret] = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        place = environment(pod)["VLLM_API_KEY_FILE"]
        assert secret["items"] == [{"key": "api-key", "path": place.removeprefix("/run/secrets/")}]
        assert "optional" not in secret
        assert "hunter2" not in text
        [token] = [entry for entry in container(pod)["env"] if entry["name"] == "HF_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"]["optional"] is True
        made = f"--from-file=api-key={key}" if key else "--from-literal=api-key="
        assert f"kubectl create secret generic {secret['secretName']} {made}" in text


def test_several_nodes_are_a_set_that_starts_again_as_one(real_matrix: Matrix) -> None:
    found = manifests(real_matrix, PAIR)
    spec = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert (spec["size"], spec["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    head, worker = spec["leaderTemplate"], spec["workerTemplate"]
    for pod in (head, worker):
        own = environment(pod)
        assert (own["NODES"], own["NODE_RANK"], own["HEAD_ADDRESS"]) == (
            *("2", "<LWS_WORKER_INDEX>"),
            "<LWS_LEADER_ADDRESS>",
        )
        assert own["PAIR_SECRET_FILE"] == "/run/secrets/pair_secret"  # noqa: S105 - a path
        assert container(pod)["resources"]["limits"] == {"nvidia.com/gpu": 1, clusters.RDMA: 1}
        assert container(pod)["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        assert pod["spec"]["hostNetwork"]
        assert pod["spec"]["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
        # They would take the same ports of one machine.
        [apart] = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert apart["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    # Only the head listens, and the others end when it does.
    assert container(worker)["readinessProbe"]["exec"] == {"command": ["health"]}
    assert "livenessProbe" not in container(worker)
    assert "PersistentVolumeClaim" not in found
    assert {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]} == {"weights", "kernels"}
    assert not found["Service"]["spec"]["selector"].items() <= worker["metadata"]["labels"].items()


def test_a_head_on_a_cable_has_its_own_machine(real_matrix: Matrix) -> None:
    found = manifests(real_matrix, PAIR, HEAD_ADDRESS="192.168.100.1")
    spec = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert environment(spec["workerTemplate"])["HEAD_ADDRESS"] == "192.168.100.1"
    assert spec["leaderTemplate"]["spec"]["nodeSelector"]["imagefactory/head"] == "vllm-deepseek-v4-flash"
    assert "imagefactory/head" not in spec["workerTemplate"]["spec"]["nodeSelector"]


@pytest.mark.parametrize(
    ("target", "needed"),
    [
        ("tiny", []),
        ("gemma4-31b", ["device plugin 0.17.4"]),
        (PAIR, ["device plugin 0.17.4", "LeaderWorkerSet 0.8.0", f"RDMA; correct {clusters.RDMA}"]),
    ],
)
def test_a_manifest_begins_with_what_the_cluster_must_have(real_matrix: Matrix, target: str, needed: list[str]) -> None:
    machine = real_matrix.archs[select_one(real_matrix, target).arch].memory
    lines = clusters.kubernetes(launch(real_matrix, target), machine).splitlines()
    needs = [line for line in lines if line.startswith("# Needs ")]
    assert len(needs) == len(needed)
    assert all(words in line for words, line in zip(needed, needs, strict=True))


def test_a_monitor_of_pods_reads_the_head_with_the_key_if_it_must(real_matrix: Matrix) -> None:
    assert "PodMonitor" not in manifests(real_matrix, "gemma4-31b")
    for given, with_key in (({}, False), ({"PROTECT_METRICS": "1"}, True)):
        [endpoint] = manifests(real_matrix, PAIR, "metrics", **given)["PodMonitor"]["spec"]["podMetricsEndpoints"]
        assert ("authorization" in endpoint) == with_key
    with raises("unknown-name", match="profile for Kubernetes 'webui'"):
        manifests(real_matrix, "gemma4-31b", "webui")


def test_a_cpu_needs_no_gpu(real_matrix: Matrix) -> None:
    pod = manifests(real_matrix, "tiny")["Deployment"]["spec"]["template"]
    assert "runtimeClassName" not in pod["spec"]
    assert container(pod)["resources"]["limits"] == {}
    assert "--gpus-per-node" not in clusters.slurm(launch(real_matrix, "tiny"), None)


@pytest.mark.parametrize("name", ["NODE_RANK", "HEAD_ADDRESS"])
def test_what_a_cluster_knows_is_not_set(real_matrix: Matrix, name: str) -> None:
    with raises("bad-setting", match=f"{name} does not go into this file"):
        launch(real_matrix, PAIR, clusters.SLURM, **{name: "0"})
    with raises("bad-setting", match="NODES does not go"):
        launch(real_matrix, PAIR, clusters.GPUSTACK)


@pytest.mark.parametrize("target", ["gemma4-31b", PAIR])
def test_a_batch_file_is_clean_shell_for_each_runtime(real_matrix: Matrix, tmp_path: Path, target: str) -> None:
    machine = real_matrix.archs["gb10"].memory
    path = tmp_path / "job"
    path.write_text(clusters.slurm(launch(real_matrix, target, clusters.SLURM), machine))
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    if shutil.which("shellcheck"):
        # Functions that srun's shell calls look unreachable.
        done = subprocess.run(["shellcheck", "--exclude=SC2317", path], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stdout


SLURM = {
    "scontrol": 'if [ "$2" = hostnames ]; then printf "n1\\nn2\\n"; else echo "NodeAddr=127.0.0.1 x"; fi',
    "srun": 'shift 2; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
    "openssl": "echo 0123456789abcdef",
}
"""As much of Slurm as a job needs: two nodes, one after the other."""
RUNTIMES = ("podman", "apptainer", "enroot")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_node_gets_its_rank_the_address_and_every_character_of_the_settings(
    real_matrix: Matrix, tmp_path: Path, runtime: str
) -> None:
    nasty = 'it\'s $HOME, "x" `id` \\'
    started = launch(real_matrix, PAIR, clusters.SLURM, SERVED_MODEL_NAME=nasty)
    # The image refuses KV_DISK for several nodes; a batch file takes what it gets.
    text = clusters.slurm(replace(started, given={**started.given, "KV_DISK": "/kv"}), None)
    record = tmp_path / "record"
    # Records its arguments, and the lines of the file with settings that Apptainer gets.
    shows = f'printf \'%s\\n\' "$@" >> {record}; for word; do [ ! -f "$word" ] || . "$word"; done'
    shows += f'; echo "name:${{SERVED_MODEL_NAME:-}}" >> {record}; echo "rank:${{NODE_RANK:-}}" >> {record}'
    programs = SLURM | {runtime: shows}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job").write_text(text)
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "RUNTIME": runtime,
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
        "HF_TOKEN": "hf_secret",
    }
    done = subprocess.run(["bash", tmp_path / "job"], env=variables, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    lines = record.read_text().splitlines()
    if runtime == "apptainer":
        assert [f"name:{nasty}"] * 2 == [line for line in lines if line.startswith("name:")]
        assert [line for line in lines if line.startswith("rank:")] == ["rank:0", "rank:1"]
        assert f"docker://{IMAGE}" in lines
    else:
        assert lines.count(f"--env=SERVED_MODEL_NAME={nasty}") == 2
        assert [line for line in lines if line.startswith("--env=NODE_RANK")] == [
            "--env=NODE_RANK=0",
            "--env=NODE_RANK=1",
        ]
        assert lines.count("--env=HEAD_ADDRESS=127.0.0.1") == 2
    kernels, kv = started.cache_volume, started.kv_volume
    option = {"podman": "--volume", "apptainer": "--bind", "enroot": "--mount"}[runtime]
    here = "" if runtime == "podman" else f"{tmp_path}/.cache/imagefactory/"
    node = "" if runtime == "podman" else "/n1"
    assert lines.count(f"{option}={here}{kernels}{node}:/var/cache/imagefactory") == 2
    assert lines.count(f"{option}={here}{kv}{node}:/kv") == 2
    assert "hf_secret" not in record.read_text()
    assert "0123456789abcdef" not in record.read_text()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp.")], "the secret stays on no disk"


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="no pgrep: Debian's procps")
def test_a_container_does_not_outlive_its_job(real_matrix: Matrix, tmp_path: Path) -> None:
    """Podman hands the signal on; of a server that does not end by it, Slurm would kill Podman alone."""
    monitor = 'trap "" TERM; touch started; /bin/sleep 100; touch "ended.$?"'
    podman = f"trap '' TERM; (exec -a 'conmon -c 5 -n vllm-tiny-7-0 -x' bash -c '{monitor}'); exit 137"
    programs = {"podman": podman, "sleep": 'echo "$1" > slept'}
    programs |= {"srun": 'shift 2; SLURM_NODEID=0 exec "$@"', "scontrol": "echo n1"}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job").write_text(clusters.slurm(launch(real_matrix, "tiny", clusters.SLURM), None))
    variables = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_RESTART_COUNT": "5",
    }
    with subprocess.Popen(["bash", "job"], env=variables, cwd=tmp_path, start_new_session=True) as job:
        wait_until((tmp_path / "started").exists, 20)
        os.killpg(job.pid, signal.SIGTERM)
        wait_until((tmp_path / "ended.137").exists, 20)
    assert (tmp_path / "slept").read_text() == "20\n"


def test_gpustack_gives_the_model_the_port_and_the_name(real_matrix: Matrix) -> None:
    nasty = "--seed 1 it's"
    backend = yaml.safe_load(clusters.gpustack(launch(real_matrix, "gemma4-31b", clusters.GPUSTACK, DTYPE="half")))
    [(name, version)] = backend["version_configs"].items()
    assert name.endswith("-custom")  # as it demands of both names
    assert backend["backend_name"].endswith("-custom")
    assert (backend["default_version"], backend["health_check_path"]) == (name, "/health")
    names = {"model_path": "/models/x", "port": "4000", "model_name": nasty.replace(" ", "-").replace("'", "")}
    command = re.sub(r"\{\{(\w+)\}\}", lambda found: names[found[1]], version["run_command"])
    words = shlex.split(f"{version['entrypoint']} {command}")
    assert words[:5] == [
        *("/usr/bin/env", "DTYPE=half", "MODEL_PATH=/models/x", "PORT=4000"),
        f"SERVED_MODEL_NAME={names['model_name']}",
    ]
    assert words[5:] == ["/usr/bin/python3", "-I", "-S", "/usr/share/imagefactory/serve"]
