"""Servers that send slowly, endlessly or nonsense: whoever asks them ends soon, and with a named error."""

import json
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests

from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.errors import FactoryError
from imagefactory.lock import mirrors
from imagefactory.lock.lookups import lock_revision
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest import bundles
from imagefactory.publish.attest.attachments import attached_bundles
from imagefactory.publish.attest.bundles import Bundle, Statement
from imagefactory.publish.github import GitHub
from imagefactory.store import downloads, http, indexes
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, digest_of, sha256_of
from imagefactory.store.downloads import Wanted, fetch
from imagefactory.store.http import BadPaceError, Retry, TooLargeError, causes, judge, new_session
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, Asked, endless, scripted

HASTY = Retry(attempts=2, pause=0.001, longest=0.002, patience=0.01)
CASES = 1000
LONGEST = 10.0
"""Seconds for one case."""
OK = b"HTTP/1.1 200 OK\r\n"
HALF = OK + b"Content-Length: 500000\r\n\r\n"
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
    "hub": (lambda _url, _: lock_revision("owner/name"), "hub-unreachable"),
    "GitHub": (lambda url, _: GitHub("repos/o/n", "t", url, HASTY).get("x"), "github-failed"),
    "bench": (lambda url, _: Endpoint(url).models(), "bench-incomplete"),
}


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (downloads, indexes, mirrors):
        monkeypatch.setattr(module, "RETRY", HASTY)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a second read for a minute of waiting."""
    monkeypatch.setattr(http.PACE, "window", 0.0)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.usefixtures("impatient")
def test_who_sends_a_byte_at_a_time_is_given_up(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use, name = CLIENTS[client]
    with endless(HALF, b"x", pause=0.01) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with raises(name, match="it sent only"):
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
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", BadPaceError),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 4096, requests.RequestException),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n", BadPaceError),
        (OK + b"\r\n", b"x" * 4096, TooLargeError),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b"x" * 4096, TooLargeError),
        (OK + b"A: ", b"x" * 4096, requests.RequestException),
    ],
    ids=["continue", "chunk", "trailers", "body", "redirect", "header"],
)
def test_nothing_that_http_allows_is_endless(
    head: bytes, piece: bytes, reason: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http.PACE, "overhead", 65536)  # the default takes half a minute, line by line
    with endless(head, piece) as server, pytest.raises(requests.RequestException) as caught:
        http.get_bounded(new_session().get, server.url, timeout=(5, 5), limit=1_000_000)
    assert any(isinstance(cause, reason) for cause in causes(caught.value))
    if reason is not requests.RequestException:
        assert judge(caught.value) is None, "it is not asked again"


def test_an_answer_in_memory_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST", 0.05)
    with (
        endless(OK + b"\r\n", b"x" * 4096, pause=0.01) as server,
        raises("registry-unreachable", match="longer than"),
    ):
        opened(server.url).manifest("x")


@pytest.mark.usefixtures("impatient")
def test_pieces_that_are_large_enough_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.PACE, "least", 1)
    with scripted(lambda _: Answer(b"x" * 3_000_000)) as server:
        assert len(http.get_bounded(new_session().get, server.url, timeout=(5, 5)).content) == 3_000_000


def test_every_request_goes_through_the_one_place_that_bounds_it() -> None:
    """Those to containers that a command started itself need not."""
    own = {"store/http.py", "check/smoke/containers.py"}
    for path in (REPOSITORY / "imagefactory").rglob("*.py"):
        if path.relative_to(REPOSITORY / "imagefactory").as_posix() not in own:
            assert not re.search(r"\brequests\.(Session|get|post|request)\(", path.read_text("utf-8")), path


@pytest.mark.parametrize("length", ["12x", "-1", "9" * 30, "", "٣"])
def test_nonsense_as_a_length_is_no_length(length: str) -> None:
    assert http.content_length({"Content-Length": length}) is None


def test_a_download_with_nonsense_as_its_length_arrives(tmp_path: Path) -> None:
    body = b"a wheel"
    with scripted(lambda _: Answer(body, headers={"Content-Length": "12x"})) as server:
        wanted = Wanted("a.whl", sha256_of(body), len(body), lambda: [server.url])
        assert fetch(wanted, Store(tmp_path), new_session(), lambda _: None).read_bytes() == body


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"id": "m", "max_model_len": float("inf")}]},
        {"data": [{"id": "m", "max_model_len": -1}]},
        {"data": [{"id": "m", "max_model_len": "many"}]},
        {"data": [{"id": "m\x1b[31m"}]},
        {"data": [{"id": "\ud800"}]},
        {"data": [{"id": "m" * 100_000}]},
        {"data": {"0": 1}},
        {"data": ["m"]},
        b"[" * 100_000,
        b"1" * 10_000,
    ],
)
def test_nonsense_of_a_measured_server_is_refused(body: object) -> None:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    with scripted(lambda _: Answer(sent)) as server, raises("bench-incomplete", match="nonsense") as caught:
        Endpoint(server.url).models()
    assert caught.value.why.isprintable()


# --- fuzzing ---------------------------------------------------------------------------------------------------------

MANIFEST = {
    "schemaVersion": 2,
    "mediaType": MANIFEST_TYPE,
    "artifactType": bundles.MEDIA_TYPE,
    "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": DIGEST, "size": 2},
    "layers": [{"mediaType": bundles.MEDIA_TYPE, "digest": DIGEST, "size": 1000, "annotations": {"a": "b"}}],
}
LISTED = Descriptor(MANIFEST_TYPE, DIGEST, 100, bundles.MEDIA_TYPE, {"a": "b"}, {"os": "linux"}).document()
STATEMENT = Statement("https://example.org/type", {"a": [1]}, DIGEST, "name").payload()
DOCUMENTS = [
    json.dumps(document).encode()
    for document in (
        MANIFEST,
        {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [LISTED, LISTED]},
        {"name": "o/n", "tags": ["latest", "0.1"]},
        {"errors": [{"code": "DENIED", "message": "no", "detail": {}}]},
        {"token": "abc", "expires_in": 300},
    )
] + [bundles.write_bundle(STATEMENT, b"signature", "hint")]
PAGE = {
    "meta": {"api-version": "1.1"},
    "name": "vllm",
    "files": [{"filename": "vllm-1.0-py3-none-any.whl", "url": "../x.whl", "hashes": {"sha256": "0" * 64}}],
}
PAGES = [
    json.dumps(PAGE).encode(),
    b'<!DOCTYPE html><a href="../v.whl#sha256=00" data-x="1">vllm-1.0-py3-none-any.whl</a>',
]
ANSWERS = [
    json.dumps(document).encode()
    for document in (
        {"data": [{"id": "tiny", "root": "/models/tiny", "max_model_len": 4096}]},
        {"version": "0.32.0"},
        {"count": 12},
        {"choices": [{"message": {"content": "a", "reasoning": None}}]},
    )
]
HEADERS = (
    *("Content-Type", "Docker-Content-Digest", "Link", "Location", "WWW-Authenticate", "Retry-After"),
    *("Content-Length", "Content-Range"),
)
TYPES = (MANIFEST_TYPE, INDEX_TYPE, "application/json", "text/html", "application/vnd.pypi.simple.v1+json")


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1.5, float("inf"), float("nan"), "", "x" * 10_000, [], {}, [None], {"a": 1},
    "\x1b[31mred\x1b[0m", "line\nbreak", "\ud800", "\ufffe", "\u2028", "../../x", "sha256:" + "0" * 64, "é",
)  # fmt: skip
"""Values that programs stumble over."""
ODD_HEADERS = (
    "", "12x", "-1", "9" * 30, "é", "\x1b[31m", "http://[", "//", "x" * 5_000, "a\tb", "Bearer realm=", ";;,=",
    'Bearer realm="http://[",service="x"', '<http://[>; rel="next"', "bytes 9-1/x", "Basic realm=x",
)  # fmt: skip
DEEP = 100_000


def mutated(random: Random, document: bytes) -> bytes:  # noqa: PLR0911 - one for each kind
    """Return a document with some damage: in its bytes, or, if it is JSON, in its values."""
    if random.random() < 0.7:
        try:
            parsed = json.loads(document)
        except ValueError:
            pass
        else:
            for _ in range(random.randint(1, 3)):
                parsed = _changed(random, parsed)
            return json.dumps(parsed).encode()
    at, end = sorted(random.randint(0, len(document)) for _ in range(2))
    match random.randrange(6):
        case 0:
            return document[:at]
        case 1:
            return document[:at] + random.randbytes(random.randint(1, 20)) + document[end:]
        case 2:
            return document[:at] + document[at:end] * random.randint(2, 50) + document[end:]
        case 3:
            return document[:at] + random.choice((b"[", b'{"a":')) * DEEP + document[at:]
        case 4:
            return document.replace(b"1", b"1e999")
        case _:
            return document[:at] + random.choice((b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800")) + document[at:]


def _changed(random: Random, value: Any) -> Any:
    """Replace, remove or add something at a random place of a document."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(ODD)
    copy: Any = value.copy()
    key = random.choice([*copy]) if isinstance(copy, dict) else random.randrange(len(copy))
    match random.randrange(6):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[random.choice(["mediaType", "x", "\x1b"])] = random.choice(ODD)
        case 1:
            copy += random.choices(ODD, k=random.randint(1, 5))
        case _:
            copy[key] = _changed(random, copy[key])
    return copy


