"""Reads the log-probabilities of the panel from a server: a running one, or an image that is started for it."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from imagefactory.check.answers.behaviour import Behaviour, observe
from imagefactory.check.answers.comparison import SPECULATIVE, words_of
from imagefactory.check.answers.result import (
    TOP,
    AnswersResult,
    Continuation,
    Panel,
    Window,
    sglang_places,
    sglang_written,
    vllm_places,
    vllm_written,
    window_of,
)
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import this_machine
from imagefactory.check.bench.result import BenchMachine, BoundTo
from imagefactory.check.bench.running import (
    DRAFTER,
    START_LIMIT,
    bound_to,
    containers_of,
    keeping_log,
    result_file,
    server_options,
)
from imagefactory.check.smoke.containers import ContainerError
from imagefactory.check.smoke.subject import Subject
from imagefactory.errors import CheckError
from imagefactory.project.project import Project
from imagefactory.store.progress import Say

ALONE: Final = {DRAFTER: "off", "ENABLE_PREFIX_CACHING": "0", "WARMUP": "0"}
"""Nothing between the model and its answers."""
ROOM: Final = 8  # tokens of the context that are left free
WRITTEN: Final = 64  # tokens that continue a text


def read_panel(endpoint: Endpoint, server: str, panel: Panel, say: Say) -> tuple[Window, ...]:
    """Return what a server makes of the panel, one text at a time."""
    served = endpoint.models()
    windows = []
    for number, text in enumerate(panel.windows, 1):
        body = {"model": served.name, "prompt": text.text, "add_special_tokens": False}
        with _understood(endpoint):
            tokens = [int(token) for token in endpoint.json("POST", "/tokenize", body)["tokens"]]
        tokens = tokens[: served.context - ROOM] if served.context else tokens
        say(f"{number} of {len(panel.windows)}: {text.kind}, {len(tokens)} tokens")
        with _understood(endpoint):
            windows.append(window_of(text.kind, tokens, _places(endpoint, server, served.name, tokens)))
    return tuple(windows)


def read_continuations(
    endpoint: Endpoint, server: str, windows: Sequence[Window], say: Say
) -> tuple[Continuation, ...]:
    """Return what a server writes after the first half of every second text."""
    model, continuations = endpoint.models().name, []
    for number, window in enumerate(windows[::2], 1):
        say(f"continuation {number} of {len(windows[::2])}")
        with _understood(endpoint):
            tokens, top = _written(endpoint, server, model, window.tokens[: len(window.tokens) // 2])
            continuations.append(Continuation(kind=window.kind, tokens=tuple(tokens), top=tuple(top)))
    return tuple(continuations)


@contextmanager
def _understood(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckError(
            "answers-incomplete",
            "The server's answers cannot be measured.",
            where=endpoint.address,
            why=f"It does not report log-probabilities as its version should: {error}.",
            fix="Check that it is the server of one of our images.",
        ) from None


def read_chat(endpoint: Endpoint, panel: Panel) -> tuple[int, ...]:
    """Return the tokens of the panel's chat; empty if the server does not say."""
    body = {"model": endpoint.models().name, "messages": panel.chat, "add_generation_prompt": True}
    try:
        return tuple(int(token) for token in endpoint.json("POST", "/tokenize", body)["tokens"])
    except (CheckError, KeyError, TypeError, ValueError, ArithmeticError):
        return ()


def _places(endpoint: Endpoint, server: str, model: str, tokens: Sequence[int]) -> list[dict[int, float]]:
    if server == "sglang":
        # From 0: otherwise SGLang reports the answer's tokens alone.
        return sglang_places(_from_sglang(endpoint, tokens, 1, logprob_start_len=0))
    return vllm_places(_from_vllm(endpoint, model, tokens, 1, prompt_logprobs=TOP))


def _written(
    endpoint: Endpoint, server: str, model: str, tokens: Sequence[int]
) -> tuple[list[int], list[dict[int, float]]]:
    if server == "sglang":
        return sglang_written(_from_sglang(endpoint, tokens, WRITTEN))
    # Tokens by number: two tokens may have the same text.
    options = {"logprobs": TOP, "return_token_ids": True, "return_tokens_as_token_ids": True}
    return vllm_written(_from_vllm(endpoint, model, tokens, WRITTEN, ignore_eos=True, **options))


def _from_sglang(endpoint: Endpoint, tokens: Sequence[int], count: int, **more: object) -> Any:  # noqa: ANN401 - JSON
    # A side must not stop before the other: past the end of a text both still choose tokens.
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": list(tokens), "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": TOP}
    return endpoint.json("POST", "/generate", body | more)


def _from_vllm(endpoint: Endpoint, model: str, tokens: Sequence[int], count: int, **more: object) -> Any:  # noqa: ANN401 - JSON
    body = {"model": model, "prompt": list(tokens), "max_tokens": count, "temperature": 0}
    return endpoint.json("POST", "/v1/completions", body | more)


def _alone(settings: Mapping[str, str]) -> dict[str, str]:
    """Return all settings; a drafter comes from DFLASH_DRAFTER or from the server's own flags, never from both."""
    flagged = any(word.startswith(SPECULATIVE) for word in words_of(settings.get("EXTRA_ARGS", "")))
    return {name: value for name, value in ALONE.items() if name != DRAFTER or not flagged} | dict(settings)


def measure_endpoint(root: Path, endpoint: Endpoint, bound: BoundTo, machine: BenchMachine, say: Say) -> AnswersResult:
    panel, behaviour = Panel.of(root), Behaviour.of(root)
    started = datetime.now(UTC).replace(microsecond=0)
    windows = read_panel(endpoint, bound.server, panel, say)
    return AnswersResult(
        panel=panel.version,
        started=started,
        bound=bound,
        machine=machine,
        chat=read_chat(endpoint, panel),
        windows=windows,
        continuations=read_continuations(endpoint, bound.server, windows, say),
        behaviour=behaviour.version,
        outcomes=observe(endpoint, behaviour, say),
    )


def measure_image(
    project: Project, subject: Subject, settings: Mapping[str, str], say: Say, volume: tuple[str, ...] = ()
) -> tuple[AnswersResult, Path]:
    """Start an image, measure it, and remove its containers; return the result and its file.

    `volume` mounts more than the folder of models.
    """
    bound = bound_to(project, subject, settings)
    say(f"starting {subject.cell}")
    options = (*server_options(project, subject, _alone(settings)), *volume)
    path = result_file(project, "answers", datetime.now(UTC), bound.target)
    try:
        with (
            containers_of(subject, say) as (image, containers),
            tempfile.TemporaryDirectory() as folder,
            containers.serve(image, Path(folder), options=options) as server,
            keeping_log(server, path),
        ):
            say(f"ready after {server.wait_until_healthy(START_LIMIT):.1f} s")
            endpoint = Endpoint(server.address, server.key, server.container)
            result = measure_endpoint(project.root, endpoint, bound, this_machine(server.container), say)
    except ContainerError as error:
        what, fix = "The server cannot be measured.", "Read the server's log, and measure again."
        raise CheckError("answers-incomplete", what, where=str(subject.cell), why=f"{error}", fix=fix) from None
    result.write(path)
    return result, path
