"""dpkg's records, so that scanners see the packages and `apt-get install` works in derived images.

They come in two forms: one file per package in status.d, which scanners of distroless images read, and a
single `status` file with its info folder, which dpkg and apt read.
"""

import hashlib
from collections.abc import Iterator, Sequence

from imagefactory.assemble.layers.debian.deb import Deb, Unpacked
from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.assemble.layers.debian.policy import merged

HOME = "var/lib/dpkg"
STATUS = "Status: install ok installed"

# The control files that dpkg needs to upgrade or remove a package. `shlibs` and `symbols` (2 MB) are only
# needed to build packages.
_KEPT = frozenset({"conffiles", "config", "md5sums", "templates", "triggers"})
_SCRIPTS = frozenset({"config", "postinst", "postrm", "preinst", "prerm"})


def add_dpkg_database(tree: FileTree, packages: Sequence[tuple[Deb, Unpacked]], architecture: str) -> None:
    stanzas = []
    for deb, unpacked in packages:
        stanza = _stanza(deb, tree, architecture)
        stanzas.append(stanza)
        tree.add_file(f"{HOME}/status.d/{deb.name}", stanza)
        tree.add_file(f"{HOME}/status.d/{deb.name}.md5sums", deb.control.get("md5sums", b""))
        side_by_side = deb.field("Multi-Arch") == "same"  # one package for each architecture
        stem = f"{HOME}/info/{deb.name}{f':{deb.locked.architecture}' if side_by_side else ''}"
        tree.add_file(f"{stem}.list", "".join(f"{path}\n" for path in unpacked.listed))
        for name, data in sorted(deb.control.items()):
            if name in _KEPT | _SCRIPTS:
                tree.add_file(f"{stem}.{name}", data, 0o755 if name in _SCRIPTS else 0o644)
    tree.add_file(f"{HOME}/status", "\n".join(stanzas))
    tree.add_file(f"{HOME}/info/format", "1\n")
    tree.add_file(f"{HOME}/available", "")
    tree.add_file(f"{HOME}/statoverride", "")
    for folder in ("alternatives", "parts", "updates"):
        tree.add_folder(f"{HOME}/{folder}")
    _add_triggers(tree, [deb for deb, _ in packages])


def _stanza(deb: Deb, tree: FileTree, architecture: str) -> str:
    """Return the status of one package: its control file, `Status`, and the hashes of its conffiles."""
    package, *fields = deb.script("control").strip().splitlines()
    conffiles = [f" {path} {digest}" for path, digest in _conffiles(deb, tree, architecture)]
    lines = [package, STATUS, *fields, *(["Conffiles:", *conffiles] if conffiles else [])]
    return "".join(f"{line}\n" for line in lines)


def _conffiles(deb: Deb, tree: FileTree, architecture: str) -> Iterator[tuple[str, str]]:
    for line in deb.script("conffiles").splitlines():
        path = merged(line.strip().lstrip("/"), architecture)
        # `remove-on-upgrade /path` names a file that is not shipped.
        if line.startswith("/") and path in tree:
            # dpkg compares with this hash, to keep a configuration file that was edited.
            yield line.strip(), hashlib.md5(tree.read(path), usedforsecurity=False).hexdigest()


def _add_triggers(tree: FileTree, debs: Sequence[Deb]) -> None:
    """Record the triggers, without which installing a library in a derived image would not run ldconfig."""
    named: dict[str, list[str]] = {}
    files: list[str] = []
    for deb in debs:
        for line in deb.script("triggers").splitlines():
            directive, _, name = line.partition("#")[0].strip().partition(" ")
            if directive not in {"interest", "interest-await", "interest-noawait"}:
                continue
            listener = f"{deb.name}/noawait" if directive.endswith("noawait") else deb.name
            if name.strip().startswith("/"):
                files.append(f"{name.strip()} {listener}")
            else:
                named.setdefault(name.strip(), []).append(listener)
    for name, listeners in named.items():
        tree.add_file(f"{HOME}/triggers/{name}", "".join(f"{listener}\n" for listener in sorted(listeners)))
    tree.add_file(f"{HOME}/triggers/File", "".join(f"{line}\n" for line in sorted(files)))
    tree.add_file(f"{HOME}/triggers/Unincorp", "")
