"""Servers that send slowly, endlessly or nonsense: whoever asks them ends soon, and with a named error."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.errors import FactoryError
from imagefactory.lock import hub, mirrors
from imagefactory.lock.hub import ask_hub
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest import bundles
from imagefactory.publish.attest.bundles import Bundle, Statement
from imagefactory.publish.attest.sbom import first_difference
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.github import GitHub
from imagefactory.store import downloads, http, indexes
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, digest_of, parse_json, sha256_of
from imagefactory.store.downloads import Wanted, fetch
from imagefactory.store.http import GivenUpError, Retry, TooLargeError, TooSlowError, ask, judge, new_session
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, Asked, endless, scripted

HASTY = Retry(attempts=2, pause=0.001, longest=0.002, patience=0.01)
OK = b"HTTP/1.1 200 OK\r\n"
DIGEST = digest_of(b"an image")

Use = Callable[[str, Path], object]


def download(url: str, folder: Path) -> Path:
    wanted = Wanted("a.whl", Sha256("0" * 64), 500_000, lambda: [f"{url}/a.whl"])
    return fetch(wanted, Store(folder), new_session(), lambda _: None)


def opened(url: str) -> Repository:
    return Repository.open(f"{url.removeprefix('http://')}/o/n", retry=HASTY)


CLIENTS: dict[str, tuple[Use, str]] = {
    "manifest": (lambda url, _: opened(url).manifest("x"), "registry-unreachable"),
    "blob": (lambda url, _: opened(url).blob(DIGEST), "registry-unreachable"),
    "layer": (lambda url, to: opened(url).download(DIGEST, 500_000, to / "x"), "registry-unreachable"),
    "download": (download, "download-failed"),
    "index": (lambda url, _: Indexes(IndexConfig(indexes=(url,))).files("vllm"), "index-unreachable"),
    "mirror": (lambda url, _: mirrors.fetch(url, "dists/x/InRelease"), "mirror-unreachable"),
    "hub": (lambda _url, _: ask_hub("owner/name"), "hub-unreachable"),
    "GitHub": (lambda url, _: GitHub("repos/o/n", "t", url, HASTY).get("x"), "github-failed"),
    "bench": (lambda url, _: Endpoint(url).models(), "bench-incomplete"),
}


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (downloads, hub, indexes, mirrors):
        monkeypatch.setattr(module, "RETRY", HASTY)


@pytest.mark.parametrize("client", CLIENTS)
def test_who_sends_a_byte_at_a_time_is_given_up(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST", 0.1)
    monkeypatch.setattr(http, "SLOWEST", 1e9)
    use, name = CLIENTS[client]
    with endless(OK + b"Content-Length: 500000\r\n\r\n", b"x", pause=0.01) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with raises(name, match="takes longer than"):
            use(server.url, tmp_path)


@pytest.mark.parametrize("client", ["manifest", "index", "mirror", "hub", "GitHub", "bench"])
def test_endless_answer_is_cut_off(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use, _ = CLIENTS[client]
    for module in ("check.bench.endpoint", "publish.github"):
        monkeypatch.setattr(f"imagefactory.{module}._LARGEST", 1_000_000)
    with endless(OK + b"\r\n", b"x" * 65536) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(FactoryError):
            use(server.url, tmp_path)


@pytest.mark.parametrize(
    ("head", "piece", "reason"),
    [
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 4096, requests.ConnectionError),
        (OK + b"\r\n", b"x" * 4096, TooLargeError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", TooSlowError),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b"x" * 4096, TooLargeError),
        (OK + b"A: ", b"x" * 4096, requests.RequestException),
        (OK, b"A: b\r\n", requests.ConnectionError),
    ],
    ids=["chunk-size", "body", "chunks", "redirect", "header", "headers"],
)
def test_no_part_of_an_answer_is_endless(
    head: bytes, piece: bytes, reason: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LONGEST", 0.5)
    with endless(head, piece) as server, pytest.raises(reason) as caught:
        ask(new_session(), "GET", server.url, timeout=(5, 5), limit=1_000_000)
    assert not isinstance(caught.value, GivenUpError) or judge(caught.value) is None, "it is not asked again"


def test_silence_ends() -> None:
    with endless(OK + b"Content-Length: 9\r\n\r\n", b"x", pause=5) as server, pytest.raises(requests.ConnectionError):
        ask(new_session(), "GET", server.url, timeout=(5, 0.1))


def test_redirects_end() -> None:
    with (
        scripted(lambda _: Answer(status=302, headers={"Location": "/"})) as server,
        pytest.raises(requests.TooManyRedirects),
    ):
        ask(new_session(), "GET", server.url)


def test_every_request_goes_through_the_one_place_that_bounds_it() -> None:
    """Those to containers that a command started itself need not."""
    exempt = {"store/http.py", "check/smoke/containers.py"}
    for path in (REPOSITORY / "imagefactory").rglob("*.py"):
        name, text = path.relative_to(REPOSITORY / "imagefactory").as_posix(), path.read_text("utf-8")
        if name not in exempt:
            assert not re.search(r"\brequests\.(Session|get|post|request)\(|iter_content", text), path
        if name.startswith(("oci/registry/", "publish/", "check/bench/", "check/answers/")):
            assert "json.loads(" not in text, f"{path} parses what others wrote without parse_json, which bounds it"


@pytest.mark.parametrize("depth", [500, 100_000])
def test_json_that_is_nested_too_deeply_is_no_json(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(ValueError, match="recursion limit"):
        parse_json(nested)
    assert first_difference(nested, b"{}") == "it cannot be read (ValueError)"


@pytest.mark.parametrize("length", ["12x", "-1", "9" * 30, "", "٣"])
def test_nonsense_as_a_length_is_no_length(length: str, tmp_path: Path) -> None:
    assert http.content_length({"Content-Length": length}) is None
    body = b"a wheel"
    with scripted(lambda _: Answer(body, headers={"Content-Length": "12x"})) as server:
        wanted = Wanted("a.whl", sha256_of(body), len(body), lambda: [server.url])
        assert fetch(wanted, Store(tmp_path), new_session(), lambda _: None).read_bytes() == body


STATEMENT = Statement("https://example.org/type", {"a": [1]}, DIGEST, "name").payload()
BUNDLE = bundles.write_bundle(STATEMENT, b"signature", "hint")
NAMES = ("mediaType", "manifests", "layers", "digest", "size", "tags", "data", "id", "files", "token", "choices")
NESTED = b"[" * 100_000
ODD = st.one_of(
    st.sampled_from([NESTED, b"1" * 10_000, b"", b"\xff\xfe", b'{"data": [{"id": "m\\u001b[31m"}]}']),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(DIGEST),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
        max_leaves=12,
    ).map(lambda document: json.dumps(document).encode()),
)
"""Answers in JSON that have the right names and the wrong values, and some that are no JSON."""
HEADERS = st.sampled_from(
    [{}, {"Link": '<http://[>; rel="next"'}, {"Content-Type": MANIFEST_TYPE}, {"Retry-After": "é"}]
)
ODD_ASKERS: tuple[Callable[[str], Any], ...] = (
    lambda url: opened(url).manifest("x"),
    lambda url: opened(url).tags(),
    lambda url: opened(url).resolve("x"),
    lambda url: opened(url).put_manifest(b"{}", MANIFEST_TYPE, "x"),
    lambda url: opened(url).delete(DIGEST),
    lambda url: opened(url).upload(DIGEST, 0, io.BytesIO),
    lambda url: referrers.find(opened(url), DIGEST),
    lambda url: Dossier.read(opened(url), DIGEST).bundles,
    lambda url: Indexes(IndexConfig(indexes=(url,))).files("vllm"),
    lambda url: GitHub("repos/o/n", "t", url, HASTY).post("x", {}),
    lambda url: Endpoint(url).models(),
    lambda url: Endpoint(url).answer("tiny", "x", 3).encode(),
)


@given(ODD, HEADERS, st.sampled_from([200, 201, 206, 302, 401, 403, 404, 416, 429, 500]), st.sampled_from(ODD_ASKERS))
def test_nonsense_ends_in_named_errors(
    body: bytes, headers: dict[str, str], status: int, use: Callable[[str], Any]
) -> None:
    """A server that answers 401 is asked for a token, and answers that with the same nonsense."""

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/token"):
            return Answer(body)
        realm = f'Bearer realm="http://{asked.headers["host"]}/token"'
        location = {201: {"Location": "http://["}, 302: {"Location": "http://["}, 401: {"WWW-Authenticate": realm}}
        return Answer(body, status, headers | location.get(status, {}))

    with scripted(answer) as server:
        try:
            use(server.url)
        except FactoryError as error:
            assert error.why.isprintable()  # noqa: PT017 - or it answers


@given(st.integers(0, len(BUNDLE)), st.integers(0, len(BUNDLE)), st.binary(max_size=20) | st.just(NESTED))
def test_damaged_statements_are_refused(start: int, end: int, damage: bytes) -> None:
    try:
        assert isinstance(Bundle.read(BUNDLE[:start] + damage + BUNDLE[end:]).claim, str)
        Statement.read(STATEMENT[:start] + damage + STATEMENT[end:])
    except bundles.BadBundleError:
        pass
