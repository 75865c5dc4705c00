"""Has every request to a server with a key carry it, but those for /health, /ping and /metrics.

While a file says that the host is short of memory, it refuses all others.

Servers guard some of their paths by themselves: /invocations of vLLM and WebSockets of SGLang are open. So the guard
comes before the application, whatever it consists of and whichever program serves it (uvicorn, granian).
"""  # noqa: INP001 - found by PYTHONPATH

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "starlette.applications"
OPEN, METRICS = {"/health", "/ping"}, {"/metrics", "/metrics/"}
NO = {"", "0", "false", "no", "off"}
PASSED = "imagefactory.passed"
"""Marks a request that passed, for applications inside of applications; clients cannot set it."""
LATER = b"30"
"""Seconds after which a client may ask a server again that is short of memory."""
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Any]


def install(variables: Mapping[str, str]) -> None:
    """Guard every Starlette application of this process, FastAPI's among them, once it imports Starlette."""
    without = OPEN if variables.get("PROTECT_METRICS", "").strip().lower() not in NO else OPEN | METRICS
    key, short = variables.get("VLLM_API_KEY", ""), variables.get("IMAGEFACTORY_SHORT", "")
    sys.meta_path.insert(0, _Finder(key, without, short))


class _Finder:
    def __init__(self, key: str, without: Collection[str], short: str = "") -> None:
        self.key, self.without, self.short = key, without, short

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            guard(module.Starlette, self.key, self.without, self.short)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def guard(application: type, key: str, without: Collection[str], short: str = "") -> None:
    """Have a class of applications refuse requests that do not carry the key, except for the paths in `without`.

    If there is a file `short`, it refuses those that do, too, with the sentence in the file.
    """
    call: Any = application.__call__
    digest = sha256(key.encode()).digest()

    async def guarded(self: object, scope: Scope, receive: object, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope["headers"] = with_bearer(list(scope["headers"]))
        if scope["type"] == "lifespan" or PASSED in scope:
            await call(self, scope, receive, send)
        elif key and not admits(scope, digest, without):
            await refuse(scope, send, 401, "Unauthorized", (b"www-authenticate", b"Bearer"))
        elif reason := _reason(scope, short):
            await refuse(scope, send, 503, reason, (b"retry-after", LATER))
        else:
            scope[PASSED] = True
            await call(self, scope, receive, send)

    application.__call__ = guarded  # type: ignore[method-assign]


async def refuse(scope: Scope, send: Send, status: int, reason: str, header: tuple[bytes, bytes]) -> None:
    if scope["type"] == "http":
        headers = [(b"content-type", b"application/json"), header]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})
    else:
        await send({"type": "websocket.close", "code": 1008 if status == 401 else 1013})  # noqa: PLR2004


def _reason(scope: Scope, short: str) -> str:
    """Return why no new requests are taken; empty if they are, or if this one asks how the server is."""
    if not short or (scope["type"] == "http" and _route(scope) in OPEN | METRICS):
        return ""
    try:
        return Path(short).read_text("utf-8")
    except OSError:
        return ""


def with_bearer(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers with the key where the servers look for it: clients of Anthropic's API send it as x-api-key."""
    names = [name for name, _ in headers]
    if b"authorization" in names or b"x-api-key" not in names:
        return headers
    return [*headers, (b"authorization", b"Bearer " + headers[names.index(b"x-api-key")][1])]


def admits(scope: Scope, digest: bytes, without: Collection[str]) -> bool:
    """Whether a request carries the key or needs none."""
    headers = dict(reversed(list(scope["headers"])))  # of several, the servers take the first
    scheme, _, word = headers.get(b"authorization", b"").partition(b" ")
    if compare_digest(sha256(word).digest(), digest) and scheme.lower() == b"bearer":
        return True
    if scope["type"] != "http":
        return False
    # Browsers ask without a key whether they may send one; the servers' CORS middleware answers that itself.
    if scope["method"] == "OPTIONS" and {b"origin", b"access-control-request-method"} <= headers.keys():
        return True
    return _route(scope) in without


def _route(scope: Scope) -> str:
    """Return the path that Starlette looks for among its routes."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    inside = path.removeprefix(root) if root else path
    return inside if inside.startswith("/") else path
