"""Looks up packages on the indexes and in the folders that are configured for pip and uv."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import requests
from packaging.utils import canonicalize_name
from pypi_simple import ACCEPT_JSON_PREFERRED, PYPI_SIMPLE_ENDPOINT, ProjectPage, UnsupportedRepoVersionError

from imagefactory.errors import NetworkError
from imagefactory.store.digests import parse_json
from imagefactory.store.http import Response, Retry, ask, judge, new_session, short_reason
from imagefactory.store.index_config import IndexConfig, redact
from imagefactory.store.paths import expand_home, read_text, split_address

RETRY = Retry()


@dataclass(frozen=True, kw_only=True)
class WheelLocation:
    """A file that an index or a folder offers."""

    file: str
    url: str
    sha256: str | None
    yanked: bool = False  # withdrawn by its author; a lock that names it still gets it

    @property
    def local(self) -> Path | None:
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


class Indexes:
    """Looks up projects on every configured index and in every folder, and caches the results."""

    def __init__(self, config: IndexConfig) -> None:
        self.config = config
        self._looked_up: dict[str, list[WheelLocation]] = {}
        self._session = new_session(32)

    def files(self, project: str) -> list[WheelLocation]:
        """List every file of a project, best source first."""
        name = canonicalize_name(project)
        if name not in self._looked_up:
            files = [
                WheelLocation(file=path.name, url=path.absolute().as_uri(), sha256=None)
                for path in local_wheels(self.config)
                if canonicalize_name(path.name.split("-", 1)[0]) == name
            ]
            for index in self.config.indexes:
                files += self._index_files(index, name)
            self._looked_up[name] = files
        return self._looked_up[name]

    def _index_files(self, index: str, name: str) -> list[WheelLocation]:
        if index.startswith("file:"):
            folder = Path(url2pathname(split_address(index, "PIP_INDEX_URL or UV_INDEX_URL").path))
            page = folder / name / "index.html"
            return _parse_html(read_text(page), page.as_uri()) if page.is_file() else []
        url = f"{(index or PYPI_SIMPLE_ENDPOINT).rstrip('/')}/{name}/"
        try:
            accept = {"Accept": ACCEPT_JSON_PREFERRED}
            answer = RETRY.run(lambda: ask(self._session, "GET", url, headers=accept), later=judge)
        except requests.RequestException as error:
            raise _unreachable(index, _reason(error)) from None
        if answer.status == HTTPStatus.NOT_FOUND:
            return []
        if not answer.ok:
            raise _unreachable(index, f"It answered {answer.status_line}.")
        if "json" in answer.headers.get("Content-Type", ""):
            return _parse_json(answer, index)
        return _parse_html(answer.body.decode("utf-8", "replace"), answer.url)


def _unreachable(index: str, why: str) -> NetworkError:
    return NetworkError(
        "index-unreachable",
        "The package index does not respond.",
        where=redact(index) or "the public default index",
        why=why,
        fix="Check the network, or point PIP_INDEX_URL or UV_INDEX_URL at an index you can reach.",
    )


def _parse_json(answer: Response, index: str) -> list[WheelLocation]:
    """Parse a page of the JSON API (PEP 691)."""
    try:
        packages = ProjectPage.from_json_data(parse_json(answer.body), base_url=answer.url).packages
    except (ValueError, KeyError, TypeError, UnsupportedRepoVersionError) as error:
        raise NetworkError(
            "index-unreachable",
            "The package index sent something other than an index page.",
            where=redact(index) or "the public default index",
            why=f"Its JSON cannot be read ({type(error).__name__}).",
            fix="Point PIP_INDEX_URL or UV_INDEX_URL at the list of projects, usually …/simple.",
        ) from None
    return [
        WheelLocation(
            file=package.filename,
            url=package.url,
            sha256=package.digests.get("sha256"),
            yanked=package.is_yanked,
        )
        for package in packages
        if package.filename.endswith((".whl", ".tar.gz"))
    ]


# An index page (PEP 503) is a flat list of anchors. A real HTML parser takes half a minute of processor time for
# the 200 pages of one lock; these expressions take a second. Quoted attributes may contain a bare ">". No repetition
# gives back what it took, or goes past the next anchor, so that time grows with the page, not with its square.
_QUOTED = r"""(?:"(?:[^"<]|<(?!a\s))*+"|'(?:[^'<]|<(?!a\s))*+')"""
_ANCHOR = re.compile(rf"""<a\s((?:[^<>"']|{_QUOTED})*+)>\s*+([^<\s]++)\s*+</a>""", re.IGNORECASE)
_HREF = re.compile(r"""(?:^|\s)href\s*=\s*(?:"([^"]+)"|'([^']+)')""", re.IGNORECASE)


def _parse_html(page: str, base_url: str) -> list[WheelLocation]:
    files: list[WheelLocation] = []
    for attributes, file in _ANCHOR.findall(page):
        href = _HREF.search(attributes)
        if href is None or not file.lower().endswith((".whl", ".tar.gz")):
            continue
        url, _, fragment = urljoin(base_url, html.unescape(href[1] or href[2])).partition("#")
        kind, _, digest = fragment.partition("=")
        sha256 = digest if kind == "sha256" else None
        # The attribute counts, whatever its value (PEP 592).
        yanked = "data-yanked" in attributes.lower()
        files.append(WheelLocation(file=html.unescape(file), url=url, sha256=sha256, yanked=yanked))
    return files


def local_label(file: str) -> str:
    """Return the local version label in a wheel's file name, such as `cpu` in torch-2.13.0+cpu-…, or ""."""
    return file.split("-")[1].partition("+")[2] if file.count("-") > 1 else ""


def local_wheels(config: IndexConfig) -> Iterator[Path]:
    for folder in map(_as_folder, config.find_links):
        if folder is not None and folder.is_dir():
            yield from sorted(folder.glob("*.whl"))


def reachable(index: str) -> bool:
    try:
        new_session().get(f"{index.rstrip('/')}/", timeout=5, stream=True).close()
    except requests.RequestException:
        return False
    return True


def _reason(error: requests.RequestException) -> str:
    """Return why a request failed, without its URL, which may contain a password."""
    if isinstance(error, requests.exceptions.SSLError):
        return "Its certificate is not trusted; set SSL_CERT_FILE to a bundle that includes it."
    return f"No usable answer arrived ({short_reason(error)})."


def _as_folder(link: str) -> Path | None:
    parts = split_address(link, "PIP_FIND_LINKS or UV_FIND_LINKS")
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return expand_home(link, "PIP_FIND_LINKS or UV_FIND_LINKS") if parts.scheme == "" else None
