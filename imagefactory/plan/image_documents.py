"""Creates the configuration and the manifest of an image.

Both are pure functions of the plan and the digests of its layers, so the digest of an image is known without the blobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from imagefactory.oci.image import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE, Blob, Image
from imagefactory.plan.plan import Plan
from imagefactory.store.digests import canonical_json, sha256_of


def make_image(plan: Plan, blobs: Sequence[Blob]) -> Image:
    """Create the documents of an image."""
    config = canonical_json(_config(plan, blobs))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": f"sha256:{sha256_of(config)}", "size": len(config)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": blob.digest, "size": blob.size} for blob in blobs],
        "annotations": {
            key: value
            for key, value in plan.config.labels.items()
            if key.startswith("org.opencontainers.image.")
        },
    }
    return Image(plan.platform, config, canonical_json(manifest), tuple(blobs))


def _config(plan: Plan, blobs: Sequence[Blob]) -> dict[str, object]:
    settings = plan.config
    system, _, machine = plan.platform.partition("/")
    return {
        "architecture": machine,
        "os": system,
        "created": settings.created,
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(settings.env.items())],
            "Entrypoint": list(settings.entrypoint),
            "Cmd": list(settings.command),
            "Labels": dict(sorted({**settings.labels, "imagefactory.plan": plan.key}.items())),
            "User": settings.user,
            "WorkingDir": settings.working_dir,
            "ExposedPorts": {port: {} for port in settings.exposed_ports},
            "StopSignal": settings.stop_signal,
            # Not in the image specification, but Docker and podman read it.
            **({"Healthcheck": settings.healthcheck} if settings.healthcheck else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in blobs]},
        "history": [
            {
                "created": settings.created,
                "created_by": f"imagefactory {layer.kind} {layer.name}",
                "comment": f"layer key {layer.key}",
            }
            for layer in plan.layers
        ],
    }
