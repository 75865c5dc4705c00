"""Turns the contents into the site's files, writes them to a folder, whole or not at all, and shows them."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from imagefactory.errors import UsageError
from imagefactory.oci.layout import writing_output
from imagefactory.publish.tags import short_digest
from imagefactory.site.documents import (
    as_script,
    feed,
    index_document,
    page_documents,
    search_entries,
    starts_document,
    to_json,
)
from imagefactory.site.guides import inline, plain
from imagefactory.site.lookups import packages_lookup, upgrades_lookup
from imagefactory.site.model_page import CONTEXTS, ModelPage
from imagefactory.site.pictures import kind_class, layer_picture, outcome_class
from imagefactory.site.site_contents import SiteContents
from imagefactory.site.starts import build_it
from imagefactory.store.atomic import WRITING
from imagefactory.store.progress import count, size

HERE: Final = Path(__file__).parent
RECIPES: Final = "recipes"
ABOUT: Final = "vLLM and SGLang images for DGX Spark and other GPUs"
SCRIPTS: Final = {
    **{
        f"{page}.html": ("starts-data", "static/memory", "static/drawing", f"static/{script}")
        for page, script in (("home", "choose"), ("model", "picker"), ("compare", "compare"))
    },
    **dict.fromkeys(("upgrade.html", "vulnerabilities.html"), ("static/drawing", "static/lookup")),
}
"""The scripts of pages that compute or look something up, in the order in which they run."""
_FIGURES: Final = 24  # bars of a model's chart
_SHORT: Final = 32
"""Characters of a licence that is a single one, or nearly."""


def render(contents: SiteContents) -> dict[str, bytes]:
    """Return all files of the site, by their paths."""
    files = {path: text.encode() for path, text in _texts(contents)}
    files |= {f"static/{file.name}": file.read_bytes() for file in sorted((HERE / "static").iterdir())}
    if contents.recipes:
        files["sparkrun-registry.tar"] = _archive(contents.recipes)
    return dict(sorted(files.items()))


def _summary(model: ModelPage) -> str:
    """Describe a model in a few words for those who see a link to it."""
    rate = f"{model.speed.slowest:.0f} tokens/s" if model.speed else "speed not measured"
    needs = f"{about(model.resident)} of 128 GB" if model.memory else "no GPU"
    each = " on each of two Sparks" if model.sparks > 1 else ""
    return "; ".join([", ".join(model.badges), f"{model.weights}, {needs}{each}", rate])


def _texts(contents: SiteContents) -> Iterator[tuple[str, str]]:
    documents = page_documents(contents)
    yield from ((f"{path}.json", to_json(document)) for path, document in documents.items())
    yield "index.json", to_json(index_document(contents))
    yield "feed.xml", feed(contents)
    yield "search-data.js", as_script("searchData", search_entries(contents))
    yield from ((f"{RECIPES}/{path}", text) for path, text in contents.recipes.items())
    yield "starts-data.js", as_script("startsData", starts_document(contents))
    found = packages_lookup(contents.packages, contents.vulnerabilities, contents.images)
    yield "vulnerabilities-data.js", as_script("lookupData", found)
    yield "upgrade-data.js", as_script("lookupData", upgrades_lookup(contents.upgrades))
    yield from _pages(contents, documents)


def _pages(contents: SiteContents, documents: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    environment = make_environment()
    yield "llms.txt", environment.get_template("llms.txt").render(site=contents)

    def page(path: str, template: str, *, about: str = ABOUT, **values: object) -> tuple[str, str]:
        text = environment.get_template(template).render(
            site=contents,
            path=path,
            about=about,
            root="../" * path.count("/"),
            document=f"{path.rpartition('/')[2]}.json" if path in documents or path == "index" else "",
            scripts=SCRIPTS.get(template, ()),
            **values,
        )
        return f"{path}.html", text

    yield page("index", "home.html", here="models", contexts=CONTEXTS)
    yield page("compare", "compare.html", here="compare")
    yield page("images", "images.html", here="images")
    for model in contents.models:
        path, text = f"models/{model.name}", _summary(model)
        yield page(path, "model.html", about=text, here="models", model=model, figures=_figures(model))
    for image in contents.images:
        picture = None if image.bytes is None else layer_picture(image.layers)
        path, text = f"images/{image.slug}", f"{image.runs} for {image.gpu}, {image.state}"
        yield page(path, "image.html", about=text, here="images", image=image, picture=picture)
    for packages in contents.packages:
        yield page(f"packages/{packages.slug}", "packages.html", here="images", packages=packages)
    for name in ("mods", "configurations", "troubles", "status", "upgrade", "vulnerabilities"):
        yield page(name, f"{name}.html", here=name)


def make_environment() -> Environment:
    """Return the templates; text is escaped, and a value that is not there is an error."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "about": about,
        "folded": folded,
        "simple": simple,
        "size": lambda count: size(count) if count is not None else "unknown",
        "short": short_digest,
        "inline": inline,
        "plain": plain,
        "layer_class": kind_class,
        "tokens": _tokens,
        "outcome": outcome_class,
        "build_it": lambda target, source: build_it(source, target),
    }
    return environment


