"""Adds third-party programs to a compose file, each behind a profile: Open WebUI, LiteLLM, metrics with a dashboard."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from imagefactory.errors import unknown_name
from imagefactory.launch.docker_run import Launch
from imagefactory.launch.rendering import render_text, render_yaml

PROFILES: Final = {
    "webui": ("open-webui",),
    "litellm": ("litellm",),
    "metrics": ("prometheus", "node-exporter", "dcgm-exporter", "grafana"),
}
"""The services that each profile starts; each has an image in `companions` of matrix.yaml."""
_PANELS: Final = Path(__file__).with_name("panels.yaml")


def chosen_profiles(text: str) -> list[str]:
    """Return the profiles that the --with option names, in the order of the file."""
    chosen = [word.strip() for word in text.split(",")] if text else []
    for word in chosen:
        if word not in PROFILES:
            raise unknown_name("profile", word, PROFILES, "the --with option")
    return [name for name in PROFILES if name in chosen]


def add_companions(
    document: dict[str, Any], launch: Launch, profiles: Iterable[str], image_of: Callable[[str], str]
) -> None:
    """Add the services of profiles to a compose file; `image_of` returns a third-party image by name."""
    services = render_yaml("companions.yaml", launch=launch)
    profile_of = {name: profile for profile in profiles for name in PROFILES[profile]}
    for name, profile in profile_of.items():
        if name not in services:  # what needs a GPU, where there is none
            continue
        service = services[name]
        for number, (target, file) in enumerate(service.pop("files", {}).items(), 1):
            config = f"{name}-{number}"
            document.setdefault("configs", {})[config] = {"content": _file(file, launch)}
            service.setdefault("configs", []).append({"source": config, "target": target})
        for volume in service.get("volumes", ()):
            document["volumes"][volume.partition(":")[0]] = None
        shared = {"profiles": [profile], "network_mode": "host", "restart": "unless-stopped"}
        document["services"][name] = {"image": image_of(name), **shared, **service}


def panels(server: str, *, on_gpu: bool = True) -> list[dict[str, Any]]:
    """Return the graphs of a server: title, unit, and each line's query by its name."""
    panels_of = yaml.safe_load(_PANELS.read_text("utf-8"))
    return [*panels_of[server], *panels_of["host"], *(panels_of["gpu"] if on_gpu else ())]


def _file(name: str, launch: Launch) -> str:
    """Return the content of a file that a service finds in its container."""
    if name == "dashboard.json":
        graphs = panels(launch.cell.server, on_gpu=launch.on_gpu)
        dashboard = render_yaml("companions/dashboard.yaml", launch=launch, panels=graphs)
        return json.dumps(dashboard, indent=1) + "\n"
    if name.endswith(".yaml"):
        return yaml.safe_dump(render_yaml(f"companions/{name}", launch=launch), sort_keys=False, width=120)
    return render_text(f"companions/{name}")