def ask_registry(url: str, random: Random) -> None:
    with opened(url) as repository:
        uses: list[Callable[[], object]] = [
            lambda: repository.manifest(random.choice(["x", DIGEST])),
            lambda: repository.resolve("x"),
            repository.tags,
            lambda: referrers.find(repository, DIGEST),
            lambda: list(attached_bundles(repository, DIGEST)),
            lambda: repository.blob(DIGEST),
            lambda: repository.put_manifest(b"{}", MANIFEST_TYPE, "x"),
            lambda: repository.delete(DIGEST),
            lambda: repository.upload(DIGEST, 0, lambda: open("/dev/null", "rb")),  # noqa: PTH123, SIM115
        ]
        random.choice(uses)()


def ask_index(url: str, _random: Random) -> None:
    Indexes(IndexConfig(indexes=(url,))).files("vllm")


def ask_server(url: str, random: Random) -> None:
    endpoint = Endpoint(url)
    uses: list[Callable[[], object]] = [
        endpoint.models,
        endpoint.version,
        lambda: endpoint.count_tokens("tiny", "x"),
        lambda: endpoint.answer("tiny", "x", 3).encode(),
    ]
    random.choice(uses)()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "documents"),
    [(ask_registry, DOCUMENTS), (ask_index, PAGES), (ask_server, ANSWERS)],
    ids=["registry", "index", "bench"],
)
def test_damaged_answers_end_soon_and_in_named_errors(
    ask: Callable[[str, Random], None], documents: list[bytes]
) -> None:
    random = Random()

    def answer(asked: Asked) -> Answer:
        headers = {"Content-Type": random.choice(TYPES)}
        status = random.choice([200, 200, 200, 200, 201, 202, 206, 302, 401, 401, 403, 404, 416, 429, 500])
        named = {302: "Location", 401: "WWW-Authenticate", 206: "Content-Range"}.get(status)
        if random.random() < 0.3 or named:
            headers[named or random.choice(HEADERS)] = random.choice(ODD_HEADERS)
        if status == HTTPStatus.UNAUTHORIZED and random.random() < 0.7:
            headers["WWW-Authenticate"] = f'Bearer realm="http://{asked.headers["host"]}/token"'
        return Answer(mutated(random, random.choice(documents)), status, headers)

    with scripted(answer) as server:
        for case in range(CASES):
            random.seed(case)
            began = time.monotonic()
            try:
                ask(server.url, random)
            except FactoryError:
                pass
            except Exception as error:
                raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
            assert time.monotonic() - began < LONGEST, f"case {case}"


@pytest.mark.slow
def test_damaged_statements_are_refused() -> None:
    for case in range(CASES):
        random = Random(case)
        try:
            read = Bundle.read(mutated(random, DOCUMENTS[-1]))
            Statement.read(mutated(random, STATEMENT))
            assert isinstance(read.claim, str)
        except bundles.BadBundleError:
            continue
