"""The configuration and the manifest of an image."""

import json

from imagefactory.assemble.assemble import Built
from imagefactory.plan.plan import make_image
from imagefactory.store.digests import canonical_json
from tests.fixtures.platforms import MACHINE


def test_the_configuration_describes_start_content_and_history(built: Built) -> None:
    config = json.loads(built.image.config)
    assert (config["os"], config["architecture"]) == ("linux", MACHINE)
    run = config["config"]
    assert run["Entrypoint"] == list(built.plan.config.entrypoint)
    assert run["Cmd"] == list(built.plan.config.command)
    assert run["StopSignal"] == "SIGTERM"
    assert run["ExposedPorts"] == {"8000/tcp": {}}
    assert run["Env"] == sorted(run["Env"])
    assert any(variable.startswith("PATH=/opt/venv/bin:") for variable in run["Env"])
    labels = run["Labels"]
    assert list(labels) == sorted(labels)
    assert labels["imagefactory.plan"] == built.plan.key
    assert labels["imagefactory.locked"] == "yes"
    for name in ("title", "version", "licenses", "base.name"):
        assert labels[f"org.opencontainers.image.{name}"]
    for name in ("vllm", "arch", "kernels", "model"):
        assert labels[f"imagefactory.{name}"]
    # Every layer has an entry of history with a fixed time.
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == len(built.plan.layers)
    times = {config["created"], *(line["created"] for line in config["history"])}
    assert times == {"1980-01-02T00:00:00Z"}
    for line, layer in zip(config["history"], built.plan.layers, strict=True):
        assert layer.key in line["comment"]
        assert "empty_layer" not in line


def test_the_manifest_is_canonical_and_lists_blobs_by_digest_size_and_type(built: Built) -> None:
    manifest = json.loads(built.image.manifest)
    labels = json.loads(built.image.config)["config"]["Labels"].items()
    standard = {name: value for name, value in labels if name.startswith("org.opencontainers.image.")}
    assert manifest["annotations"] == standard
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"]["size"] == len(built.image.config)
    for layer, blob in zip(manifest["layers"], built.image.layers, strict=True):
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        assert layer == {"mediaType": kind, "digest": blob.digest, "size": blob.size}
    for document in (built.image.config, built.image.manifest):
        assert canonical_json(json.loads(document)) == document
    assert make_image(built.plan, built.image.layers) == built.image
