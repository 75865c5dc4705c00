"""Tables of the base layer: accounts, merged folders, paths left out, and folders with special attributes.

Debian fixes uids and gids below 100 for every system (package base-passwd). Accounts that maintainer scripts would
number dynamically (`rdma`) have fixed numbers here. No account has a password.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath

# vllm has a real shell, for `docker exec -it … bash` and for tools that need $SHELL.
USERS = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:x:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
news:x:9:9:news:/var/spool/news:/usr/sbin/nologin
uucp:x:10:10:uucp:/var/spool/uucp:/usr/sbin/nologin
proxy:x:13:13:proxy:/bin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
list:x:38:38:Mailing List Manager:/var/list:/usr/sbin/nologin
irc:x:39:39:ircd:/run/ircd:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
vllm:x:1000:1000:vLLM server:/home/vllm:/bin/bash
"""

# libibverbs1 adds rdma, the owner of /dev/infiniband/* on hosts that set it up so.
_GROUPS = """
root:0 daemon:1 bin:2 sys:3 adm:4 tty:5 disk:6 lp:7 mail:8 news:9 uucp:10 man:12 proxy:13 kmem:15
dialout:20 fax:21 voice:22 cdrom:24 floppy:25 tape:26 sudo:27 audio:29 dip:30 www-data:33 backup:34
operator:37 list:38 irc:39 src:40 shadow:42 utmp:43 video:44 sasl:45 plugdev:46 staff:50 games:60
users:100 nogroup:65534 rdma:101 vllm:1000
"""

GROUPS: Mapping[str, int] = {name: int(gid) for name, gid in (word.split(":") for word in _GROUPS.split())}
UIDS: Mapping[str, int] = {name: int(uid) for name, _, uid, *_ in (line.split(":") for line in USERS.splitlines())}


def account_entries() -> Iterator[Entry]:
    # The date of the last password change stays empty: it would be today's, and it switches ageing off.
    files = {
        "passwd": USERS,
        "group": "".join(f"{name}:x:{gid}:\n" for name, gid in GROUPS.items()),
        "shadow": "".join(f"{name}:*::0:99999:7:::\n" for name in UIDS),
        "gshadow": "".join(f"{name}:*::\n" for name in GROUPS),
    }
    for name, text in files.items():
        mode, gid = (0o640, GROUPS["shadow"]) if name.endswith("shadow") else (0o644, 0)
        yield Entry(ImagePath(f"etc/{name}"), EntryKind.FILE, mode, Bytes(text.encode()), gid=gid)


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
    EntryKind.DIRECTORY: re.compile(r"usr/share/man(/man[1-9])?"),  # later packages link alternatives here
    EntryKind.SYMLINK: re.compile(r"usr/share/doc/[^/]+"),  # to the folder with the package's licence
}


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))


_EXCLUDED, _INCLUDED = _any_of(EXCLUDED), _any_of(INCLUDED)


def is_left_out(path: str, kind: EntryKind = EntryKind.FILE) -> bool:
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
    return FOLDERS.get(path, Folder())
