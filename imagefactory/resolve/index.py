"""Where wheels are: the indexes and folders that pip and uv are configured with, never ones of our own."""

from __future__ import annotations

import configparser
import html
import os
import re
import threading
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

import requests
from packaging.utils import canonicalize_name
from pypi_simple import ACCEPT_JSON_PREFERRED, PYPI_SIMPLE_ENDPOINT, ProjectPage

from imagefactory.errors import IndexUnreachableError

TIMEOUT = (10, 60)


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """What pip and uv would search, in order. An empty index URL stands for the library's public default."""

    indexes: tuple[str, ...] = ("",)
    find_links: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> IndexConfig:
        """Read the variables and configuration files of pip and uv."""
        env = os.environ.get
        pip, uv = _pip_settings(), _uv_settings()
        main = (
            env("UV_DEFAULT_INDEX") or env("UV_INDEX_URL") or env("PIP_INDEX_URL") or uv.main or pip.main or ""
        )
        extra = [*_words("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"), *uv.extra, *pip.extra]
        # uv writes a named index as name=url.
        extra = [url.split("=", 1)[1] if "=" in url.split("/", 1)[0] else url for url in extra]
        links = [*_words("UV_FIND_LINKS", "PIP_FIND_LINKS"), *uv.links, *pip.links]
        return cls(indexes=_unique([main, *extra]), find_links=_unique(links))

    def with_extra(self, urls: Iterable[str]) -> IndexConfig:
        """Add the indexes that an arch names in matrix.yaml."""
        return IndexConfig(indexes=_unique([*self.indexes, *urls]), find_links=self.find_links)

    def describe(self) -> str:
        """Say where wheels are looked for, without passwords."""
        named = [redact(url) or "the public default index" for url in self.indexes]
        return ", ".join([*named, *self.find_links])


@dataclass(frozen=True, kw_only=True)
class WheelLocation:
    """A file that an index or a folder offers."""

    file: str
    url: str
    sha256: str | None

    @property
    def local(self) -> Path | None:
        """The path of a file that is on this machine."""
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


class Indexes:
    """Looks projects up on every configured index and folder; remembers the answers."""

    def __init__(self, config: IndexConfig) -> None:
        self.config = config
        self._known: dict[str, list[WheelLocation]] = {}
        self._lock = threading.Lock()
        self._session = requests.Session()
        self._session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=32, max_retries=3))

    def files(self, project: str) -> list[WheelLocation]:
        """List every file that is offered for a project, best source first."""
        name = canonicalize_name(project)
        with self._lock:
            if name in self._known:
                return self._known[name]
        found = list(self._local_files(name))
        for index in self.config.indexes:
            found.extend(self._index_files(index, name))
        with self._lock:
            self._known[name] = found
        return found

    def _local_files(self, name: str) -> Iterator[WheelLocation]:
        for path in local_wheels(self.config):
            if canonicalize_name(path.name.split("-", 1)[0]) == name:
                yield WheelLocation(file=path.name, url=path.absolute().as_uri(), sha256=None)

    def _index_files(self, index: str, name: str) -> list[WheelLocation]:
        if index.startswith("file:"):
            page = Path(url2pathname(urlsplit(index).path)) / name / "index.html"
            return _parse_html(page.read_text("utf-8"), page.as_uri()) if page.is_file() else []
        url = f"{(index or PYPI_SIMPLE_ENDPOINT).rstrip('/')}/{name}/"
        try:
            answer = self._session.get(url, headers={"Accept": ACCEPT_JSON_PREFERRED}, timeout=TIMEOUT)
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return []
            answer.raise_for_status()
        except requests.RequestException as error:
            raise IndexUnreachableError(
                "The package index does not answer.",
                where=redact(index) or "the public default index",
                why=_reason(error),
                fix="Check the network, or point PIP_INDEX_URL or UV_INDEX_URL at an index you can reach.",
            ) from None
        if "json" in answer.headers.get("Content-Type", ""):
            packages = ProjectPage.from_json_data(answer.json(), base_url=answer.url).packages
            return [
                WheelLocation(file=package.filename, url=package.url, sha256=package.digests.get("sha256"))
                for package in packages
                if package.filename.endswith(".whl")
            ]
        return _parse_html(answer.text, answer.url)


