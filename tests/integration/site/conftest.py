"""A real browser, and tabs that notice what a page asks for and complains about."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from imagefactory.site.rendering import site_server, write_site
from tests.fixtures.engines import need
from tests.fixtures.small_site import small_site


@dataclass
class Tabs:
    """Opens pages, each in a context of its own; the test fails if one asks another host or logs an error."""

    browser: Browser
    asked: list[str] = field(default_factory=list)
    """The address of every request."""
    complaints: list[str] = field(default_factory=list)
    """Errors in consoles: exceptions, missing files, violations of the Content-Security-Policy."""
    _contexts: list[BrowserContext] = field(default_factory=list)

    def __call__(self, address: str, **options: Any) -> Page:
        """Open an address; options are those of Playwright's contexts, such as `color_scheme` or `viewport`."""
        context = self.browser.new_context(**options)
        self._contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(address)
        return page

    @property
    def astray(self) -> list[str]:
        """The requests that left this machine."""
        here = ("file:", "http://127.0.0.1:", "data:", "blob:")
        return [url for url in self.asked if not url.startswith(here)]

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium once for all tests."""
    need("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield started
        started.close()


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small site once, with hostile text and gaps, below a folder of its own."""
    root = tmp_path_factory.mktemp("site")
    folder = root / "www" / "some" / "prefix"
    write_site(small_site(root / "checkout"), folder)
    return folder


@pytest.fixture(scope="session")
def site(site_folder: Path) -> Iterator[str]:
    """Serve the site on the loopback, under a prefix; return its address."""
    with site_server(site_folder.parent.parent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/prefix"
        server.shutdown()


@pytest.fixture
def spoiled_tabs(browser: Browser) -> Iterator[Tabs]:
    """Open pages that may ask and complain."""
    tabs = Tabs(browser)
    yield tabs
    tabs.close()


@pytest.fixture
def tabs(spoiled_tabs: Tabs) -> Iterator[Tabs]:
    """Open pages; fail the test if one of them asks another host for anything or logs an error."""
    yield spoiled_tabs
    assert not spoiled_tabs.astray
    assert not spoiled_tabs.complaints


def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with a page: the rule, and the first element that breaks it."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found]
