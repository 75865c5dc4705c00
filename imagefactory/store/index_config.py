"""Reads where pip and uv look for packages, from their variables and configuration files."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.store.paths import expand_home


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """The indexes and folders that pip and uv search, in order; an empty URL is the public default."""

    indexes: tuple[str, ...] = ("",)
    find_links: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> IndexConfig:
        """Read the variables and configuration files of pip and uv."""
        pip, uv = _pip_settings(), _uv_settings()
        named = map(os.environ.get, ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"))
        main = next(filter(None, (*named, uv.main, pip.main)), "")
        extra = [*_words("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"), *uv.extra, *pip.extra]
        # uv writes a named index as name=url.
        extra = [url.split("=", 1)[1] if "=" in url.split("/", 1)[0] else url for url in extra]
        links = [*_words("UV_FIND_LINKS", "PIP_FIND_LINKS"), *uv.links, *pip.links]
        return cls(indexes=_unique([main, *extra]), find_links=_unique(links))

    def with_extra(self, urls: Iterable[str]) -> IndexConfig:
        """Return a configuration with additional indexes, such as an arch's in matrix.yaml."""
        return IndexConfig(indexes=_unique([*self.indexes, *urls]), find_links=self.find_links)

    def describe(self) -> str:
        """Return the indexes and folders as text, without passwords."""
        named = [redact(url) or "the public default index" for url in self.indexes]
        return ", ".join([*named, *map(redact, self.find_links)])


_CREDENTIALS = re.compile(r"//[^/\s]*@")


def redact(url: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return _CREDENTIALS.sub("//", url)


@dataclass(frozen=True)
class _Settings:
    main: str | None = None
    extra: Sequence[str] = ()
    links: Sequence[str] = ()


def _pip_settings() -> _Settings:
    """Merge pip's configuration files as pip does: global, user, environment, then PIP_CONFIG_FILE."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return _Settings()  # this tells pip to use no configuration
    user = [expand_home("~", "HOME") / ".pip/pip.conf", _config_home() / "pip/pip.conf"]
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        *([] if named and Path(named).exists() else user),
        Path(os.environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf",
        *([Path(named)] if named else []),
    ]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return _Settings()
    section = dict(parser.items("global")) if parser.has_section("global") else {}
    return _Settings(
        section.get("index-url"),
        section.get("extra-index-url", "").split(),
        section.get("find-links", "").split(),
    )


def _uv_settings() -> _Settings:
    named = os.environ.get("UV_CONFIG_FILE")
    files = [Path(named)] if named else [_config_home() / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    for file in files:
        try:
            data = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError):  # missing, or not TOML
            continue
        tables = [entry for entry in data.get("index", []) if "url" in entry]
        main = next((entry["url"] for entry in tables if entry.get("default")), data.get("index-url"))
        extra = [entry["url"] for entry in tables if not entry.get("default")]
        return _Settings(main, [*extra, *data.get("extra-index-url", [])], data.get("find-links", []))
    return _Settings()


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or expand_home("~", "HOME") / ".config")


def _words(*variables: str) -> list[str]:
    return [word for variable in variables for word in os.environ.get(variable, "").split()]


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def options_for_uv() -> list[str]:
    """Return options that point uv to pip's indexes, unless uv has its own configuration."""
    uv, pip = _uv_settings(), _pip_settings()
    own = _words("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    if own or uv.main or uv.extra or uv.links:
        return []
    main = os.environ.get("PIP_INDEX_URL") or pip.main
    extra = _unique([*_words("PIP_EXTRA_INDEX_URL"), *pip.extra])
    links = _unique([*_words("PIP_FIND_LINKS"), *pip.links])
    return [
        *(["--default-index", main] if main else []),
        *(option for url in extra for option in ("--index", url)),
        *(option for link in links for option in ("--find-links", link)),
        *(["--no-index"] if os.environ.get("PIP_NO_INDEX", "0") not in {"", "0", "false"} else []),
    ]


def environment_for_uv() -> dict[str, str]:
    """Return variables that make uv trust the certificates of pip and the machine, and download no Python."""
    given = {
        "SSL_CERT_FILE": os.environ.get("PIP_CERT"),
        "UV_INSECURE_HOST": os.environ.get("PIP_TRUSTED_HOST"),
    }
    defaults = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return {**defaults, **{name: value for name, value in given.items() if value}, **os.environ}
