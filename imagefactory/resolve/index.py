"""Where wheels are: the indexes and folders that pip and uv are configured with, never ones of our own."""

from __future__ import annotations

import configparser
import html
import os
import re
import sys
import threading
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import requests
from packaging.utils import canonicalize_name
from pypi_simple import (
    ACCEPT_JSON_PREFERRED,
    PYPI_SIMPLE_ENDPOINT,
    ProjectPage,
    UnsupportedRepoVersionError,
)

from imagefactory.errors.locks import IndexUnreachableError
from imagefactory.paths import expand_home, split_address

TIMEOUT = (10, 60)


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """What pip and uv would search, in order. An empty index URL stands for the library's public default."""

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
        """Add the indexes that an arch names in matrix.yaml."""
        return IndexConfig(indexes=_unique([*self.indexes, *urls]), find_links=self.find_links)

    def describe(self) -> str:
        """Say where wheels are looked for, without passwords."""
        named = [redact(url) or "the public default index" for url in self.indexes]
        return ", ".join([*named, *map(redact, self.find_links)])


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
            page = (
                Path(url2pathname(split_address(index, "PIP_INDEX_URL or UV_INDEX_URL").path))
                / name
                / "index.html"
            )
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
            return _parse_json(answer, index)
        return _parse_html(answer.text, answer.url)


def _parse_json(answer: requests.Response, index: str) -> list[WheelLocation]:
    """Read a page of the JSON API (PEP 691)."""
    try:
        packages = ProjectPage.from_json_data(answer.json(), base_url=answer.url).packages
    except (ValueError, KeyError, TypeError, UnsupportedRepoVersionError) as error:
        raise IndexUnreachableError(
            "The package index answers with something that is not an index page.",
            where=redact(index) or "the public default index",
            why=f"Its JSON cannot be read ({type(error).__name__}).",
            fix="Point PIP_INDEX_URL or UV_INDEX_URL at the folder that holds the projects, mostly …/simple.",
        ) from None
    return [
        WheelLocation(file=package.filename, url=package.url, sha256=package.digests.get("sha256"))
        for package in packages
        if package.filename.endswith((".whl", ".tar.gz"))
    ]


# An index page (PEP 503) is a flat list of anchors. A real HTML parser spends half a minute of processor time
# on the 200 pages of one lock; these expressions take a second. Quoted attributes may hold a bare ">".
_ANCHOR = re.compile(
    r"""<a\s((?:[^>"']|"[^"]*"|'[^']*')*)>\s*([^<\s]+\.(?:whl|tar\.gz))\s*</a>""", re.IGNORECASE
)
_HREF = re.compile(r"""(?:^|\s)href\s*=\s*(?:"([^"]+)"|'([^']+)')""", re.IGNORECASE)


def _parse_html(page: str, base_url: str) -> list[WheelLocation]:
    found: list[WheelLocation] = []
    for attributes, file in _ANCHOR.findall(page):
        href = _HREF.search(attributes)
        if href is None:
            continue
        url, _, fragment = urljoin(base_url, html.unescape(href[1] or href[2])).partition("#")
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


_CREDENTIALS = re.compile(r"//[^/\s]*@")


def redact(url: str) -> str:
    """Take user name and password out of a URL, or of a text with URLs in it, before anybody sees it."""
    return _CREDENTIALS.sub("//", url)


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
    """Merge pip's configuration files the way pip does: global, user, environment, then the named one."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return _Settings(None, [], [])  # pip's way to say: no configuration at all
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
        return _Settings(None, [], [])
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
        except (OSError, ValueError):  # not there, or not TOML
            continue
        tables = [entry for entry in data.get("index", []) if "url" in entry]
        main = next((entry["url"] for entry in tables if entry.get("default")), data.get("index-url"))
        extra = [entry["url"] for entry in tables if not entry.get("default")]
        return _Settings(main, [*extra, *data.get("extra-index-url", [])], data.get("find-links", []))
    return _Settings(None, [], [])


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or expand_home("~", "HOME") / ".config")


def _words(*variables: str) -> list[str]:
    return [word for variable in variables for word in os.environ.get(variable, "").split()]


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _as_folder(link: str) -> Path | None:
    parts = split_address(link, "PIP_FIND_LINKS or UV_FIND_LINKS")
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return expand_home(link, "PIP_FIND_LINKS or UV_FIND_LINKS") if parts.scheme == "" else None
