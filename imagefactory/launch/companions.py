"""Adds programs of others to a compose file, each behind a profile: Open WebUI, LiteLLM, and metrics with a dashboard.

All of them use the host's network, as the server does. Prometheus and the exporters listen on the loopback only.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import yaml

from imagefactory.errors import unknown_name
from imagefactory.launch.docker_run import GPU, Launch

PROFILES: Final = {
    "webui": ("open-webui",),
    "litellm": ("litellm",),
    "metrics": ("prometheus", "node-exporter", "dcgm-exporter", "grafana"),
}
"""The services that each profile starts; each has an image in `companions` of matrix.yaml."""
_SECRET: Final = "vllm_api_key"  # noqa: S105 - its name
_KEY: Final = "${VLLM_API_KEY:-none}"
_PORT: Final = "${PORT:-8000}"
_COUNTERS: Final = {
    "DCGM_FI_DEV_GPU_TEMP": "Temperature in °C.",
    "DCGM_FI_DEV_POWER_USAGE": "Power in W.",
    "DCGM_FI_DEV_GPU_UTIL": "Utilization in %.",
}
"""What DCGM knows of a GB10; it never has its memory."""


class Panel(NamedTuple):
    """A graph of the dashboard: its title and unit, and each line's query by its name."""

    title: str
    unit: str
    lines: Mapping[str, str]


_DRAFTS: Final = {
    "vllm": "sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
    " / sum(rate(vllm:spec_decode_num_draft_tokens_total[5m]))",
    "sglang": "avg(sglang:spec_accept_rate)",
}
_NAMES: Final = {
    "vllm": {"running": "num_requests_running", "queued": "num_requests_waiting", "cache": "kv_cache_usage_perc"},
    "sglang": {"running": "num_running_reqs", "queued": "num_queue_reqs", "cache": "token_usage"},
}


def panels(server: str, *, on_gpu: bool = True) -> list[Panel]:
    """Return the graphs of a server; memory is the host's, which a GB10 shares, as /proc/meminfo has it."""
    names = _NAMES[server]
    first = f"sum by (le) (rate({server}:time_to_first_token_seconds_bucket[5m]))"
    tokens = {"generated": "generation_tokens_total", "read": "prompt_tokens_total"}
    quantiles = {"half within": 0.5, "95 % within": 0.95}
    available = "node_memory_MemAvailable_bytes"
    memory = {"used": f"node_memory_MemTotal_bytes - {available}", "available": available}
    of_gpu = {
        "Temperature": ("celsius", "DCGM_FI_DEV_GPU_TEMP"),
        "Power": ("watt", "DCGM_FI_DEV_POWER_USAGE"),
        "GPU busy": ("percent", "DCGM_FI_DEV_GPU_UTIL"),
    }
    return [
        Panel("Tokens per second", "short", {key: f"sum(rate({server}:{name}[1m]))" for key, name in tokens.items()}),
        Panel("Requests", "short", {word: f"sum({server}:{names[word]})" for word in ("running", "queued")}),
        Panel("First token", "s", {name: f"histogram_quantile({q}, {first})" for name, q in quantiles.items()}),
        Panel("Drafts accepted", "percentunit", {"share of drafted tokens": _DRAFTS[server]}),
        Panel("KV cache in use", "percentunit", {"share": f"max({server}:{names['cache']})"}),
        Panel("Memory of host and GPU", "bytes", memory),
        *(Panel(title, unit, {"GPU": name}) for title, (unit, name) in of_gpu.items() if on_gpu),
    ]


def chosen_profiles(text: str) -> list[str]:
    """Return the profiles that the --with option names, in the order of the file."""
    wanted = [word.strip() for word in text.split(",")] if text else []
    for word in wanted:
        if word not in PROFILES:
            raise unknown_name("profile", word, PROFILES, "the --with option")
    return [name for name in PROFILES if name in wanted]


def add_companions(
    document: dict[str, Any], launch: Launch, profiles: Iterable[str], image_of: Callable[[str], str]
) -> None:
    """Add the services of profiles to a compose file; `image_of` returns an image of others by name."""
    made: dict[str, Callable[[Launch], _Made]] = {
        "open-webui": _open_webui,
        "litellm": _litellm,
        "prometheus": _prometheus,
        "node-exporter": _node_exporter,
        "dcgm-exporter": _dcgm_exporter,
        "grafana": _grafana,
    }
    for profile in profiles:
        for name in PROFILES[profile]:
            if name == "dcgm-exporter" and not launch.on_gpu:
                continue
            service, files = made[name](launch)
            shared = {
                "image": image_of(name),
                "profiles": [profile],
                "network_mode": "host",
                "restart": "unless-stopped",
            }
            for number, (target, content) in enumerate(files.items(), 1):
                config = f"{name}-{number}"
                document.setdefault("configs", {})[config] = {"content": content}
                service.setdefault("configs", []).append({"source": config, "target": target})
            for volume in service.get("volumes", ()):
                document["volumes"][volume.partition(":")[0]] = None
            document["services"][name] = shared | service


_Made = tuple[dict[str, Any], dict[str, str]]  # a service, and its files by their places


