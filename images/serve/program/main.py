"""The commands of the image: start the server, check the machine, show the settings."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import format_exc
from typing import NoReturn

from . import (
    ahead,
    channel,
    checkpoint,
    checks,
    first_process,
    flags,
    health,
    keys,
    link,
    loading,
    meeting,
    pair,
    private_files,
    proof,
    readings,
    show,
    state,
    timeline,
    watch,
    weights,
)
from . import command as commands
from . import image as images
from . import settings as read_settings
from .errors import StartError
from .findings import FAIL, WARN, Finding, Start
from .redaction import hide, masked, report, say
from .servers.known import server_of
from .servers.server import Server

MACHINE_CHECKS = ("gpu", "driver", "host", "kernels", "flags", "pair")
"""The checks of a command that the user wrote."""
KEPT_SETTINGS = (
    *("WARMUP", "COMPILERS", "HANG_LIMIT", "MEMORY_FLOOR", "ALLOCATOR", "SKIP_CHECKS", "CHECKS"),
    *("MODS", "MODS_PATH", "PROTECT_METRICS", "NODES", "NODE_RANK", "HEAD_ADDRESS", "CABLE", "HEAD_PORT"),
    "PAIR_SECRET_FILE",
)
"""Settings that also apply to a command that the user wrote."""
SHELL_COMMANDS = ("bash", "sh", "sleep", "tail")
"""Programs to run instead of the server, beside its own; recipe runners start containers with `sleep infinity`."""
NOTES = (state.STARTING, state.HANGING, state.SHORT, state.COMPANION, link.NOTE)
"""What a start leaves behind if it is ended."""
WAITING_COMMANDS = ("sleep", "tail")
"""Those that keep a container running, for `docker exec` to start the server."""
LEAVE_OUT = "Leave the word out: the image serves without arguments, and another model with `IMAGE OWNER/MODEL`."
ASK = (
    "The image only serves. Start it without arguments, then ask it: curl localhost:8000/v1/chat/completions "
    """-H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}]}'"""
)
ELSEWHERE = {
    "serve server start up run launch": LEAVE_OUT,
    "python python3": f"{LEAVE_OUT} For Python itself: IMAGE bash -c 'python3 …'",
    "chat complete ask": ASK,
    "list ls models show": "`IMAGE weights` lists what is downloaded; `IMAGE help` names the model.",
    "pull fetch": "`IMAGE download` fetches the model.",
    "status ps": "`docker exec CONTAINER health` asks the running server.",
    "stop down": "`docker stop CONTAINER` ends it.",
    "logs": "`docker logs CONTAINER` shows them.",
    "version": "`IMAGE help` begins with it.",
}
"""Words of other programs (Ollama, Docker Compose, vLLM itself), with what to do instead."""


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; a start replaces the process."""
    try:
        return _run(list(arguments))
    except BrokenPipeError:
        return 0
    except StartError as error:
        refusal = error
    except Exception as error:  # noqa: BLE001 - Python would print secrets in its message
        report(format_exc())
        what = f"Internal error in the serve program: {type(error).__name__}."
        refusal = StartError("internal", what, remedy="Report it, with the lines above.")
    report(str(refusal))
    if {"--dry-run", "--json"} <= set(arguments):
        _print(show.refusal_json(refusal))
    return refusal.exit_code


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if arguments in (["-h"], ["--help"]):
        arguments = [first := "help"]
    if first in COMMANDS:
        return _command(first, arguments[1:])()
    if first in (*SHELL_COMMANDS, *images.TITLES):
        _run_program(arguments)
    dry = "--dry-run" in arguments
    form = show.dry_run_json if "--json" in arguments else show.dry_run_text
    if dry:
        arguments = [word for word in arguments if word not in {"--dry-run", "--json"}]
    if _asks_for_help(arguments):
        server = server_of(images.load())
        secrets = keys.find(os.environ, arguments)
        environment = _help_environment(server, arguments) | secrets.environment(os.environ)
        return _become(server, secrets.words, environment)
    _refuse_unknown(first)
    if not dry:
        _begin()
    start = _prepare(arguments, patient=not dry)
    findings = checks.run(start, MACHINE_CHECKS if _whole(arguments) else tuple(checks.CHECKS))
    if dry:
        _print(form(start, findings))
        return _exit_code(findings)
    return _start(start, findings)


def _command(name: str, given: list[str]) -> Callable[[], int]:
    """Return a command of the image; refuse options that it does not have."""
    known = COMMANDS[name]
    if len(given) <= 1 and "".join(given) in known:
        return known["".join(given)]
    what = f"`{name}` has no option {' '.join(masked(given))!r}."
    allowed, remedy = ", ".join(filter(None, known)), f"Leave the option out: docker run --rm IMAGE {name}"
    raise StartError("bad-option", what, allowed=allowed or "no options", remedy=remedy)


def _run_program(arguments: list[str]) -> NoReturn:
    """Become another program, which gets the key as the server expects it."""
    server = server_of(images.load())
    if arguments[0] in images.TITLES and arguments[0] != server.name:
        what = f"This image has no {arguments[0]}: its server is {images.TITLES[server.name]}."
        allowed = " ".join(server.command)
        raise StartError("bad-option", what, allowed=allowed, remedy="Use an image with that server.")
    serves = tuple(arguments[:2]) == server.command
    own = len(server.command) if serves else len(arguments)
    secrets = keys.find(os.environ, arguments[own:])
    _refuse_unread(server, arguments[0], serves=serves)
    handover = server.hand_over(secrets.words, secrets, os.environ)
    environment = _help_environment(server, arguments) | handover.environment
    if serves and not _asks_for_help(arguments):
        _stay_first()
    os.execvpe(arguments[0], [*arguments[:own], *handover.arguments], environment)  # noqa: S606 - the user's command


def _refuse_unread(server: Server, program: str, *, serves: bool) -> None:
    """Refuse a key in a variable that a server started by another program would not read."""
    waits = program in WAITING_COMMANDS
    if server.reads_key:
        unread = [keys.FILE] if waits else []
        allowed, remedy = f"the key itself, in {keys.KEY}", f"Set {keys.KEY} instead."
    else:
        unread = [] if serves else [keys.FILE, keys.KEY]
        whole = f"`IMAGE {' '.join(server.command)} …`"
        allowed, remedy = f"the key with {whole}", f"Have the image start the server, with `IMAGE` or {whole}."
    for name in (name for name in unread if name in os.environ):
        start = f"A server that `{'docker exec' if waits else program}` starts here would not know the key"
        what = f"{start}: {images.TITLES[server.name]} does not read {name}."
        value = os.environ[name] if name == keys.FILE else ""
        raise StartError("unprotected", what, name, value, allowed, remedy=remedy)


def _refuse_unknown(word: str) -> None:
    # A container's working folder is /, which has folders such as `run` and `home` that are no models.
    if not word or word.startswith("-") or "/" in word or checkpoint.config_of(word) is not None:
        return
    known = (*COMMANDS, *SHELL_COMMANDS, server_of(images.load()).name)
    near = get_close_matches(word, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else "See `docker run --rm IMAGE help`."
    what = f"{hide(word)!r} is neither a command of this image nor a model."
    allowed = f"{', '.join(known)}; a repository such as OWNER/MODEL, or a folder such as /models/NAME"
    remedy = next((instead for words, instead in ELSEWHERE.items() if word.lower() in words.split()), remedy)
    raise StartError("bad-option", what, allowed=allowed, remedy=remedy)


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(word == "-h" or word.startswith("--help") for word in arguments)


def _help_environment(server: Server, words: Sequence[str]) -> dict[str, str]:
    needed = _asks_for_help(words) and not Path("/dev/nvidiactl").exists()
    return dict(server.help_environment) if needed else {}


def _whole(arguments: list[str]) -> bool:
    """Whether the arguments are a whole command, with a model, rather than flags for the recommended one."""
    return bool(arguments) and not arguments[0].startswith("-")


def _prepare(arguments: list[str], *, patient: bool = False) -> Start:
    """Read settings and machine; `patient` if what comes later, such as the head's name, is worth waiting for."""
    image = images.load()
    server, environment = server_of(image), os.environ
    if _whole(arguments):
        kept = {name: environment[name] for name in KEPT_SETTINGS if name in environment}
        secrets = keys.find(environment, arguments)
        chosen = read_settings.read(image, kept)._replace(secrets=secrets)
        pair.look_up(chosen, patient=patient)
        joining = server.node_words(chosen._replace(extra=secrets.words))
        command = server.build(image, chosen)._replace(
            arguments=(*secrets.words, *joining),
            model=arguments[0],
            served_names=(commands.option(arguments, "--served-model-name") or arguments[0],),
            speculative=None,
            remarks=(),
        )
    else:
        chosen = read_settings.read(image, environment, arguments)
        pair.look_up(chosen, patient=patient)
        command = server.build(image, chosen)
    commands.allocator(chosen, environment)
    cache = checkpoint.hub_cache(environment)
    package = flags.find_package(server.name)
    start = Start(server, image, chosen, command, readings.read(cache), cache, package)
    return start if _whole(arguments) else weights.offline_if_complete(loading.fitting(start), environment)


