"""Adds alternatives: links like cc -> /etc/alternatives/cc -> gcc, which maintainer scripts would create.

Every registration is declared below. The scripts are read, not run: one that registers anything that is
not in the table stops the build, so that a new package cannot silently lack its command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imagefactory.assemble.layers.debian.deb import Deb
from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.assemble.layers.debian.policy import is_left_out
from imagefactory.errors import InputError


class Link(NamedTuple):
    """A name, the link that users call, and its target."""

    name: str
    link: str
    target: str


class Alternative(NamedTuple):
    """One `update-alternatives --install`, with the links that follow it. Manual pages are left out."""

    package: str
    main: Link
    priority: int
    followers: tuple[Link, ...] = ()


def _declare(package: str, link: str, target: str, priority: int, *followers: Link) -> Alternative:
    return Alternative(package, Link(link.rpartition("/")[2], link, target), priority, followers)


DECLARED = frozenset(
    {
        _declare("cpp", "/lib/cpp", "/usr/bin/cpp", 10),
        _declare("debianutils", "/usr/bin/which", "/usr/bin/which.debianutils", 0),
        _declare("g++", "/usr/bin/c++", "/usr/bin/g++", 20),
        _declare("gcc", "/usr/bin/c89", "/usr/bin/c89-gcc", 20),
        _declare("gcc", "/usr/bin/c99", "/usr/bin/c99-gcc", 20),
        _declare("gcc", "/usr/bin/cc", "/usr/bin/gcc", 20),
        _declare("mawk", "/usr/bin/awk", "/usr/bin/mawk", 5, Link("nawk", "/usr/bin/nawk", "/usr/bin/mawk")),
        _declare("tar", "/usr/sbin/rmt", "/usr/sbin/rmt-tar", 50),
        _declare("util-linux", "/usr/bin/pager", "/bin/more", 50),
    }
)

# For programs named *.procps, of which bookworm's procps has none.
_OF_PROCPS = Alternative("procps", Link("$BINNAME", "$BINPATH/$BINNAME", "$BINPATH/$BINNAME.procps"), 50)

_LEADING_TO_INSTALL = re.compile(r"update-alternatives\b[^|;&\n]*?(--install\b[^|;&\n]*)")


def registered(deb: Deb) -> Iterator[Alternative]:
    """Iterate over the alternatives that a package's scripts would register."""
    for script in ("preinst", "postinst"):
        lines = re.sub(r"\\\n", " ", deb.script(script))
        uncommented = re.sub(r"(?m)^\s*#.*$", "", lines)
        for command in _LEADING_TO_INSTALL.findall(uncommented):
            words = shlex.split(command, comments=True)
            main, followers, priority = None, [], 0
            while words:
                option = words.pop(0)
                if option == "--install":
                    link, name, target, rank = words[:4]
                    main, priority, words = Link(name, link, target), int(rank), words[4:]
                elif option == "--slave":
                    link, name, target = words[:3]
                    followers.append(Link(name, link, target))
                    words = words[3:]
            if main is not None and not is_left_out(main.link.lstrip("/")):
                kept = tuple(link for link in followers if not is_left_out(link.link.lstrip("/")))
                yield Alternative(deb.name, main, priority, kept)


def add_alternatives(tree: FileTree, debs: Sequence[Deb]) -> None:
    """Link every alternative to its best candidate, and register all of them with update-alternatives."""
    found: dict[str, list[Alternative]] = {}
    for deb in debs:
        for alternative in registered(deb):
            if alternative == _OF_PROCPS:
                continue
            if alternative not in DECLARED:
                raise InputError(
                    "unknown-alternative",
                    f"{deb.name} registers the alternative {alternative.main.name}, which is not declared.",
                    where=deb.locked.file,
                    why=f"Its postinst wants {alternative.main.link} -> {alternative.main.target} "
                    f"(priority {alternative.priority}) and does not run.",
                    fix="Declare it in DECLARED in imagefactory/assemble/layers/debian/alternatives.py.",
                )
            found.setdefault(alternative.main.name, []).append(alternative)
    for name, candidates in sorted(found.items()):
        best = min(candidates, key=lambda one: (-one.priority, one.main.target))
        for link in (best.main, *best.followers):
            tree.add_link(f"etc/alternatives/{link.name}", link.target)
            tree.add_link(_real(tree, link.link), f"/etc/alternatives/{link.name}")
        tree.add_file(f"var/lib/dpkg/alternatives/{name}", _administration(best, candidates))


def _administration(best: Alternative, candidates: Sequence[Alternative]) -> str:
    """Return the state file of update-alternatives for one name (see update-alternatives(1), FILES)."""
    followers = sorted({link.name: link.link for one in candidates for link in one.followers}.items())
    lines = ["auto", best.main.link]
    for name, link in followers:
        lines += [name, link]
    lines.append("")
    for candidate in sorted(candidates, key=lambda one: one.main.target):
        targets = {link.name: link.target for link in candidate.followers}
        lines += [candidate.main.target, str(candidate.priority)]
        lines += [targets.get(name, "") for name, _ in followers]
    return "\n".join([*lines, "", ""])


def _real(tree: FileTree, link: str) -> str:
    """Return the path of a link after usr-merge: usr/lib/cpp for /lib/cpp."""
    parent, _, name = link.lstrip("/").rpartition("/")
    return f"{tree.resolve(parent) or parent}/{name}"