def _with_key(launch: Launch, variable: str, command: str) -> dict[str, Any]:
    """Return a service whose program gets the server's key as a variable that `docker inspect` does not show."""
    if launch.key_file is None:
        return {"environment": {variable: _KEY}}
    words = f'export {variable}="$$(cat /run/secrets/{_SECRET})"; exec {command}'
    return {"entrypoint": ["sh", "-c", words], "environment": {}, "secrets": [_SECRET]}


def _open_webui(launch: Launch) -> _Made:
    service = _with_key(launch, "OPENAI_API_KEY", "bash start.sh")
    service["environment"] |= {
        "PORT": "${WEBUI_PORT:-3000}",
        "OPENAI_API_BASE_URL": f"http://localhost:{_PORT}/v1",
        "ENABLE_OLLAMA_API": "false",
    }
    return service | {"volumes": ["open-webui:/app/backend/data"]}, {}


def _litellm(launch: Launch) -> _Made:
    """Make the proxy ask for the server's key: it would be a way around it otherwise. Without one, both are open."""
    place, port = "/etc/litellm.yaml", "${LITELLM_PORT:-4000}"
    service = _with_key(launch, "VLLM_API_KEY", f"litellm --config {place} --port {port}")
    if launch.key_file is None:
        service["command"] = ["--config", place, "--port", port]
    service["environment"]["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    key, base = "os.environ/VLLM_API_KEY", f"http://localhost:{_PORT}/v1"
    config: dict[str, Any] = {
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": base, "api_key": key},
            }
            for name in launch.names
        ],
        # Compose puts the user's key here, if there is one; else LiteLLM does not start without the second setting.
        "general_settings": {"master_key": key}
        if launch.key_file
        else {"master_key": "${VLLM_API_KEY:-}", "dangerously_permit_weak_or_unset_master_key": True},
    }
    return service, {place: yaml.safe_dump(config, sort_keys=False, width=120)}


def _prometheus(launch: Launch) -> _Made:
    secret = {"credentials_file": f"/run/secrets/{_SECRET}"} if launch.key_file else {"credentials": _KEY}
    others = {"node": 9100} | ({"dcgm": 9400} if launch.on_gpu else {})
    server = {"job_name": launch.cell.server, "authorization": secret}
    jobs = [server | {"static_configs": [{"targets": [f"localhost:{_PORT}"]}]}]
    jobs += [{"job_name": job, "static_configs": [{"targets": [f"localhost:{at}"]}]} for job, at in others.items()]
    config = {"global": {"scrape_interval": "10s"}, "scrape_configs": jobs}
    place = "/etc/prometheus/prometheus.yml"
    words = [f"--config.file={place}", "--storage.tsdb.path=/prometheus", "--storage.tsdb.retention.time=30d"]
    service: dict[str, Any] = {"command": [*words, "--web.listen-address=127.0.0.1:9090"]}
    if launch.key_file:
        # Only its owner, on most hosts the first user, can read the key's file; root can.
        service |= {"user": "root", "secrets": [_SECRET]}
    service["volumes"] = ["prometheus:/prometheus"]
    return service, {place: yaml.safe_dump(config, sort_keys=False, width=120)}


def _node_exporter(_: Launch) -> _Made:
    words = ["--collector.disable-defaults", "--collector.meminfo", "--web.listen-address=127.0.0.1:9100"]
    return {"command": words}, {}


def _dcgm_exporter(_: Launch) -> _Made:
    place = "/etc/dcgm-exporter/factory.csv"
    variables = {"DCGM_EXPORTER_LISTEN": "127.0.0.1:9400", "DCGM_EXPORTER_COLLECTORS": place}
    counters = "".join(f"{name}, gauge, {about}\n" for name, about in _COUNTERS.items())
    return {"environment": variables, "deploy": GPU}, {place: counters}


def _grafana(launch: Launch) -> _Made:
    """Make a Grafana that shows the dashboard to everyone, and lets nobody change anything."""
    provisioning, place = "/etc/grafana/provisioning", "/etc/grafana/dashboards/server.json"
    source = {"name": "Prometheus", "uid": "prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    sources = {"apiVersion": 1, "datasources": [source | {"url": "http://localhost:9090"}]}
    folder = {"name": "factory", "type": "file", "options": {"path": place.rpartition("/")[0]}}
    files = {
        f"{provisioning}/datasources/factory.yaml": yaml.safe_dump(sources, sort_keys=False),
        f"{provisioning}/dashboards/factory.yaml": yaml.safe_dump({"apiVersion": 1, "providers": [folder]}),
        place: json.dumps(dashboard(launch), indent=1) + "\n",
    }
    variables = {
        "GF_SERVER_HTTP_PORT": "${GRAFANA_PORT:-3001}",
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": place,
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    }
    return {"environment": variables, "volumes": ["grafana:/var/lib/grafana"]}, files


def dashboard(launch: Launch) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "prometheus"}
    width, height, per_row = 8, 8, 3
    shown = []
    for number, panel in enumerate(panels(launch.cell.server, on_gpu=launch.on_gpu)):
        row, column = divmod(number, per_row)
        lines = enumerate(panel.lines.items())
        shown.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {"x": width * column, "y": height * row, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": "ABC"[at], "datasource": source, "expr": expression, "legendFormat": name}
                    for at, (name, expression) in lines
                ],
            }
        )
    return {
        "uid": "server",
        "title": launch.container,
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": shown,
    }
