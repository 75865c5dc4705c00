"""Whatever matrix.yaml, locks and command lines hold, commands end soon and with a message; the seed is fixed."""

import signal
import string
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import pytest
import yaml

from imagefactory.cli.program import collection
from imagefactory.cli.show.terminal import error_message
from imagefactory.errors import FactoryError
from imagefactory.lock.drift import check_locks, expected_locks
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import buildable, exclusions
from imagefactory.project.locks.files import Lock
from imagefactory.project.project import Project
from imagefactory.project.targets import EVERYTHING, select
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.inv import Inv

pytestmark = pytest.mark.slow
CASES, SEED, LIMIT = 1000, 20261116, 10
# fmt: off
ODD = (
    "null", "[]", "{}", "- ", ": ", "&a [*a]", "!!python/name:os.system x", "\0", "'", '"', "1e999", "-1", "true",
    "9" * 400, "\u2028", "\u202e", "<<: *a", "[" * 500, "{a: " * 200, "\n", "\t", "%", "~", "../../x", "\x1b[2J",
    "*", "a/b/c/d", "@", "2.0", "linux/arm64", "sha256:" + "0" * 64, "x" * 5000, "", " ", "é", "=", "--", "-",
)
# fmt: on


@contextmanager
def in_time() -> Iterator[None]:
    """Fail if a case hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def mutated(random: Random, text: str) -> str:
    """Replace some parts of a text with odd words, other parts of it, or random characters."""
    for _ in range(random.randint(1, 3)):
        at, other = random.randrange(len(text)), random.randrange(len(text))
        width = random.choice((0, 1, 3, 20, 100))
        noise = "".join(random.choices(string.printable, k=random.randint(1, 8)))
        odd = random.choice((random.choice(ODD), text[other : other + width], noise))
        text = text[:at] + odd + text[at + width :]
    return text


def rearranged(random: Random, text: str) -> str:
    """Replace, remove, rename or copy one value of a document."""
    document = yaml.safe_load(text)
    parent, key = random.choice(places(document))
    other, name = random.choice(places(document))
    match random.randrange(4):
        case 0:
            parent[key] = random.choice((*ODD, None, True, -1, float("nan"), [], {}, [["x"]], {"x": {}}))
        case 1:
            del parent[key]
        case 2 if isinstance(parent, dict):
            parent[random.choice(ODD)] = parent.pop(key)
        case _:
            parent[key] = yaml.safe_load(yaml.safe_dump(other[name]))
    return yaml.dump(document, allow_unicode=True, sort_keys=False)


def places(value: Any) -> list[tuple[Any, Any]]:
    """List every place in a document: the collection and the key that hold it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((value, key), *places(item))]


def use(checkout: Checkout, random: Random) -> None:
    """Read every lock, and plan a few images."""
    project = Project(checkout.root)
    with suppress(FactoryError):
        check_locks(project, expected_locks(project))
    cells = buildable(project.matrix)
    assert {exclusion.cell for exclusion in exclusions(project.matrix)}.isdisjoint(cells)
    assert not cells or set(select(project.matrix, [EVERYTHING])) == set(cells)
    for cell in random.sample(cells, min(len(cells), 3)):
        with suppress(FactoryError):
            make_plan(project, cell)


def test_any_matrix_is_used_or_refused_with_all_four_parts(locked_checkout: Checkout) -> None:
    random, text = Random(SEED), locked_checkout.matrix.read_text("utf-8")
    for number in range(CASES):
        change = mutated if number % 2 else rearranged
        locked_checkout.matrix.write_text(change(random, text), "utf-8")
        refused = None
        with in_time():
            try:
                use(locked_checkout, random)
            except FactoryError as error:
                refused = error
        if refused:
            assert all((refused.what, refused.where, refused.why, refused.fix, error_message(refused).plain))


def test_any_lock_is_used_or_refused(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    # A checksum refuses nearly all changes; somebody who makes a lock by hand can also compute it.
    monkeypatch.setattr(Lock, "content_checksum", lambda lock: lock.integrity)
    random = Random(SEED)
    paths = [path for path in sorted(locked_checkout.locks.rglob("*.toml")) if path.stat().st_size]
    texts = {path: path.read_text("utf-8") for path in paths}
    for _ in range(CASES):
        path = random.choice(paths)
        path.write_text(mutated(random, texts[path]), "utf-8")
        with in_time(), suppress(FactoryError):
            use(locked_checkout, random)
        path.write_text(texts[path], "utf-8")


# fmt: off
COMMANDS = (
    "plan", "targets", "render", "explain", "diff", "load", "verify", "smoke", "audit", "licences", "sbom",
    "recipes.export", "bench.compare", "bench.plot", "run", "help",
)
# fmt: on
"""Those that ask neither a registry nor Docker, and write nowhere else."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Docker's library, where no daemon answers
def test_any_command_line_is_understood_or_refused(own_inv: Inv) -> None:
    random = Random(SEED)
    contexts = {str(context.name): context for context in collection(REPOSITORY).to_contexts()}
    for _ in range(CASES // 4):
        name = random.choice(COMMANDS)
        known = list(contexts[name].flags) if name != "help" else ["--list"]
        words = ["--print"] if name == "run" else []
        for _ in range(random.randint(0, 4)):
            value = random.choice((*ODD, "big", "tiny/cpu", "--help")).replace("\0", "")
            flag = random.choice(known)
            words += random.choice(([flag, value], [f"{flag}={value}"], [value]))
        with in_time():
            done = own_inv(name, *words)
        assert "Traceback" not in done.stderr, words
        assert "error[internal]" not in done.stderr, (words, done.stderr)
