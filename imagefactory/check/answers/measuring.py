"""Reads the log-probabilities of the panel from a server: a running one, or an image that is started for it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.answers.result import (
    TOP,
    AnswersResult,
    Panel,
    Window,
    sglang_places,
    vllm_places,
    window_of,
)
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import this_machine
from imagefactory.check.bench.running import DRAFTER, START_LIMIT, bound_to, models_volume
from imagefactory.check.smoke.containers import Containers
from imagefactory.check.smoke.record import has_gpu
from imagefactory.check.smoke.subject import Subject, bring_into_daemon
from imagefactory.errors import CheckError
from imagefactory.project.project import Project
from imagefactory.store.progress import Say
from imagefactory.store.signals import ending_in_order

ALONE: Final = {DRAFTER: "off", "ENABLE_PREFIX_CACHING": "0", "WARMUP": "0"}
"""Nothing between the model and its answers."""
ROOM: Final = 8
"""Tokens of the context that are left free."""


def read_panel(endpoint: Endpoint, server: str, panel: Panel, say: Say) -> tuple[Window, ...]:
    """Return what a server makes of the panel, one text at a time."""
    served = endpoint.models()
    windows = []
    for number, one in enumerate(panel.windows, 1):
        asked = {"model": served.name, "prompt": one.text, "add_special_tokens": False}
        tokens = [int(token) for token in endpoint.json("POST", "/tokenize", asked)["tokens"]]
        tokens = tokens[: served.context - ROOM] if served.context else tokens
        say(f"{number} of {len(panel.windows)}: {one.kind}, {len(tokens)} tokens")
        try:
            windows.append(window_of(one.kind, tokens, _places(endpoint, server, served.name, tokens)))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CheckError(
                "answers-incomplete",
                "The server's answers cannot be measured.",
                where=endpoint.address,
                why=f"It does not report the log-probabilities of a prompt as its version should: {error}.",
                fix="Check that it is the server of one of our images, without a drafter.",
            ) from None
    return tuple(windows)


def read_chat(endpoint: Endpoint, panel: Panel) -> tuple[int, ...]:
    """Return the tokens of the panel's chat; empty if the server does not say."""
    asked = {"model": endpoint.models().name, "messages": panel.chat, "add_generation_prompt": True}
    try:
        return tuple(int(token) for token in endpoint.json("POST", "/tokenize", asked)["tokens"])
    except (CheckError, KeyError, TypeError, ValueError):
        return ()


def _places(endpoint: Endpoint, server: str, model: str, tokens: list[int]) -> list[dict[int, float]]:
    if server == "sglang":
        asked: dict[str, Any] = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": TOP,
        }
        return sglang_places(endpoint.json("POST", "/generate", asked))
    asked = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
    return vllm_places(endpoint.json("POST", "/v1/completions", asked))


def measure_image(
    project: Project, subject: Subject, settings: Mapping[str, str], say: Say, volume: tuple[str, ...] = ()
) -> tuple[AnswersResult, Path]:
    """Start an image, read the panel from it, and remove its containers; return the result and its file.

    `volume` mounts more than the folder of models.
    """
    panel, chosen = Panel.of(project.root), ALONE | dict(settings)
    gpus = ("--gpus", "all") if has_gpu(project.matrix, subject.arch) else ()
    given = [word for name, value in chosen.items() for word in ("--env", f"{name}={value}")]
    started = datetime.now(UTC).replace(microsecond=0)
    with ending_in_order():
        image, loaded = bring_into_daemon(subject)
        containers = Containers(uuid4().hex[:12])
        try:
            say(f"starting {subject.cell}")
            options = (*gpus, *given, *models_volume(), *volume)
            with (
                tempfile.TemporaryDirectory() as folder,
                containers.serve(image, Path(folder), options=options) as server,
            ):
                say(f"ready after {server.wait_until_healthy(START_LIMIT):.1f} s")
                endpoint = Endpoint(server.address, server.key, server.container)
                machine = this_machine(server.container)
                chat, windows = read_chat(endpoint, panel), read_panel(endpoint, subject.cell.server, panel, say)
        finally:
            containers.remove_all()
            if loaded:
                daemon.remove_name(loaded)
    bound = bound_to(project, subject, settings)
    result = AnswersResult(
        panel=panel.version, started=started, bound=bound, machine=machine, chat=chat, windows=windows
    )
    name = bound.target.replace("/", "-").replace("@", "-")
    path = project.root / "build" / "answers" / f"{started:%Y%m%dT%H%M%S}-{uuid4().hex[:4]}-{name}.json"
    result.write(path)
    return result, path
