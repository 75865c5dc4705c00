#!/usr/bin/python3 -I
"""Stands in for programs that a script calls: downloads and installs end here, and patches are written down.

The name that it is called by tells which one. Every call becomes a line of the journal, from which the factory learns
what a script would have fetched, and whether it went on after a patch had failed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JOURNAL = Path("/run/factory/journal")
SUPPLIED = Path("/run/factory/supplied")
"""What was supplied, and in names.json the file for each address or last part of one."""
COPIES = Path("/run/factory/copies")
LOCKED = Path("/run/factory/locked.json")
_ADDRESS = re.compile(r"^(?:https?|ftp)://\S+$")
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_INSTALLERS = frozenset({"pip", "pip3", "uv"})
_REVERSE = frozenset({"-R", "--reverse"})
_FAILED = re.compile(r"FAILED|malformed patch|can't find file|Only garbage|Assuming -R|hunks? fail", re.IGNORECASE)


def note(**entry: object) -> None:
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{json.dumps(entry)}\n")


def download(program: str, words: list[str]) -> int:
    """Hand over a supplied file in place of a download; without one, fail as without a network."""
    files = json.loads((SUPPLIED / "names.json").read_text("utf-8"))
    addresses = [word for word in words if _ADDRESS.match(word)]
    for address in addresses:
        name = address.partition("?")[0].rstrip("/").rpartition("/")[2]
        file = files.get(address, files.get(name))
        note(program=program, address=address, supplied=file is not None)
        if file is None:
            sys.stderr.write(f"{program}: (6) Could not resolve host: {address}\n")
            return 6
        target = _target(program, words, name)
        if target == "-":
            sys.stdout.buffer.write((SUPPLIED / file).read_bytes())
        else:
            shutil.copyfile(SUPPLIED / file, target)
    return 0 if addresses else 2


def _target(program: str, words: list[str], name: str) -> str:
    """Return the file that the words ask for; `-` is the standard output."""
    letter = "o" if program == "curl" else "O"
    for index, word in enumerate(words):
        if word.startswith(("--output=", "--output-document=")):
            return word.partition("=")[2]
        short = re.fullmatch(f"-[A-Za-z]*?{letter}(.*)", word)
        if short is not None and short[1]:
            return short[1]
        if word in {"--output", "--output-document"} or short is not None:
            return words[index + 1] if index + 1 < len(words) else "-"
    by_name = any(word == "--remote-name" or re.fullmatch("-[A-Za-z]*O", word) for word in words)
    return name if program == "wget" or by_name else "-"


def install(program: str, words: list[str]) -> int:
    """Answer questions about packages from the lock; refuse to install what it lacks. The factory compares versions."""
    locked = json.loads(LOCKED.read_text("utf-8"))
    words = [word for word in words if word not in {"pip", "-m"}]
    if words[:1] == ["show"]:
        known = [(name, locked[_norm(name)]) for name in words[1:] if _norm(name) in locked]
        for name, version in known:
            sys.stdout.write(f"Name: {name}\nVersion: {version}\n")
        return 0 if known else 1
    if program in _INSTALLERS and words[:1] != ["install"]:
        return 1
    wanted = [word for word in words[1:] if not word.startswith("-")]
    missing = [word for word in wanted if program not in _INSTALLERS or _norm(_NAME.match(word)[0]) not in locked]
    note(program=program, wants=wanted)
    if missing:
        sys.stderr.write(f"{program}: nothing can be installed here: {' '.join(missing)}\n")
    return 1 if missing else 0


def _norm(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def patch(words: list[str]) -> int:
    """Run patch without fuzz, and write down how it ended."""
    words, given = [_kept(word) for word in words], None
    if not any(word in {"-i", "--input"} or word.startswith(("-i/", "--input=")) for word in words):
        given = sys.stdin.buffer.read()
    command = ["/usr/bin/patch", *words, "--fuzz=0"]
    done = _run(command, given)
    said = done.stdout + done.stderr
    sys.stdout.write(said)
    failed = done.returncode > 1 or _FAILED.search(said) is not None
    opposite = [word for word in command if word not in _REVERSE | {"-N", "--forward"}]
    opposite += ["--dry-run", "--force", *([] if _reverses(words) else ["-R"])]
    note(
        program="patch",
        probe="--dry-run" in words,
        status=done.returncode,
        failed=failed,
        already=done.returncode != 0 and _run(opposite, given).returncode == 0,
        said=said[-2000:],
    )
    return done.returncode


def git(words: list[str]) -> int:
    """Run git, and write down how an apply ended."""
    if "apply" not in words:
        for address in filter(_ADDRESS.match, words):
            note(program="git", address=address)
        os.execv("/usr/bin/git", ["git", *words])  # noqa: S606
    words = [_kept(word) for word in words]
    after = words[words.index("apply") + 1 :]
    given = sys.stdin.buffer.read() if all(word.startswith("-") for word in after) else None
    done = _run(["/usr/bin/git", *words], given)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    opposite = [word for word in after if word not in _REVERSE | {"--3way", "-3"}]
    opposite = ["--check", *([] if _reverses(words) else ["--reverse"]), *opposite]
    before = ["/usr/bin/git", *words[: words.index("apply") + 1]]
    note(
        program="git apply",
        probe=not {"--check", "--stat", "--numstat", "--summary"}.isdisjoint(words),
        reverse=_reverses(words),
        status=done.returncode,
        failed=done.returncode != 0,
        already=done.returncode != 0 and _run([*before, *opposite], given).returncode == 0,
        said=done.stderr[-2000:],
    )
    return done.returncode


def _run(command: list[str], given: bytes | None) -> subprocess.CompletedProcess[str]:
    text = None if given is None else given.decode("utf-8", "surrogateescape")
    return subprocess.run(  # noqa: S603
        command, input=text, check=False, capture_output=True, encoding="utf-8", errors="surrogateescape"
    )


def _reverses(words: list[str]) -> bool:
    return not _REVERSE.isdisjoint(words)


def _kept(word: str) -> str:
    """Copy what `<(…)` gives into a file: it is read twice, to learn whether a patch is there already."""
    match = re.search(r"/dev/fd/\d+$", word)
    if match is None:
        return word
    COPIES.mkdir(exist_ok=True)
    copy = COPIES / str(len(list(COPIES.iterdir())))
    copy.write_bytes(Path(match[0]).read_bytes())
    return word.replace(match[0], str(copy))


def main() -> int:
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    if program == "sudo":
        os.execvp(words[0], words)  # noqa: S606
    if program in {"patch", "git"}:
        return (patch if program == "patch" else git)(words)
    return (download if program in {"curl", "wget"} else install)(program, words)


if __name__ == "__main__":
    raise SystemExit(main())
