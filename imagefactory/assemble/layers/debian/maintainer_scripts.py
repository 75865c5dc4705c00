"""Writes what maintainer scripts would: default configuration, links, folders, PAM, shells, alternatives.

Each line below stands for a line of a postinst script, which is named. Left out, because containers have no use
for it: enabling services and timers, byte-compiling Python, asking questions, files under /var/log and
/var/cache.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from imagefactory.assemble.layers.debian.deb import LINKED_FOLDERS, Deb
from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.assemble.layers.debian.policy import EXCLUDED, INCLUDED, MERGED, is_left_out
from imagefactory.errors import InputError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath, read_content

APT_EXAMPLES: Mapping[ImagePath, ImagePath] = {
    # until Debian 12, and since
    ImagePath("usr/share/doc/apt/examples/sources.list"): ImagePath("etc/apt/sources.list"),
    ImagePath("usr/share/doc/apt/examples/debian.sources"): ImagePath("etc/apt/sources.list.d/debian.sources"),
}
"""The examples of sources that apt ships, and where they take effect."""

# Copied if the source exists and the target does not: install_from_default() of several scripts.
DEFAULTS: Mapping[str, str] = {
    "etc/inputrc": "usr/share/readline/inputrc",  # readline-common
    "etc/motd": "usr/share/base-files/motd",  # base-files
    "etc/nsswitch.conf": "usr/share/libc-bin/nsswitch.conf",  # libc-bin
    "etc/profile": "usr/share/base-files/profile",  # base-files
    "root/.bashrc": "usr/share/base-files/dot.bashrc",  # base-files
    "root/.profile": "usr/share/base-files/dot.profile",  # base-files
}

# Created if the path in the second column is in the tree, or always if it is empty: (link, needs, target).
LINKS = (
    ("etc/dpkg/origins/default", "etc/dpkg/origins/debian", "debian"),  # base-files
    ("etc/localtime", "usr/share/zoneinfo/Etc/UTC", "/usr/share/zoneinfo/Etc/UTC"),  # tzdata
    ("usr/local/man", "", "share/man"),  # base-files
    ("var/spool/mail", "", "../mail"),  # base-files
)

_PYTHON_CONFIG = """\
[DEFAULT]
# how to byte-compile (comma separated: standard, optimize)
byte-compile = standard
"""

# Written if the path in the second column is in the tree, or always if it is empty: (file, needs, mode, content).
FILES = (
    ("etc/environment", "etc/pam.d", 0o644, ""),  # libpam-modules
    ("etc/machine-id", "", 0o644, ""),  # empty: "not set yet", see machine-id(5)
    ("etc/python3/debian_config", "usr/bin/python3", 0o644, _PYTHON_CONFIG),  # python3
    ("etc/security/opasswd", "etc/security", 0o600, ""),  # libpam-modules
    ("etc/subgid", "usr/bin/newgrp", 0o644, ""),  # login
    ("etc/subuid", "usr/bin/newgrp", 0o644, ""),  # login
    ("etc/timezone", "usr/share/zoneinfo/Etc/UTC", 0o644, "Etc/UTC\n"),  # tzdata
    (
        "var/lib/dpkg/diversions",
        "usr/bin/dash",
        0o644,
        "/usr/share/man/man1/sh.1.gz\n/usr/share/man/man1/sh.distrib.1.gz\ndash\n/bin/sh\n/bin/sh.distrib\ndash\n",
    ),  # dash claims /bin/sh
)

FOLDERS = (
    *("etc/opt", "home/vllm", "media", "mnt", "opt", "root", "run/lock", "srv", "tmp"),
    *("var/mail", "var/opt", "var/tmp"),
    *(f"usr/local/{name}" for name in ("bin", "etc", "games", "include", "lib", "sbin", "share/man", "src")),
)

# What pam-auth-update generates from the only profile of the base, `unix` (a password, checked against
# /etc/shadow): the two blocks of each file, and the state by which it later recognises its own work.
_PERMIT = "[default=1]\t\t\tpam_permit.so"
_SESSION = (
    f"session\t{_PERMIT}",
    "session\trequired\tpam_unix.so ",
    f"Module: null\n{_PERMIT}\nModule: unix\nrequired\tpam_unix.so\n",
)
PAM: Mapping[str, tuple[str, str, str]] = {
    "account": (
        "account\t[success=1 new_authtok_reqd=done default=ignore]\tpam_unix.so ",
        "",
        "Module: unix\n[success=end new_authtok_reqd=done default=ignore]\tpam_unix.so\n",
    ),
    "auth": (
        "auth\t[success=1 default=ignore]\tpam_unix.so nullok",
        "",
        "Module: unix\n[success=end default=ignore]\tpam_unix.so nullok\n",
    ),
    "password": (
        "password\t[success=1 default=ignore]\tpam_unix.so obscure yescrypt",
        "",
        "Module: unix\n[success=end default=ignore]\tpam_unix.so obscure yescrypt\n",
    ),
    "session": _SESSION,
    "session-noninteractive": _SESSION,
}
_PAM_SEEN = "unix\nmkhomedir\n"


def add_merged_links(tree: FileTree, architecture: str) -> None:
    for name in MERGED[architecture]:
        tree.add_folder(f"usr/{name}")
        tree.add_link(name, f"usr/{name}")


def add_configured_files(tree: FileTree) -> None:
    """Add everything that the scripts of the unpacked packages would have written."""
    for path, target in LINKED_FOLDERS.items():
        tree.add_link(path, target)
    for name in FOLDERS:
        tree.add_folder(name)
    for path, source in DEFAULTS.items():
        if source in tree and path not in tree:
            tree.add_file(path, tree.read(source))
    for path, needs, target in LINKS:
        if (not needs or needs in tree) and path not in tree:
            tree.add_link(path, target)
    for path, needs, mode, text in FILES:
        if (not needs or needs in tree) and path not in tree:
            tree.add_file(path, text, mode)
    _add_python_folders(tree)
    _add_pam(tree)
    _add_shells(tree)
    _add_package_manager_settings(tree)


def _add_python_folders(tree: FileTree) -> None:
    """Add the folder below /usr/local that Debian's Python searches for what `pip install` puts there."""
    for entry in list(tree):
        if match := re.fullmatch(r"usr/bin/(python3\.\d+)", entry.path):
            tree.add_folder(f"usr/local/lib/{match[1]}/dist-packages")