def _start(start: Start, findings: list[Finding]) -> int:
    failed = [finding for finding in findings if finding.result == FAIL]
    # The first failure is reported by the error.
    worth_showing = [finding for finding in findings if finding.result == WARN] + failed[1:]
    if worth_showing:
        report(show.checks_text(worth_showing))
    if failed:
        raise failed[0].refusal()
    for remark in start.command.remarks:
        say(remark)
    apply_mods(start, start.settings.words("MODS"), start.settings.text("MODS_PATH"))
    os.environ.update(ahead.linker_path(os.environ))
    arguments, environment, key_file = start.server.hand_over(
        start.command.arguments, start.settings.secrets, os.environ
    )
    environment |= {"HF_HUB_OFFLINE": "1"} if start.offline else {}
    environment |= commands.allocator(start.settings, os.environ)
    node = pair.find(start.settings, start.readings.network) if commands.nodes(start.settings) > 1 else None
    environment |= node.environment(start.server.address_variable) if node else {}
    say(commands.shown((*start.server.command, *arguments)))
    where = watch.address(start)
    health.leave_note(where)
    began = timeline.process_start()
    _stay_first()
    joined = None
    if node:
        if where.port:
            state.starting("it waits for the other nodes")
        waiting = time.monotonic()
        joined = meeting.meet(node, start)
        began = began and began + time.monotonic() - waiting
    if where.port or joined:
        environment |= watch.accompany(start, where, key_file, began, joined)
    return _become(start.server, arguments, environment)


