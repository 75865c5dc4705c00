"""The decorator that turns functions into commands, and what commands share."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.parser.argument import Argument
from invoke.tasks import Task, task

from imagefactory.cli import options
from imagefactory.cli.failures import in_words
from imagefactory.environment.setup import RUN, ensure
from imagefactory.store.certificates import trust_the_machine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from imagefactory.cli.show.live import Display
    from imagefactory.cli.show.tables import Rows
    from imagefactory.oci.registry.repository import Repository
    from imagefactory.plan.plan import Plan
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project
    from imagefactory.project.targets import VersionOf
    from imagefactory.publish.attest.signing import Signer, Verifier

COMMANDS: list[tuple[str, Any]] = []  # the group of each command ("" for most), and its task


class _Command(Task):  # type: ignore[type-arg]
    """A task that keeps its help texts; Invoke hands them to the first who asks, and `bench` is also `bench.run`."""

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        # Invoke gives each option the first free letter of its name; `-h` stays a question for help.
        options: dict[str, Any] = super().arg_opts(name, default, taken_names | {"h"})
        return options

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        texts = dict(self.help)
        try:
            return super().get_arguments(ignore_unknown_help)
        finally:
            self.help = texts


def command(
    group: str = "",
    /,
    *,
    needs: str = RUN,
    called: str = "",
    positional: Sequence[str] | None = None,
    default: bool = False,
    **help: str,
) -> Callable[[Callable[..., None]], Any]:
    """Turn a function into a task; its first argument is the project, and failures end as messages.

    Options that are lists of strings can be repeated. The checkout comes from the collection's configuration, set by
    tasks.py.

    Args:
        group: what comes before the dot in the command's name.
        needs: the locked set of packages (locks/environment/) that the task runs with.
        called: the command's name, if it is not that of the function.
        positional: options that need no name on the command line (default: those without a default).
        default: whether the group's name alone means this command.
        help: what each option means; those in `options.HELP` need no other words.
    """

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            root = Path(context.checkout)
            with in_words(f"the command {function.__name__.strip('_').replace('_', '-')}", root):
                trust_the_machine()
                need(root, needs)
                from imagefactory.project.project import Project

                function(Project(root), *args, **kwargs)

        kinds = function.__annotations__
        lists = [name for name, kind in kinds.items() if kind == "list[str]"]
        shared = {name: options.HELP.get(f"{name}: {kind}", "") for name, kind in kinds.items()}
        texts = {name: text for name, text in shared.items() if text} | help
        new_task = task(
            klass=_Command, name=called or None, iterable=lists, help=texts, positional=positional, default=default
        )(run)
        COMMANDS.append((group, new_task))
        return new_task

    return decorate


def need(root: Path, packages: str) -> None:
    """Install a locked set of packages if it is missing, and then restart this command."""
    if ensure(root, packages, lambda text: say(f"inv: {text}")):
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def say(text: RenderableType) -> None:
    """Print a message to standard error, without wrapping: long paths and commands stay easy to copy."""
    from imagefactory.cli.show.terminal import err

    err.print(text, soft_wrap=True)


def say_written(project: Project, path: Path, *, changed: bool) -> None:
    say(f"{path.relative_to(project.root)}: {'written' if changed else 'unchanged'}")


def show(table: RenderableType) -> None:
    from rich.text import Text

    from imagefactory.cli.show.terminal import out

    out.print(table, soft_wrap=isinstance(table, Text))


def show_rows(rows: Rows, *columns: str) -> None:
    from imagefactory.cli.show.tables import table

    show(table(rows, *columns))


def print_json(value: object) -> None:
    """Print JSON in ASCII: the bytes do not depend on the terminal's encoding."""
    print(json.dumps(value, indent=2))


def print_summary(text: str) -> None:
    """Print what a job of a workflow also shows on the page of its run."""
    from imagefactory.ci.run_summary import plain

    write_summary(text)
    print(plain(text))


def write_summary(text: str) -> None:
    _append("GITHUB_STEP_SUMMARY", text)


def write_outputs(values: dict[str, str]) -> None:
    """Hand values on to later steps of a workflow."""
    # GitHub's form for values of one line.
    _append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in values.items()))


def _append(variable: str, text: str) -> None:
    """Add to a file that GitHub reads, if this is one of its jobs."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")


def watching() -> AbstractContextManager[Display]:
    from imagefactory.cli.show.live import watching

    return watching()


def select(project: Project, target: Sequence[str], version_of: VersionOf | None = None) -> list[Cell]:
    """Return the cells that targets name; a job of a workflow hands several on in one text."""
    from imagefactory.project.targets import select

    # An empty text stays, and is refused: an unset variable must not mean the default target.
    words = [word for text in target for word in text.split() or [text]]
    return select(project.matrix, words, version_of)


def select_one(project: Project, target: str, version_of: VersionOf | None = None) -> Cell:
    from imagefactory.project.targets import select_one

    return select_one(project.matrix, target, version_of)


def warn_of_mods(project: Project) -> None:
    """Warn of mods that no image gets because they name what matrix.yaml does not have."""
    from imagefactory.mods.choose import unknown_names

    for unknown in unknown_names(project.mods.values(), project.matrix):
        say(f"warning: {unknown.what} {unknown.fix} ({unknown.where})")


def plans_of(project: Project, target: Sequence[str]) -> list[Plan]:
    """Plan what targets name; `all` stands for what is locked, since nothing else can be planned."""
    from imagefactory.plan.make import make_plan
    from imagefactory.project.targets import EVERYTHING

    cells = select(project, target)
    locked = [cell for cell in cells if project.is_locked(cell)]
    if list(target) == [EVERYTHING] and locked:
        cells = locked
    return [make_plan(project, cell) for cell in cells]


def open_repository(project: Project, name: str = "") -> Repository:
    from imagefactory.oci.registry.repository import Repository

    return Repository.open(project.matrix.require_registry(name))


def find_trust(project: Project, keys: Sequence[str] = (), signer: Signer | None = None) -> Verifier:
    """Find whose signatures count; those of workflows need more packages."""
    from imagefactory.publish.attest.signing import find_trust

    if not keys:
        need(project.root, "sign")
    return find_trust(project, keys, signer)


def find_signer(project: Project, key: str) -> Signer | None:
    """Find the signer for the --key option; a CI job's identity needs more packages."""
    from imagefactory.publish.attest import signing

    if signing.signs_as_job(key):
        need(project.root, "sign")
    return signing.find_signer(project, key)


def find_publisher(project: Project, key: str, *, unsigned: bool) -> tuple[Signer | None, Verifier | None]:
    """Find who signs what is published, and whose signatures count; raise if nobody signs and nobody said so."""
    from imagefactory.publish.attest.keys import cannot_sign
    from imagefactory.publish.attest.signing import KeySigner, find_trust

    signer = find_signer(project, key)
    if unsigned:
        return signer, None
    if signer is None:
        where = "--key, FACTORY_SIGNING_KEY and your configuration folder"
        why = "There is no key, and this is not a CI job with an identity of its own."
        fix = "Make a key with `./inv keys.new`. A private registry may go without: --unsigned."
        raise cannot_sign("Nobody would sign what is published.", where, why, fix)
    if isinstance(signer, KeySigner) and signer.hint not in {trusted.hint for trusted in find_trust(project).keys}:
        say(f"- {signer.name} is not in keys/: nobody trusts what it signs until its public key is committed there")
    return signer, find_trust(project, signer=signer)


def today() -> date:
    return datetime.now(UTC).date()
