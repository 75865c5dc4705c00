"""Looking up wheels as pip and uv are configured, in HTML or JSON, without showing passwords."""

import os
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from imagefactory.store.http import Retry, ask
from imagefactory.store.index_config import IndexConfig, redact
from imagefactory.store.indexes import Indexes, local_label, local_wheels, reachable
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, SimpleIndex, scripted
from tests.fixtures.wheels import WheelFactory, sha256_of_file

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.store.indexes.RETRY", Retry(pause=0))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder whose pip and uv configuration is used, in addition to the machine's."""
    monkeypatch.delenv("PIP_CONFIG_FILE")
    monkeypatch.delenv("UV_CONFIG_FILE")
    folder = tmp_path / "home"
    for name in ("pip", "uv"):
        (folder / ".config" / name).mkdir(parents=True)
    return folder


def test_default_is_the_public_index() -> None:
    config = IndexConfig.from_environment()
    assert config.indexes == ("",)
    assert config.describe() == "the public default index"


def test_configuration_of_pip_is_read(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://one.example/simple\n"
        "extra-index-url =\n    https://two.example/simple\n    https://three.example/simple\n"
        "find-links = /srv/wheels\n"
    )
    config = IndexConfig.from_environment()
    assert config.indexes[0] == "https://one.example/simple"
    assert {"https://two.example/simple", "https://three.example/simple"} <= set(config.indexes)
    assert "/srv/wheels" in config.find_links


def test_pip_config_file_replaces_that_of_the_user(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nextra-index-url = https://user.example/simple\n")
    named = tmp_path / "named.conf"
    named.write_text("[global]\nindex-url = https://named.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(named))
    config = IndexConfig.from_environment()
    assert config.indexes[0] == "https://named.example/simple"
    assert "https://user.example/simple" not in config.indexes


def test_configuration_of_uv_comes_before_that_of_pip(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://pip.example/simple\n")
    (home / ".config/uv/uv.toml").write_text(
        'find-links = ["/srv/uv"]\n'
        '[[index]]\nname = "mine"\nurl = "https://extra.example/simple"\n'
        '[[index]]\nurl = "https://default.example/simple"\ndefault = true\n'
    )
    config = IndexConfig.from_environment()
    assert config.indexes[:2] == ("https://default.example/simple", "https://extra.example/simple")
    assert config.find_links[0] == "/srv/uv"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"index-url without a section"])
def test_unreadable_configuration_is_ignored(home: Path, content: bytes) -> None:
    (home / ".config/pip/pip.conf").write_bytes(content)
    (home / ".config/uv/uv.toml").write_bytes(content)
    assert IndexConfig.from_environment().indexes  # those of the machine, or the default


def test_variables_come_first_and_names_of_indexes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    monkeypatch.setenv("UV_INDEX", "cpu=https://cpu.example/whl https://plain.example/simple?a=b")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://plain.example/simple?a=b")
    monkeypatch.setenv("PIP_FIND_LINKS", "/srv/a /srv/b")
    config = IndexConfig.from_environment()
    given = ("https://uv.example/simple", "https://cpu.example/whl", "https://plain.example/simple?a=b")
    assert config.indexes == given
    assert config.find_links == ("/srv/a", "/srv/b")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@index.example:8443/simple", "https://index.example:8443/simple"),
        ("http://u:p@ss@host/simple", "http://host/simple"),
        ("failed for (https://u:secret@a.example/x) twice", "failed for (https://a.example/x) twice"),
        ("/srv/wheels", "/srv/wheels"),
        ("http://[broken", "http://[broken"),
    ],
)
def test_passwords_are_redacted(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert "secret" not in IndexConfig(indexes=(url,), find_links=(url,)).describe()


@pytest.mark.parametrize("style", ["html", "json"])
def test_index_page_is_read(
    simple_index: SimpleIndex, wheel_factory: WheelFactory, style: Literal["html", "json"]
) -> None:
    wheel = wheel_factory("some-package", "1.0+local")
    simple_index.add(wheel)
    simple_index.style = style
    (found,) = Indexes(IndexConfig(indexes=(simple_index.url,))).files("Some_Package")
    assert found.file == wheel.name
    assert found.sha256 == sha256_of_file(wheel)
    assert found.url == f"{simple_index.server.url}/files/{wheel.name}"
    assert found.local is None


@pytest.mark.parametrize("attributes", ['data-requires-python=">=3.8,<4" rel="internal"', "data-yanked='a > b'"])
def test_attributes_of_anchors_are_ignored(
    simple_index: SimpleIndex, wheel_factory: WheelFactory, attributes: str
) -> None:
    simple_index.add(wheel_factory("one"), wheel_factory("one", "2.0"))
    simple_index.attributes = attributes
    found = Indexes(IndexConfig(indexes=(simple_index.url,))).files("one")
    assert [location.file for location in found] == ["one-1.0-py3-none-any.whl", "one-2.0-py3-none-any.whl"]
    assert all(location.sha256 for location in found)


def test_folders_come_before_indexes_and_an_index_is_asked_once(
    simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    wheel = wheel_factory("one")
    simple_index.add(wheel)
    config = IndexConfig(indexes=(simple_index.url,), find_links=(str(wheel.parent), wheel.parent.as_uri()))
    indexes = Indexes(config)
    assert [location.local for location in indexes.files("one")] == [wheel, wheel, None]
    assert indexes.files("one") == indexes.files("ONE")
    assert len(simple_index.log) == 1
    assert indexes.files("two") == []


def test_index_in_a_folder_is_read(tmp_path: Path, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("one")
    page = tmp_path / "simple" / "one" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{wheel.as_uri()}#sha256={"ab" * 32}">{wheel.name}</a>')
    indexes = Indexes(IndexConfig(indexes=((tmp_path / "simple").as_uri(),)))
    (found,) = indexes.files("one")
    assert found.local == wheel
    assert indexes.files("two") == []


@pytest.mark.parametrize("url", ["not a url", "http://user:secret@127.0.0.1:9/"])
def test_unreachable_index_is_named_without_its_password(url: str) -> None:
    with raises("index-unreachable") as failure:
        Indexes(IndexConfig(indexes=(url,))).files("one")
    assert failure.value.where == redact(url)
    assert "secret" not in str(failure.value)
    assert not reachable(url)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(status=503), "503"),
        (Answer(b"[1]", headers=JSON), "JSON"),
        (Answer(b'{"meta": {"api-version": "9.0"}}', headers=JSON), "JSON"),
        (Answer(b'{"files": 3}', headers=JSON), "JSON"),
        (Answer(b"[" * 100_000, headers=JSON), "Its JSON cannot be read"),
        (Answer(b"x" * 300_000), "more than"),
    ],
)
def test_index_with_a_bad_or_absurd_answer_is_named(answer: Answer, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.store.indexes.ask", partial(ask, limit=200_000))
    with scripted(lambda _: answer) as server:
        assert reachable(server.url)
        with raises("index-unreachable", match=why):
            Indexes(IndexConfig(indexes=(server.url,))).files("one")


def test_local_label_is_read_from_a_file_name() -> None:
    names = ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "torch-2.13.0-cp311-cp311-any.whl", "nonsense")
    assert [local_label(name) for name in names] == ["cpu", "", ""]


def test_missing_and_remote_folders_are_ignored(tmp_path: Path) -> None:
    links = (str(tmp_path / "none"), "https://links.example/", os.fspath(tmp_path))
    assert list(local_wheels(IndexConfig(find_links=links))) == []