def _begin() -> None:
    """Say that a start has begun, before the checks; what an earlier one in the same container said is over."""
    # A second start, by `docker exec`, must not speak for the server that runs.
    if os.getpid() == 1:
        private_files.forget(*NOTES)
        state.starting("machine and settings are being checked")


def _stay_first() -> None:
    """Go on as a child of this process."""
    # Those of the checks, and of an earlier start where this program is not process 1.
    private_files.forget(*NOTES)
    first_process.stay()


def apply_mods(start: Start, names: list[str], folder: str) -> None:
    if not names:
        return
    path, _, name = str(start.image.facts["mods_module"]).rpartition("/")
    sys.path.insert(0, path)
    try:
        import_module(name).apply_mods(names, folder)
    except Exception as error:  # noqa: BLE001 - mods may raise anything
        allowed = f"folders in {folder} that are made for {start.image.title} {start.image.version}"
        # An error of a mod has a remedy of its own, in its last line.
        told, _, remedy = str(error).partition("\n  next:")
        remedy = remedy.strip() or "Correct the mod, or leave it out of MODS."
        what = f"A mod could not be applied: {told}"
        raise StartError("mod-failed", what, "MODS", ",".join(names), allowed, remedy=remedy) from None
    finally:
        sys.path.remove(path)


def _become(server: Server, arguments: Sequence[str], environment: dict[str, str]) -> int:
    program = f"{images.VENV}/bin/{server.name}"
    try:
        os.execve(program, [program, *server.command[1:], *arguments], environment)  # noqa: S606 - replaces this process
    except OSError as error:
        raise images.broken(f"{program} cannot be run: {error.strerror}.") from None


def _check() -> int:
    findings = checks.run(_prepare([]), checks.CHECKS, beside=state.serves())
    _print(show.checks_text(findings))
    return _exit_code(findings)


def _exit_code(findings: Sequence[Finding]) -> int:
    """Return the code that a start would end with: that of the first failure."""
    refused = next((finding for finding in findings if finding.result == FAIL), None)
    return refused.refusal().exit_code if refused else 0


def _health() -> int:
    where, waits, found = health.address(), link.noted(), state.find()
    if waits and found.name in {state.READY, state.STARTING}:
        told, well = waits  # a node that waits for others knows why
    elif found.name != state.READY:
        told, well = found.reason, False
    elif where.port == 0 and os.environ.get("NODES", "1") != "1":
        told, well = channel.STARTING, False
    else:
        well = where.port == 0 or health.is_well(where)
        told = "healthy" if well else f"{where.host}:{where.port} is not healthy"
    _print(told)
    return 0 if well else 1


def _download() -> int:
    from . import downloading  # noqa: PLC0415 - a start does not wait for TLS to load

    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        lines = downloading.download(_prepare([]), os.environ, lambda text: report(f"[download] {text}"))
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    _print("\n".join(lines))
    return 0


def _pair_test() -> int:
    for line in proof.prove(_prepare([], patient=True)):
        _print(line)
    return 0


def _shown(text: str) -> int:
    _print(text)
    return 0


COMMANDS: dict[str, dict[str, Callable[[], int]]] = {
    "help": {"": lambda: _shown(show.help_text(images.load()))},
    "settings": {
        "": lambda: _shown(show.settings_text(images.load())),
        "--markdown": lambda: _shown(show.settings_markdown(images.load())),
    },
    "check": {"": _check},
    "health": {"": _health},
    "download": {"": _download},
    "weights": {
        "": lambda: _shown(weights.as_text(_prepare([]))),
        "--json": lambda: _shown(json.dumps(weights.as_value(_prepare([])), indent=2)),
    },
    "pair-test": {"": _pair_test},
}
"""The commands of the image, by their option."""


def _print(text: str) -> None:
    report(text, sys.stdout)
