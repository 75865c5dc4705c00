"""The fixtures of all tests, which tests can run here, and the clean environment of unit tests."""

import gc
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck

# A module follows those that it imports: pytest rewrites assertions only if it imports the module first.
pytest_plugins = (
    "pytester",
    "tests.skips",
    "tests.slow",
    "tests.fixtures.checkouts",
    "tests.fixtures.locked_checkout",
    "tests.fixtures.inv",
    "tests.fixtures.engines",
    "tests.fixtures.wheels",
    "tests.fixtures.servers",
    "tests.fixtures.releases",
    "tests.fixtures.fault_proxy",
    "tests.fixtures.registries",
    "tests.fixtures.small_images",
    "tests.fixtures.serving",
    "tests.fixtures.serve_process",
    "tests.fixtures.model_hub",
    "tests.fixtures.debs",
    "tests.fixtures.debian_archive",
    "tests.fixtures.small_factory",
    "tests.fixtures.publishing",
    "tests.fixtures.rehearsal",
    "tests.fixtures.night_factory",
    "tests.fixtures.fake_github",
    "tests.fixtures.locked_wheels",
    "tests.fixtures.local_sigstore",
    "tests.fixtures.signed_image",
    "tests.fixtures.tiny_image",
    "tests.fixtures.trained",
)

UNIT = Path(__file__).parent / "unit"
SURPRISES = re.compile(r"(PIP|UV|HF|FACTORY|XDG|DOCKER|GITHUB|REGISTRY)_.*|VIRTUAL_ENV|COLUMNS|.*_proxy", re.IGNORECASE)

EXAMPLES = {"quick": 20, "slow": 300}
"""How many examples of a property each profile of Hypothesis tries; a run without slow tests is quick."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores both in what it starts in the background, and the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Examples may share our fixtures, take their time, and often be no valid input.
    unfit = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    for name, number in EXAMPLES.items():
        hypothesis.settings.register_profile(name, max_examples=number, deadline=None, suppress_health_check=unfit)
    chosen = config.getoption("--hypothesis-profile", None)
    hypothesis.settings.load_profile(chosen or ("quick" if config.option.markexpr == "not slow" else "slow"))


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--require-engine") and (missing := _engine_missing()):
        raise pytest.UsageError(f"--require-engine: {missing}. (.ci/run starts what is needed.)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _sort(items)
    if config.getoption("--require-engine"):
        return
    for marker, missing in (("engine", _engine_missing), ("network", _network_missing)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=str(reason)))


def _sort(items: list[pytest.Item]) -> None:
    """Begin with unit tests, then those that share the tiny image; with slow tests, begin with the longest files."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    if slow:
        sizes = Counter(item.path for item in items)
        # Files with nothing but slow tests, the nights' single test first; then by slow tests, then by tests.
        order = {path: (0, size, 0) if slow[path] == size else (1, -slow[path], -size) for path, size in sizes.items()}
        items.sort(key=lambda item: (*order[item.path], item.path))
        return
    heavy = {item.path for item in items if "tiny_checkout" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: 0 if UNIT in item.path.parents else 1 if item.path in heavy else 2)


@cache
def _engine_missing() -> str | None:
    from tests.fixtures.engines import engine_missing  # noqa: PLC0415 - see pytest_plugins

    return engine_missing()


@cache
def _network_missing() -> str | None:
    """Return why tests with the real package index cannot run."""
    from imagefactory.errors import FactoryError  # noqa: PLC0415
    from imagefactory.store.index_config import IndexConfig  # noqa: PLC0415
    from imagefactory.store.indexes import Indexes  # noqa: PLC0415

    try:
        files = Indexes(IndexConfig.from_environment()).files("packaging")
    except FactoryError as error:
        return f"the package index does not answer: {error.why}"
    return None if files else "the package index has no files"


@pytest.fixture(scope="module", autouse=True)
def _leaks_are_found_where_they_are_made(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect garbage after a file of integration tests: a socket left open fails here, not in what runs later."""
    yield
    if UNIT not in request.path.parents:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Name what is still mounted in the tests' folder: pytest cannot remove it, and then ends with a traceback."""
    yield
    folder = f"{tmp_path_factory.getbasetemp()}/"
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert not [place for place in places if place.startswith(folder)]


@pytest.fixture(autouse=True)
def _no_surprises(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give unit tests an empty home, no configured indexes, no daemon, and no way to reach other machines."""
    if UNIT not in request.path.parents:
        return
    for name in filter(SURPRISES.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FACTORY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-daemon")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: tuple[str, int] | str) -> None:
        if self.family != socket.AF_UNIX and address[0] not in {"127.0.0.1", "::1"}:
            raise AssertionError(f"a unit test tried to reach {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)
