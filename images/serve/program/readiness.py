"""Sends a server the requests after which users wait for no compiler: those of the warm-up, and one that is sampled."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from . import health
from .redaction import say

LIMIT = 600.0
"""Seconds for an answer."""
LONGEST, AT_ONCE = 4096, 8
"""The words of the long prompt at most, each a token or two, and the parallel requests."""
FAILURES = frozenset({500, 502, 503, 504})
"""A server that refuses a request has answered it; one that fails has not."""
SAMPLED = {"temperature": 1, "top_p": 0.9}
Body = dict[str, object]


def warm_up(where: health.Address, model: str, key: str, rounds: int) -> bool:
    """Send the rounds of warm-up requests; return whether those that are sampled were answered."""
    answered = False
    for number in range(1, rounds + 1):
        took = []
        try:
            for name, bodies in _requests(model, number, _context(where, key)).items():
                started = time.monotonic()
                with ThreadPoolExecutor(len(bodies)) as pool:
                    refused = set(pool.map(partial(_status, where, key), bodies)) - {200}
                took.append(f"{name} got status {min(refused)}" if refused else f"{name} {_since(started)} s")
                answered = not FAILURES & refused
        except (OSError, ValueError) as error:
            say(f"warm-up {number} of {rounds} failed: {error}")
            return False
        say(f"warm-up {number} of {rounds}: {', '.join(took)}")
    return answered


def answers(where: health.Address, model: str, key: str) -> bool:
    """Whether the server answers a sampled request for one token."""
    try:
        return _status(where, key, _chat(model, "Count.", max_tokens=1, **SAMPLED)) not in FAILURES
    except (OSError, ValueError):
        return False


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f}"


def _status(where: health.Address, key: str, body: Body) -> int:
    return health.request(where, "POST", "/v1/chat/completions", body=body, key=key, timeout=LIMIT).status


def _chat(model: str, text: str, **more: object) -> Body:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0, **more}


def _requests(model: str, number: int, context: int) -> dict[str, list[Body]]:
    """Return requests that call for different kernels, those that are sampled last.

    Those of a round differ from the last round's, which are in the cache.
    """
    chat: Callable[..., Body] = partial(_chat, model)
    count = "Count from one to ten."
    return {
        "short": [chat(f"{number}. {count}")],
        "log-probabilities": [chat(f"{number}. {count}", logprobs=True, top_logprobs=5)],
        "long": [chat(f"{number}. {'a ' * min(LONGEST, context // 4)}")],
        f"{AT_ONCE} at once": [chat(f"{number}. {each}. {count}", **SAMPLED) for each in range(AT_ONCE)],
    }


def _context(where: health.Address, key: str) -> int:
    """Return how many tokens a request may have, as the server says."""
    answer = health.request(where, "GET", "/v1/models", key=key, timeout=60)
    try:
        return int(json.loads(answer.body)["data"][0]["max_model_len"])
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0
