"""Reads where pip and uv look for packages, from their variables and configuration files."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.store.paths import expand_home


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """The indexes and folders that pip and uv search, in order; an empty URL is the public default."""

    indexes: tuple[str, ...] = ("",)
    find_links: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> IndexConfig:
        uv, pip = _uv_settings(), _pip_settings()
        indexes = dict.fromkeys([uv.main or pip.main, *uv.extra, *pip.extra])
        return cls(indexes=tuple(indexes), find_links=tuple(dict.fromkeys([*uv.links, *pip.links])))

    def with_extra(self, urls: Iterable[str]) -> IndexConfig:
        return IndexConfig(indexes=tuple(dict.fromkeys([*self.indexes, *urls])), find_links=self.find_links)

    def describe(self) -> str:
        """Return the indexes and folders as text, without passwords."""
        named = [redact(url) or "the public default index" for url in self.indexes]
        return ", ".join([*named, *map(redact, self.find_links)])


def redact(url: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return re.sub(r"//[^/\s]*@", "//", url)


@dataclass(frozen=True)
class _Settings:
    main: str
    extra: list[str]
    links: list[str]


def _pip_settings() -> _Settings:
    """Merge pip's variables and files as pip does: the machine's, the user's, the environment's, a named one."""
    named = os.environ.get("PIP_CONFIG_FILE", "")
    files = [
        Path("/etc/pip.conf"),
        Path(os.environ.get("VIRTUAL_ENV") or sys.prefix, "pip.conf"),
        Path(named),
    ]
    # As in pip, a named file that exists replaces the user's, and the null device replaces all.
    if not named or not Path(named).exists():
        files[1:1] = [_config_home() / "pip/pip.conf"]
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error, UnicodeDecodeError):
        parser.read(files if named != os.devnull else [], encoding="utf-8")
    section = dict(parser.items("global")) if parser.has_section("global") else {}
    return _Settings(
        os.environ.get("PIP_INDEX_URL") or section.get("index-url", ""),
        [*_words("PIP_EXTRA_INDEX_URL"), *section.get("extra-index-url", "").split()],
        [*_words("PIP_FIND_LINKS"), *section.get("find-links", "").split()],
    )


def _uv_settings() -> _Settings:
    named = os.environ.get("UV_CONFIG_FILE")
    data: dict[str, Any] = {}
    for file in [Path(named)] if named else [Path("/etc/uv/uv.toml"), _config_home() / "uv/uv.toml"]:
        with suppress(OSError, ValueError, RecursionError):  # missing, or not TOML
            data = tomllib.loads(file.read_text("utf-8"))
    # What uv itself would refuse is left out.
    tables = [entry for entry in _listed(data, "index", dict) if isinstance(entry.get("url"), str)]
    main = next((entry["url"] for entry in tables if entry.get("default")), data.get("index-url", ""))
    listed = [entry["url"] for entry in tables if not entry.get("default")]
    extra = [*_words("UV_INDEX", "UV_EXTRA_INDEX_URL"), *listed, *_listed(data, "extra-index-url", str)]
    return _Settings(
        os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or (main if isinstance(main, str) else ""),
        [re.sub(r"^[^/=]+=", "", url) for url in extra],  # a named index is name=url
        [*_words("UV_FIND_LINKS"), *_listed(data, "find-links", str)],
    )


def _listed(data: dict[str, Any], name: str, kind: type) -> list[Any]:
    entries = data.get(name)
    return [entry for entry in entries if isinstance(entry, kind)] if isinstance(entries, list) else []


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or expand_home("~", "HOME") / ".config")


def _words(*variables: str) -> list[str]:
    return [word for variable in variables for word in os.environ.get(variable, "").split()]


def options_for_uv() -> list[str]:
    """Return options that point uv to pip's indexes, unless uv has its own configuration."""
    uv, pip = _uv_settings(), _pip_settings()
    if uv.main or uv.extra or uv.links:
        return []
    return [
        *(["--default-index", pip.main] if pip.main else []),
        *(option for url in dict.fromkeys(pip.extra) for option in ("--index", url)),
        *(option for link in dict.fromkeys(pip.links) for option in ("--find-links", link)),
        *(["--no-index"] if os.environ.get("PIP_NO_INDEX", "0") not in {"", "0", "false"} else []),
    ]


def environment_for_uv() -> dict[str, str]:
    """Return variables that make uv trust the certificates of pip and the machine, and download no Python."""
    from_pip = {
        "SSL_CERT_FILE": os.environ.get("PIP_CERT"),
        "UV_INSECURE_HOST": os.environ.get("PIP_TRUSTED_HOST"),
    }
    defaults = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    # Variables that the user set for uv come last, and win.
    return {**defaults, **{name: value for name, value in from_pip.items() if value}, **os.environ}
