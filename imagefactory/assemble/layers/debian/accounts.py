"""Defines the users and groups of the base: Debian's fixed system accounts, and `vllm` for the server.

Debian fixes uids and gids below 100 for every system (package base-passwd). Accounts that maintainer scripts would
number dynamically (`rdma`) have fixed numbers here. No account has a password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath

NOLOGIN = "/usr/sbin/nologin"


class User(NamedTuple):
    """One line of /etc/passwd."""

    name: str
    uid: int
    gid: int
    gecos: str
    home: str
    shell: str = NOLOGIN


USERS = (
    User("root", 0, 0, "root", "/root", "/bin/bash"),
    User("daemon", 1, 1, "daemon", "/usr/sbin"),
    User("bin", 2, 2, "bin", "/bin"),
    User("sys", 3, 3, "sys", "/dev"),
    User("sync", 4, 65534, "sync", "/bin", "/bin/sync"),
    User("games", 5, 60, "games", "/usr/games"),
    User("man", 6, 12, "man", "/var/cache/man"),
    User("lp", 7, 7, "lp", "/var/spool/lpd"),
    User("mail", 8, 8, "mail", "/var/mail"),
    User("news", 9, 9, "news", "/var/spool/news"),
    User("uucp", 10, 10, "uucp", "/var/spool/uucp"),
    User("proxy", 13, 13, "proxy", "/bin"),
    User("www-data", 33, 33, "www-data", "/var/www"),
    User("backup", 34, 34, "backup", "/var/backups"),
    User("list", 38, 38, "Mailing List Manager", "/var/list"),
    User("irc", 39, 39, "ircd", "/run/ircd"),
    User("_apt", 42, 65534, "", "/nonexistent"),
    User("nobody", 65534, 65534, "nobody", "/nonexistent"),
    # A real shell, for `docker exec -it … bash` and for tools that need $SHELL.
    User("vllm", 1000, 1000, "vLLM server", "/home/vllm", "/bin/bash"),
)

GROUPS: Mapping[str, int] = {
    "root": 0,
    "daemon": 1,
    "bin": 2,
    "sys": 3,
    "adm": 4,
    "tty": 5,
    "disk": 6,
    "lp": 7,
    "mail": 8,
    "news": 9,
    "uucp": 10,
    "man": 12,
    "proxy": 13,
    "kmem": 15,
    "dialout": 20,
    "fax": 21,
    "voice": 22,
    "cdrom": 24,
    "floppy": 25,
    "tape": 26,
    "sudo": 27,
    "audio": 29,
    "dip": 30,
    "www-data": 33,
    "backup": 34,
    "operator": 37,
    "list": 38,
    "irc": 39,
    "src": 40,
    "shadow": 42,
    "utmp": 43,
    "video": 44,
    "sasl": 45,
    "plugdev": 46,
    "staff": 50,
    "games": 60,
    "users": 100,
    "nogroup": 65534,
    "rdma": 101,  # libibverbs1 adds it; owner of /dev/infiniband/* on hosts that set it up so
    "vllm": 1000,
}

UIDS: Mapping[str, int] = {user.name: user.uid for user in USERS}


def account_entries() -> Iterator[Entry]:
    """Iterate over passwd, group, shadow and gshadow."""
    # The date of the last password change stays empty: it would be today's, and it switches ageing off.
    files = {
        "passwd": [f"{u.name}:x:{u.uid}:{u.gid}:{u.gecos}:{u.home}:{u.shell}" for u in USERS],
        "group": [f"{name}:x:{gid}:" for name, gid in GROUPS.items()],
        "shadow": [f"{user.name}:*::0:99999:7:::" for user in USERS],
        "gshadow": [f"{name}:*::" for name in GROUPS],
    }
    for name, lines in files.items():
        secret = name.endswith("shadow")
        yield Entry(
            ImagePath(f"etc/{name}"),
            EntryKind.FILE,
            0o640 if secret else 0o644,
            Bytes("".join(f"{line}\n" for line in lines).encode()),
            gid=GROUPS["shadow"] if secret else 0,
        )
