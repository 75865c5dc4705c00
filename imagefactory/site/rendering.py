"""Turns the contents into the site's files: pages from templates, the documents beside them, static files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from imagefactory.check.bench.result import users_text
from imagefactory.publish.tags import short_digest
from imagefactory.site.documents import (
    as_script,
    feed,
    index_document,
    page_documents,
    search_entries,
    to_json,
)
from imagefactory.site.guides import inline
from imagefactory.site.picker import Offer, picker_data
from imagefactory.site.pictures import Bar, PictureLayer, bars, kind_class, layer_picture
from imagefactory.site.site_contents import SiteContents
from imagefactory.site.stock import Document
from imagefactory.store.progress import size

HERE: Final = Path(__file__).parent
RECIPES: Final = "recipes"
_FIGURES: Final = 24
_SHORT: Final = 32
"""Characters of a licence that is a single one, or nearly."""


def render(contents: SiteContents) -> dict[str, bytes]:
    """Return all files of the site, by their paths."""
    files = {path: text.encode() for path, text in _texts(contents)}
    files |= {f"static/{file.name}": file.read_bytes() for file in sorted((HERE / "static").iterdir())}
    if contents.recipes:
        files["sparkrun-registry.tar"] = _archive(contents.recipes)
    return dict(sorted(files.items()))


def _texts(contents: SiteContents) -> Iterator[tuple[str, str]]:
    documents, stock = page_documents(contents), contents.stock
    offers = {cell: Offer.of(image) for cell, image in zip(stock.planned, contents.images, strict=True)}
    yield from ((f"{path}.json", to_json(document)) for path, document in documents.items())
    yield "index.json", to_json(index_document(contents))
    yield "feed.xml", feed(contents)
    yield "search-data.js", as_script("searchData", search_entries(contents))
    yield from ((f"{RECIPES}/{path}", text) for path, text in contents.recipes.items())
    picker = picker_data(stock.project, offers) | {"model": contents.first["name"]}
    yield "picker-data.js", as_script("pickerData", picker)
    yield from _pages(contents, documents)


def _pages(contents: SiteContents, documents: dict[str, Document]) -> Iterator[tuple[str, str]]:
    environment = make_environment()
    yield "llms.txt", environment.get_template("llms.txt").render(site=contents)

    def page(path: str, template: str, **values: object) -> tuple[str, str]:
        text = environment.get_template(template).render(
            site=contents,
            root="../" * path.count("/"),
            document=f"{path.rpartition('/')[2]}.json" if path in documents or path == "index" else "",
            has_picker=template in {"home.html", "model.html"},
            **values,
        )
        return f"{path}.html", text

    yield page("index", "home.html", here="home")
    yield page("images", "images.html", here="images")
    for model in contents.models:
        path = f"models/{model['name']}"
        yield page(path, "model.html", here="models", model=model, figures=_figures(model))
    for image in contents.images:
        layers = [PictureLayer(one["kind"], one["name"], one["bytes"]) for one in image["layers"]]
        picture = None if image["bytes"] is None else layer_picture(layers)
        yield page(f"images/{image['slug']}", "image.html", here="images", image=image, picture=picture)
    for packages in contents.packages:
        yield page(f"packages/{packages['slug']}", "packages.html", here="images", packages=packages)
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
        "layer_class": kind_class,
        "tokens": _tokens,
        "outcome": outcome_class,
    }
    return environment


def outcome_class(word: str) -> str:
    """Return the class of a word that says how something is: good, bad, care or quiet."""
    return {
        **dict.fromkeys(("passed", "current", "native", "applies", "promote"), "good"),
        **dict.fromkeys(("failed", "fails", "conflict", "not covered", "rollback", "critical", "high"), "bad"),
        **dict.fromkeys(("not-run", "jit", "update waiting", "no record", "not-audited", "medium"), "care"),
    }.get(word, "quiet")


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


def about(count: int) -> str:
    """Return a size without figures that nobody knows: 33 GB, 0.9 GB."""
    return f"{count / 1e9:.3g} GB" if count >= 5e7 else size(count)  # noqa: PLR2004 - 50 MB


def _tokens(count: int) -> str:
    for unit, tokens in (("M", 1024**2), ("K", 1024)):
        if count >= tokens and count % tokens == 0:
            return f"{count // tokens}{unit}"
    return f"{count:,}"


def _figures(model: Document) -> Markup | None:
    own = [
        Bar(f"{one['target']}, {one['profile']}, {one['machine']}", one["tokens_per_second"], own=True)
        for one in model["measured"]
        if one["tokens_per_second"]
    ]
    others = [
        Bar(f"{one.gpu}, {one.drafter}, {one.kind}, {users_text(one.users)}", one.tokens_per_second, own=False)
        for one in model["reported"]
    ]
    chosen = (own + others)[:_FIGURES]
    return bars(chosen, "tokens per second") if chosen else None


def _archive(files: dict[str, str]) -> bytes:
    """Return files as a tar file, the same for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
