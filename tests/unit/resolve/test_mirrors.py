"""Where Debian packages are looked for, and how failures to get them read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from imagefactory.errors.locks import MirrorError
from imagefactory.resolve import mirrors
from imagefactory.resolve.mirrors import DebianMirrors, fetch, join
from imagefactory.store.retry import Retry

DEB822 = """\
# Debian itself
Types: deb deb-src
URIs: http://first.example/debian/
 http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/some.gpg

Types: deb
URIs: http://first.example/debian-security
# the line below must not end the stanza
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://disabled.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
deb [arch=amd64 signed-by=/x.gpg] http://third.example/debian bookworm main  # a comment
# deb http://commented.example/debian bookworm main
deb-src http://sources.example/debian bookworm main
deb http://other.example/apt cloud-sdk-bookworm main
deb http://extras.example/debian bookworm contrib
deb cdrom:[Debian]/ bookworm main
deb http://first.example/debian bookworm main
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list").write_text(ONE_LINE)
    (folder / "sources.list.d" / "debian.sources").write_text(DEB822)
    (folder / "sources.list.d" / "debian.sources.bak").write_text(DEB822.replace("first", "backup"))
    return folder


def test_the_hosts_own_apt_sources_are_the_mirrors(apt: Path) -> None:
    found = DebianMirrors.discover("bookworm", environ={}, apt=apt)
    assert found.main == (
        "http://third.example/debian",
        "http://first.example/debian",
        "http://second.example/debian",
    )
    assert found.security == ("http://first.example/debian-security",)


def test_mirrors_of_another_release_serve_as_well_but_other_archives_do_not(apt: Path) -> None:
    found = DebianMirrors.discover("trixie", environ={}, apt=apt)
    assert found == DebianMirrors.discover("bookworm", environ={}, apt=apt)
    assert "http://other.example/apt" not in found.main


def test_a_mirror_that_is_asked_for_the_release_is_preferred_to_one_of_another(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://new.example/debian trixie main\n")
    assert DebianMirrors.discover("trixie", environ={}, apt=apt).main == ("http://new.example/debian",)


def test_a_named_mirror_wins_over_the_host_and_brings_its_security_sibling(apt: Path) -> None:
    found = DebianMirrors.discover("bookworm", environ={"FACTORY_DEBIAN_MIRROR": "/srv/debian/"}, apt=apt)
    assert found.main == ("/srv/debian",)
    assert found.security == ("/srv/debian-security",)


def test_the_security_mirror_can_be_named_too(tmp_path: Path) -> None:
    environ = {"FACTORY_DEBIAN_MIRROR": "/a", "FACTORY_DEBIAN_SECURITY_MIRROR": "http://b.example/sec/"}
    assert DebianMirrors.discover("bookworm", environ=environ, apt=tmp_path).security == (
        "http://b.example/sec",
    )


def test_a_host_without_apt_has_only_the_snapshots(tmp_path: Path) -> None:
    found = DebianMirrors.discover("bookworm", environ={}, apt=tmp_path / "no-such-folder")
    (root,) = found.roots("security")
    assert root.startswith(f"{mirrors.SNAPSHOTS}/debian-security/2")


def test_snapshots_come_last_and_after_the_moment_of_signing() -> None:
    roots = DebianMirrors(main=("/mirror",)).roots("main", at=datetime(2026, 7, 11, 10, 16, 37, tzinfo=UTC))
    assert roots == [
        "/mirror",
        f"{mirrors.SNAPSHOTS}/debian/20260711T221637Z",
        f"{mirrors.SNAPSHOTS}/debian/20260712T221637Z",
    ]


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_is_a_mirror(tmp_path: Path, form: str) -> None:
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "file").write_bytes(b"content")
    root = form.format(tmp_path / "with space").replace(" ", "%20" if "file" in form else " ")
    assert fetch(root, "file") == b"content"
    assert fetch(root, "missing") is None
    assert join(root, "a/b") == str(tmp_path / "with space" / "a" / "b")


class Answers:
    """Stands in for `requests.get`: gives the prepared answers one after the other."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    def __call__(self, url: str, *, timeout: tuple[float, float]) -> requests.Response:
        assert timeout
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response = requests.Response()
        response.status_code, response.reason, response.url = answer, "Whatever", url
        response._content = b"content"
        return response


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.resolve.mirrors.RETRY", Retry(attempts=3, pause=0))


def test_a_passing_server_error_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "get", Answers(503, requests.ConnectionError("reset"), 200))
    assert fetch("http://mirror.example", "file") == b"content"


def test_a_missing_file_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "get", Answers(404))
    assert fetch("http://mirror.example", "file") is None


def test_a_mirror_that_stays_silent_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "get", Answers(*[requests.Timeout("too slow")] * 3))
    with pytest.raises(MirrorError) as caught:
        fetch("http://mirror.example", "file")
    assert caught.value.where == "http://mirror.example/file"
    assert "too slow" in caught.value.why
    assert "FACTORY_DEBIAN_MIRROR" in caught.value.fix
