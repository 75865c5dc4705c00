"""Answers for a server how it is, and has all other requests carry its key.

`/health` is 200 only if the server is ready and its own check succeeds, `/alive` as long as it should not be started
anew. These two, `/ping` and `/metrics` need no key. While the host is short of memory or the engine is stuck, all
others are refused at once, so that a proxy in front asks another server.

Servers guard some of their paths by themselves: /invocations of vLLM and WebSockets of SGLang are open. So the guard
comes before the application, whatever it consists of and whichever program serves it (uvicorn, granian).
"""  # noqa: INP001 - found by PYTHONPATH

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from hmac import compare_digest
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

MODULE = "starlette.applications"
HEALTH, ALIVE, METRICS = {"/health", "/ping"}, "/alive", {"/metrics", "/metrics/"}
OWN = b"x-imagefactory"
"""The header of the companion, which asks for the server's own check alone, and whether a stuck engine moves."""
NO = {"", "0", "false", "no", "off"}
PASSED = "imagefactory.passed"
"""Marks a request that passed, for applications inside of applications; clients cannot set it."""
LATER = (b"retry-after", b"30")
"""Seconds after which a client that was refused may ask again."""
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Any]


class Answer(NamedTuple):
    """What the guard answers in the server's place."""

    status: int
    name: str
    """The state of the server, or what is wrong with the request."""
    reason: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def body(self) -> bytes:
        """The answer as JSON, errors in a form that clients of OpenAI's and of Anthropic's API print."""
        error = {"message": self.reason, "type": self.name, "param": None, "code": self.status}
        value = {"state": self.name} if self.status == 200 else {"type": "error", "error": error}  # noqa: PLR2004
        return json.dumps(value).encode()


HOW = "send the server's key as `Authorization: Bearer KEY` or `x-api-key: KEY`"
NO_KEY, WRONG_KEY = (
    Answer(401, "authentication_error", f"{what}: {HOW}", ((b"www-authenticate", b"Bearer"),))
    for what in ("no API key was sent", "the API key is not this server's")
)


def install(variables: Mapping[str, str]) -> None:
    """Guard every Starlette application of this process, FastAPI's among them, once it imports Starlette."""
    closed = variables.get("PROTECT_METRICS", "").strip().lower() not in NO
    without = {*HEALTH, ALIVE, *(() if closed else METRICS)}
    sys.meta_path.insert(0, _Finder(variables.get("VLLM_API_KEY", ""), without, variables.get("IMAGEFACTORY_NOTES")))


class _Finder:
    def __init__(self, key: str, without: Collection[str], notes: str | None) -> None:
        self.key, self.without, self.notes = key, without, notes

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            guard(module.Starlette, self.key, self.without, self.notes)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def guard(application: type, key: str, without: Collection[str], notes: str | None = None) -> None:
    """Have a class of applications refuse requests that do not carry the key, except for the paths in `without`.

    With a folder for `notes`, it also answers for the server what these say.
    """
    call: Any = application.__call__
    digest = sha256(key.encode()).digest()
    program = _program(notes) if notes else None

    async def guarded(self: object, scope: Scope, receive: object, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope["headers"] = with_bearer(list(scope["headers"]))
        if scope["type"] == "lifespan" or PASSED in scope:
            await call(self, scope, receive, send)
        elif key and not admits(scope, digest, without):
            sent = any(name == b"authorization" for name, _ in scope["headers"])
            await respond(scope, send, WRONG_KEY if sent else NO_KEY)
        elif program and (answer := about(scope, program)):
            await respond(scope, send, answer)
        else:
            scope[PASSED] = True
            await call(self, scope, receive, send)

    application.__call__ = guarded  # type: ignore[method-assign]


def _program(notes: str) -> ModuleType:
    """Import what reads the notes from the program beside this folder, under a name that no package has."""
    name, folder = "imagefactory_program", Path(__file__).absolute().parents[1] / "program"
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec  # noqa: S101 - a file that is Python
    sys.modules[name] = module_from_spec(spec)
    state = import_module(f"{name}.state")
    state.private_files.PLACE = notes
    return state


def about(scope: Scope, state: ModuleType) -> Answer | None:
    """Return what is to be answered in the server's place; None if the server shall answer."""
    route = _route(scope) if scope["type"] == "http" else ""
    own = any(name == OWN for name, _ in scope["headers"])
    if route == ALIVE:
        found = state.find()
        return Answer(200 if found.alive else 503, found.name, found.reason)
    if route in METRICS or (own and route in HEALTH):
        return None
    if route in HEALTH:
        found = state.find()
        return None if found.name == state.READY else Answer(503, found.name, found.reason)
    for note in (state.SHORT, state.HANGING):
        if state.private_files.exists(note) and not (own and note == state.HANGING):
            with suppress(OSError):  # it may be gone by now
                return Answer(503, note, state.private_files.read(note), (LATER,))
    return None


async def respond(scope: Scope, send: Send, answer: Answer) -> None:
    kind = {"http": "http.response", "websocket": "websocket.http.response"}[scope["type"]]
    if scope["type"] != "http" and kind not in (scope.get("extensions") or {}):
        # The server can only close it: clients get a 403 without a body.
        await send({"type": "websocket.close", "code": 1008 if answer.status == 401 else 1013})  # noqa: PLR2004
        return
    size = str(len(answer.body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", size), *answer.headers]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": answer.body})


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