def _add_pam(tree: FileTree) -> None:
    if "usr/share/pam-configs/unix" not in tree:
        return
    for name, (primary, additional, state) in PAM.items():
        text = tree.read(f"usr/share/pam/common-{name}").decode()
        text = re.sub(r"\$\w+_primary\n", f"{primary}\n", text)
        text = re.sub(r"\$\w+_additional\n", f"{additional}\n" if additional else "", text)
        tree.add_file(f"etc/pam.d/common-{name}", text)
        tree.add_file(f"var/lib/pam/{name}", state)
    tree.add_file("var/lib/pam/seen", _PAM_SEEN)


def _add_shells(tree: FileTree) -> None:
    """Write the list of login shells, each under both of its names, as update-shells does."""
    files = sorted(entry.path for entry in tree if posixpath.dirname(entry.path) == "usr/share/debianutils/shells.d")
    if "usr/share/debianutils/shells" not in tree:
        return
    template = tree.read("usr/share/debianutils/shells").decode().splitlines()
    names: dict[str, None] = {}
    for text in (*template, *(line for file in files for line in tree.read(file).decode().splitlines())):
        shell = text.partition("#")[0].strip()
        if shell:
            folder = tree.resolve(posixpath.dirname(shell))
            names[shell] = names[f"/{folder}/{posixpath.basename(shell)}"] = None
    comments = [line for line in template if line.startswith("#")]
    tree.add_file("etc/shells", "".join(f"{line}\n" for line in (*comments, *names)))
    tree.add_file("var/lib/shells.state", "".join(f"{name}\n" for name in names))


def _add_package_manager_settings(tree: FileTree) -> None:
    """Configure dpkg so that packages installed in derived images leave out the same documentation."""
    if "usr/bin/dpkg" in tree:
        lines = [f"path-exclude {pattern}" for pattern in EXCLUDED]
        lines += [f"path-include {pattern}" for pattern in INCLUDED]
        tree.add_file("etc/dpkg/dpkg.cfg.d/imagefactory", "".join(f"{line}\n" for line in lines))


