"""Manifests against Kubernetes' own strict schemas of three releases; the package with them is too large to lock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError, validate

from imagefactory.launch import clusters
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import select_one
from tests.fixtures.serving import prepared

pytestmark = [pytest.mark.network, pytest.mark.slow]
RELEASES = ("1.33", "1.35", "1.37")
VALIDATE = """
import json, sys
import kubernetes_validate
for release in sys.argv[1:]:
    for document in json.load(open("documents.json")):
        kubernetes_validate.validate(document, release, strict=True)
        print(release, document["kind"])
"""
TARGETS = {
    "gemma4-31b": {"KV_DISK": "/kv"},
    "tiny": {},
    "qwen3-8b": {"NODES": "4"},
    "deepseek-v4-flash": {"HEAD_ADDRESS": "192.168.100.1"},
}
# What the CRDs of LeaderWorkerSet 0.8.0 to 0.10.0 and of the PodMonitor allow, as far as manifests use it.
SET = {
    "replicas": {"type": "integer"},
    "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
    "leaderWorkerTemplate": {
        "required": ["workerTemplate"],
        "properties": {
            "size": {"type": "integer"},
            "restartPolicy": {"enum": ["None", "Default", "RecreateGroupOnPodRestart"]},
            "leaderTemplate": {"type": "object"},
            "workerTemplate": {"type": "object"},
            "volumeClaimTemplates": {"type": "array", "items": {"type": "object"}},
        },
        "additionalProperties": False,
    },
}
SECRET = {"properties": {"name": {"type": "string"}, "key": {"type": "string"}}, "required": ["key"]}
ENDPOINT = {
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string"},
        "authorization": {"properties": {"credentials": SECRET}, "additionalProperties": False},
    },
    "additionalProperties": False,
}
MONITOR = {"selector": {"required": ["matchLabels"]}, "podMetricsEndpoints": {"type": "array", "items": ENDPOINT}}
CUSTOM = {
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", SET, ["leaderWorkerTemplate"]),
    "PodMonitor": ("monitoring.coreos.com/v1", MONITOR, ["selector"]),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    install = ("uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder))
    done = subprocess.run(
        [*(sys.executable, "-m"), *install, "kubernetes-validate==1.37.0"], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return folder


def validated(packages: Path, documents: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "documents.json").write_text(json.dumps(documents))
    words = [sys.executable, "-c", VALIDATE, *RELEASES]
    variables = {"PYTHONPATH": str(packages)}
    return subprocess.run(words, env=variables, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", TARGETS)
def test_every_manifest_is_of_its_kind(packages: Path, real_matrix: Matrix, tmp_path: Path, target: str) -> None:
    cell = select_one(real_matrix, target)
    given = clusters.settings_of_one_node(clusters.KUBERNETES, real_matrix, cell, TARGETS[target])
    text = clusters.kubernetes(
        prepared(target, environment={}, **given).launch,
        real_matrix.archs[cell.arch].memory,
        TARGETS[target].get("HEAD_ADDRESS", ""),
        ["metrics"],
    )
    documents = {document["kind"]: document for document in yaml.safe_load_all(text)}
    for kind, (version, properties, required) in CUSTOM.items():
        if custom := documents.get(kind):
            assert custom["apiVersion"] == version
            schema = {"properties": properties, "required": required, "additionalProperties": False}
            validate(custom["spec"], schema)
            with pytest.raises(ValidationError):
                validate(custom["spec"] | {"misspelt": 1}, schema)
    known = [document for kind, document in documents.items() if kind not in CUSTOM]
    if several := documents.get("LeaderWorkerSet"):
        spec = several["spec"]["leaderWorkerTemplate"]
        pods = [spec["leaderTemplate"], spec["workerTemplate"]]
        known += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
        claims = spec["volumeClaimTemplates"]
        known += [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim} for claim in claims]
    done = validated(packages, known, tmp_path)
    assert not done.returncode, done.stderr
    assert len(done.stdout.splitlines()) == len(known) * len(RELEASES)
    known[-1]["spec"]["misspelt"] = 1
    assert "misspelt" in validated(packages, known, tmp_path).stderr