def folded(command: str, width: int = 84) -> str:
    """Return a command that has one option per line on fewer lines."""
    first, *options = command.split(" \\\n  ")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) < width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"  {option}")
    return " \\\n".join(lines)


def simple(licences: Mapping[str, int], most: int = 10) -> dict[str, int]:
    """Return the licences that fit on a line; packages of Debian have many at once."""
    short = {name: count for name, count in licences.items() if len(name) <= _SHORT}
    return dict(list(short.items())[:most])


def about(count: float) -> str:
    """Return a size without figures that nobody knows: 33 GB, 0.9 GB."""
    return f"{count / 1e9:.3g} GB" if count >= 5e7 else size(int(count))  # noqa: PLR2004 - 50 MB


def _tokens(count: int) -> str:
    for unit, tokens in (("M", 1024**2), ("K", 1024)):
        if count >= tokens and count % tokens == 0:
            return f"{count // tokens}{unit}"
    return f"{count:,}"


def _figures(model: ModelPage) -> list[tuple[str, float, bool]]:
    """Return the figures to draw, of a Spark if any are: what it is of, tokens per second, whether it is our own."""
    measured = [
        (f"{result.target}, {result.profile}, {result.machine}", result.tokens_per_second, True)
        for result in model.measured
        if result.tokens_per_second
    ]
    reported = [
        (
            f"{row.gpu}, {row.drafted_by if row.drafted else 'no drafter'}, {row.about}, {count(row.users, 'user')}",
            row.tokens_per_second,
            False,
        )
        for row in (reported.figure for reported in model.reported)
        if row.tokens_per_second and not row.cold and (not model.best or row.gpu == model.best.figure.gpu)
    ]
    return (measured + reported)[:_FIGURES]


def _archive(files: Mapping[str, str]) -> bytes:
    """Return files as a tar file, the same for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in sorted(files.items()):
            # Its defaults are fixed: time 0, owner 0, mode 644.
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


MARK: Final = "index.json"
"""A folder with this file and a feed is a site, and may be replaced."""


def write_site(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files beside a folder, and put them in its place; it has to be new, empty or an earlier site."""
    refuse_foreign(folder)
    with writing_output(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the folder, so on its file system: a rename suffices.
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=WRITING))
        try:
            for path, data in files.items():
                target = fresh / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            fresh.chmod(0o755)  # mkdtemp lets only its owner read
            _replace(folder, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _replace(folder: Path, fresh: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=WRITING) as aside:
        # No rename replaces a folder with files in it; between the two there is none for a moment.
        folder.rename(Path(aside, "old"))
        fresh.rename(folder)


def refuse_foreign(folder: Path) -> None:
    """Raise UsageError if a folder holds anything but an earlier site."""
    with writing_output(folder):
        present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not {MARK, "feed.xml", "index.html"} <= present:
        raise UsageError(
            "output-unusable",
            "The folder is not a site of the factory.",
            where=folder,
            why=f"It holds {min(present)}, which a new site would replace.",
            fix="Name a new or empty folder, or one that `./inv site` wrote.",
        )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Log nothing."""


@contextmanager
def site_server(folder: Path, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """Listen on the loopback, on a free port if none is given; the block runs the server."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=folder))
    except (OSError, OverflowError) as error:
        raise UsageError(
            "bad-option",
            f"The port {port} cannot be used.",
            where="the --port option",
            why=f"{error}.",
            fix="Name another port, or none for a free one.",
        ) from None
    with server:
        yield server
