"""Tables of the base layer: merged folders, paths left out, and folders with special attributes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from imagefactory.assemble.layers.debian.accounts import GROUPS, UIDS
from imagefactory.oci.entry import EntryKind, ImagePath

# --- usr-merge ------------------------------------------------------------------------------------
# Since bookworm, /bin and friends are links into /usr. Packages still ship files under the old names: dpkg
# unpacks them through the links, we rewrite the paths. amd64 has lib64 for its dynamic linker.

_EVERYWHERE = ("bin", "lib", "sbin")
MERGED: Mapping[str, tuple[str, ...]] = {
    "amd64": (*_EVERYWHERE, "lib64"),
    "arm64": _EVERYWHERE,
    "all": _EVERYWHERE,
}


def merged(path: str, architecture: str) -> ImagePath:
    """Return the real path of a packaged path."""
    top = path.partition("/")[0]
    return ImagePath(f"usr/{path}" if top in MERGED[architecture] else path)


# --- excluded paths -------------------------------------------------------------------------------
# In dpkg's own pattern language (`*` matches slashes, too), because the same lines go into the image's
# dpkg.cfg.d, so that packages installed in a derived image leave out the same files.

EXCLUDED = (
    "/usr/share/doc/*",  # manuals and changelogs, but not licences: see INCLUDED
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/groff/*",
    "/usr/share/lintian/*",
    "/usr/share/linda/*",
    "/usr/share/locale/*",  # translated messages; C.UTF-8 itself is in /usr/lib/locale
    "/usr/bin/*lto-dump*",  # 32 MB to inspect LTO objects; compiling with -flto does not need it
    "/usr/lib/*/libpython3*.a",  # 2 x 11 MB to link Python statically into other programs
)
INCLUDED = (
    "/usr/share/doc/*/copyright",  # the licences, which every redistributed image must carry
)
_KEPT = {
    EntryKind.DIRECTORY: re.compile(
        r"usr/share/man(/man[1-9])?"
    ),  # later packages link alternatives into them
    EntryKind.SYMLINK: re.compile(r"usr/share/doc/[^/]+"),  # to the folder with the package's licence
}


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))


_EXCLUDED, _INCLUDED = _any_of(EXCLUDED), _any_of(INCLUDED)


def is_left_out(path: str, kind: EntryKind = EntryKind.FILE) -> bool:
    """Return whether the base leaves out a path that a package ships."""
    if kind in _KEPT and _KEPT[kind].fullmatch(path):
        return False
    return bool(_EXCLUDED.match(f"/{path}")) and not _INCLUDED.match(f"/{path}")


# --- folders --------------------------------------------------------------------------------------
# A folder in an upper layer replaces the attributes of the one below, so all layers must agree on this table,
# and on 0755 root for all other folders.


class Folder(NamedTuple):
    """Mode and owner of a directory."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0


FOLDERS: Mapping[str, Folder] = {
    "etc/ssl/private": Folder(0o700),
    "home/vllm": Folder(0o755, UIDS["vllm"], GROUPS["vllm"]),
    "root": Folder(0o700),
    "run/lock": Folder(0o1777),
    "tmp": Folder(0o1777),
    "var/cache/ldconfig": Folder(0o700),
    "var/local": Folder(0o2775, 0, GROUPS["staff"]),
    "var/mail": Folder(0o2775, 0, GROUPS["mail"]),
    "var/tmp": Folder(0o1777),
}

PLAIN_SINCE_TRIXIE = frozenset({"var/local"})
"""Folders without special attributes in newer releases; the table applies to all releases, so that layers agree."""


def folder(path: str) -> Folder:
    """Return the mode and owner of a directory of the image."""
    return FOLDERS.get(path, Folder())
