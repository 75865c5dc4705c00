"""The command that makes the catalog as a static site."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say

if TYPE_CHECKING:
    from imagefactory.project.project import Project
    from imagefactory.site.registry_records import RegistryRecords


@command(
    help={
        "out": "the folder to write (default: build/site)",
        "registry": "read what was published from this repository (default: FACTORY_REGISTRY, or matrix.yaml's)",
        "offline": "ask no registry; pages then say that nothing is known to be published",
        "serve": "also show it on the loopback, until you press Ctrl-C",
        "port": "the port for --serve (default: a free one)",
    },
)
def site(
    project: Project,
    out: str = "",
    registry: str = "",
    offline: bool = False,
    serve: bool = False,
    port: str = "",
) -> None:
    """Make the catalog as a static site: models, images, mods, advice, status; plain files for any web server."""
    import time
    from contextlib import suppress

    from imagefactory.site.rendering import render
    from imagefactory.site.site_contents import gather
    from imagefactory.site.stock import take_stock
    from imagefactory.site.writing import refuse_foreign, site_server, write_site
    from imagefactory.store.paths import expand_home

    options.at_most_one(registry=registry, offline=offline)
    number = options.whole_number("--port", port) or 0
    folder = expand_home(out, "--out").absolute() if out else project.root / "build" / "site"
    refuse_foreign(folder)
    began = time.monotonic()
    contents = gather(take_stock(project, _records(project, registry, offline=offline)))
    for problem in contents.status["problems"]:
        say(f"- {problem}")
    files = render(contents)
    write_site(files, folder)
    pages = sum(path.endswith(".html") for path in files)
    total = sum(map(len, files.values()))
    seconds = time.monotonic() - began
    say(f"{pages} pages, {len(files)} files, {total / 1e6:.1f} MB, in {seconds:.1f} s")
    print(folder)
    if serve:
        with site_server(folder, number) as server:
            say(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):
                server.serve_forever()


def _records(project: Project, registry: str, *, offline: bool) -> RegistryRecords:
    from imagefactory.oci.registry.repository import Repository
    from imagefactory.site.registry_records import RegistryRecords, ask_registry

    if registry:
        os.environ["FACTORY_REGISTRY"] = registry  # recipes name it too
    name = project.matrix.effective_registry
    if offline or "OWNER" in name:
        if not offline:
            say(
                "no registry was asked: OWNER in matrix.yaml is a placeholder; set FACTORY_REGISTRY or --registry"
            )
        return RegistryRecords(name)
    with Repository.open(name) as repository:
        return ask_registry(repository)