# An index page (PEP 503) is a flat list of anchors. A real HTML parser spends half a minute of processor time on
# the 200 pages of one lock; this expression takes less than one second.
_ANCHOR = re.compile(r"""<a\s[^>]*?href=["']([^"']+)["'][^>]*>\s*([^<\s]+\.whl)\s*</a>""", re.IGNORECASE)


def _parse_html(page: str, base_url: str) -> list[WheelLocation]:
    found: list[WheelLocation] = []
    for href, file in _ANCHOR.findall(page):
        url, _, fragment = urljoin(base_url, html.unescape(href)).partition("#")
        kind, _, digest = fragment.partition("=")
        found.append(
            WheelLocation(file=html.unescape(file), url=url, sha256=digest if kind == "sha256" else None)
        )
    return found


def local_label(file: str) -> str:
    """Give the local version label of a wheel's file name: `cpu` for torch-2.13.0+cpu-…, mostly nothing."""
    return file.split("-")[1].partition("+")[2] if file.count("-") > 1 else ""


def local_wheels(config: IndexConfig) -> Iterator[Path]:
    """List the wheels in the configured folders."""
    for folder in map(_as_folder, config.find_links):
        if folder is not None and folder.is_dir():
            yield from sorted(folder.glob("*.whl"))


def reachable(index: str) -> bool:
    """Ask an index for its front page, briefly."""
    try:
        requests.get(f"{index.rstrip('/')}/", timeout=5, stream=True).close()
    except requests.RequestException:
        return False
    return True


def redact(url: str) -> str:
    """Take user name and password out of a URL before anybody sees it."""
    parts = urlsplit(url)
    if not parts.username and not parts.password:
        return url
    host = parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host))


def _reason(error: requests.RequestException) -> str:
    """Say in a few words why a request failed, without the URL (it may hold a password)."""
    match error:
        case requests.Timeout():
            return "It did not answer in time."
        case requests.HTTPError() if error.response is not None:
            return f"It answered {error.response.status_code} {error.response.reason}."
        case requests.ConnectionError():
            return "No connection could be made."
        case _:
            return f"The request failed ({type(error).__name__})."


@dataclass(frozen=True)
class _Settings:
    main: str | None
    extra: list[str]
    links: list[str]


def _pip_settings() -> _Settings:
    """Merge pip's configuration files the way pip does: site, then user, then the virtual environment."""
    home = Path.home()
    files = [
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        *([Path(os.environ["VIRTUAL_ENV"]) / "pip.conf"] if os.environ.get("VIRTUAL_ENV") else []),
        *([Path(os.environ["PIP_CONFIG_FILE"])] if os.environ.get("PIP_CONFIG_FILE") else []),
    ]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files, encoding="utf-8")
    except configparser.Error:
        return _Settings(None, [], [])
    section = dict(parser.items("global")) if parser.has_section("global") else {}
    return _Settings(
        section.get("index-url"),
        section.get("extra-index-url", "").split(),
        section.get("find-links", "").split(),
    )


def _uv_settings() -> _Settings:
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for file in (config_home / "uv/uv.toml", Path("/etc/uv/uv.toml")):
        try:
            data = tomllib.loads(file.read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            continue
        named = data.get("index", [])
        main = next((entry["url"] for entry in named if entry.get("default")), data.get("index-url"))
        extra = [entry["url"] for entry in named if not entry.get("default")]
        return _Settings(main, [*extra, *data.get("extra-index-url", [])], data.get("find-links", []))
    return _Settings(None, [], [])


def _words(*variables: str) -> list[str]:
    return [word for variable in variables for word in os.environ.get(variable, "").split()]


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _as_folder(link: str) -> Path | None:
    parts = urlsplit(link)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return Path(link).expanduser() if parts.scheme == "" else None