def add_apt_sources(tree: FileTree, left_out: Mapping[ImagePath, Entry]) -> None:
    """Write apt's sources from the example that apt ships: the same mirrors, but `main` only."""
    for example, place in APT_EXAMPLES.items():
        if example in left_out:
            lines = read_content(left_out[example].content).decode().splitlines()
            used = [line for line in lines if not line.startswith("#")]
            in_stanzas = re.sub(r"(?m)^Components: .*$", "Components: main", "\n".join([*used, ""]))
            words = [line.split() for line in used if line.startswith("deb ")]
            in_lines = "".join(f"{kind} {root} {suite} main\n" for kind, root, suite, *_ in words)
            tree.add_file(place, in_lines or in_stanzas)


BUNDLE = "etc/ssl/certs/ca-certificates.crt"

_CERTIFICATE = re.compile(r"usr/share/ca-certificates/(.+\.crt)")
_HEADER = """\
# This file lists certificates that you wish to use or to ignore to be
# installed in /etc/ssl/certs.
# update-ca-certificates(8) will update /etc/ssl/certs by reading this file.
#
# This is autogenerated by dpkg-reconfigure ca-certificates.
# Certificates should be installed under /usr/share/ca-certificates
# and files with extension '.crt' is recognized as available certs.
#
# line begins with # is comment.
# line begins with ! is certificate filename to be deselected.
#
"""


def add_certificates(tree: FileTree) -> None:
    """Concatenate all certificates into one file.

    Debian also creates a link per certificate, named by a hash, for programs that look them up one by one.
    They are not needed: curl and apt read the bundle, and OpenSSL's default file (`cert.pem`, in package
    openssl) points to it.
    """
    certificates = {
        match[1]: tree.read(entry.path)
        for entry in tree
        if entry.kind is EntryKind.FILE and (match := _CERTIFICATE.fullmatch(entry.path))
    }
    if not certificates:
        return
    # Without a newline at the end of a file, two certificates would run together.
    tree.add_file(BUNDLE, b"".join(data.rstrip(b"\n") + b"\n" for data in certificates.values()))
    tree.add_file("etc/ca-certificates.conf", _HEADER + "".join(f"{name}\n" for name in certificates))
    tree.add_folder("usr/local/share/ca-certificates")


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


# Alternatives are links like cc -> /etc/alternatives/cc -> gcc. Every registration is declared here. The scripts are
# read, not run: one that registers anything else stops the build, so that no package silently lacks its command.
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

_INSTALL = re.compile(r"--install\b.*")


def registered(deb: Deb) -> Iterator[Alternative]:
    for script in ("preinst", "postinst"):
        lines = re.sub(r"\\\n", " ", deb.script(script))
        uncommented = re.sub(r"(?m)^[ \t]*#.*$", "", lines)
        for command in re.split(r"[|;&\n]", uncommented):
            _, _, given = command.partition("update-alternatives")
            install = _INSTALL.search(given)
            words = shlex.split(install[0], comments=True) if install else []
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
    by_name: dict[str, list[Alternative]] = {}
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
                    fix="Declare it in DECLARED in imagefactory/assemble/layers/debian/maintainer_scripts.py.",
                )
            by_name.setdefault(alternative.main.name, []).append(alternative)
    for name, candidates in sorted(by_name.items()):
        best = min(candidates, key=lambda candidate: (-candidate.priority, candidate.main.target))
        for link in (best.main, *best.followers):
            tree.add_link(f"etc/alternatives/{link.name}", link.target)
            # After usr-merge, /lib/cpp is usr/lib/cpp.
            parent, _, command = link.link.lstrip("/").rpartition("/")
            tree.add_link(f"{tree.resolve(parent) or parent}/{command}", f"/etc/alternatives/{link.name}")
        tree.add_file(f"var/lib/dpkg/alternatives/{name}", _administration(best, candidates))


def _administration(best: Alternative, candidates: Sequence[Alternative]) -> str:
    """Return the state file of update-alternatives for one name (see update-alternatives(1), FILES)."""
    followers = sorted({link.name: link.link for candidate in candidates for link in candidate.followers}.items())
    lines = ["auto", best.main.link]
    for name, link in followers:
        lines += [name, link]
    lines.append("")
    for candidate in sorted(candidates, key=lambda candidate: candidate.main.target):
        targets = {link.name: link.target for link in candidate.followers}
        lines += [candidate.main.target, str(candidate.priority)]
        lines += [targets.get(name, "") for name, _ in followers]
    return "\n".join([*lines, "", ""])
