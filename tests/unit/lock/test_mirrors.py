"""Tests finding Debian mirrors, and fetching files from them."""

from pathlib import Path

import pytest

from imagefactory.lock import mirrors
from imagefactory.lock.mirrors import DebianMirrors, fetch, join
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, scripted

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


def test_mirrors_of_apt_serve_every_debian_release_that_has_none_of_its_own(apt: Path) -> None:
    for debian in ("bookworm", "trixie"):
        found = DebianMirrors.discover(debian, apt)
        assert found.main == tuple(f"http://{name}.example/debian" for name in ("third", "first", "second"))
        assert found.security == ("http://first.example/debian-security",)
    (apt / "sources.list").write_text("deb http://new.example/debian trixie main\n")
    assert DebianMirrors.discover("trixie", apt).main == ("http://new.example/debian",)


def test_configured_mirrors_replace_those_of_apt(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORY_DEBIAN_MIRROR", "/srv/debian/")
    found = DebianMirrors.discover("bookworm", apt)
    assert (found.main, found.security) == (("/srv/debian",), ("/srv/debian-security",))
    monkeypatch.setenv("FACTORY_DEBIAN_SECURITY_MIRROR", "http://b.example/sec/")
    assert DebianMirrors.discover("bookworm", apt).security == ("http://b.example/sec",)


def test_host_without_apt_uses_the_snapshots(tmp_path: Path) -> None:
    [root] = DebianMirrors.discover("bookworm", tmp_path / "no-such-folder").roots("security")
    assert root.startswith(f"{mirrors.SNAPSHOTS}/debian-security/2")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_folder_can_be_a_mirror(tmp_path: Path, form: str) -> None:
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "file").write_bytes(b"content")
    root = form.format(tmp_path / "with space").replace(" ", "%20" if "file" in form else " ")
    assert fetch(root, "file") == b"content"
    assert fetch(root, "missing") is None
    assert join(root, "a/b") == str(tmp_path / "with space" / "a" / "b")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "RETRY", Retry(attempts=3, pause=0))


def test_temporary_server_error_is_retried_but_not_a_missing_file() -> None:
    answers = [Answer(status=503), Answer(b"content"), Answer(status=404)]
    with scripted(lambda _: answers.pop(0)) as server:
        assert fetch(server.url, "file") == b"content"
        assert fetch(server.url, "file") is None
    assert len(server.log) == 3


def test_unresponsive_mirror_is_reported_with_a_remedy() -> None:
    with raises("mirror-unreachable") as caught:
        fetch("http://127.0.0.1:9", "file")
    assert caught.value.where == "http://127.0.0.1:9/file"
    assert caught.value.why.endswith("Connection refused (3 attempts)")
    assert "FACTORY_DEBIAN_MIRROR" in caught.value.fix
