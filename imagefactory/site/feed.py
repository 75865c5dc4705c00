"""The Atom feed of new images."""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from imagefactory.site.site_contents import SiteContents
from imagefactory.site.status_page import Change

ATOM: Final = "http://www.w3.org/2005/Atom"
NEVER: Final = "1970-01-01T00:00:00Z"
MOST: Final = 50


def feed(contents: SiteContents) -> str:
    """Return the feed, newest image first; its times are those of the catalog."""
    changes = [change for night in contents.status.nights for change in night.changes][:MOST]
    root = Element("feed", xmlns=ATOM)
    _text(root, "title", f"{contents.title}: new images")
    _text(root, "id", f"{contents.source}#images")
    _text(root, "updated", changes[0].time if changes else NEVER)
    author = SubElement(root, "author")
    _text(author, "name", contents.title)
    SubElement(root, "link", rel="self", href="feed.xml")
    for change in changes:
        _entry(root, contents, change)
    indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _entry(root: Element, contents: SiteContents, change: Change) -> None:
    entry = SubElement(root, "entry")
    verb = "rolled back to" if change.kind == "rollback" else "published"
    _text(entry, "title", f"{change.target} {verb}: {', '.join(change.changed)}")
    _text(entry, "id", f"{contents.source}#{change.digest}-{change.time}")
    _text(entry, "updated", change.time)
    if change.slug:
        SubElement(entry, "link", rel="alternate", type="text/html", href=f"images/{change.slug}.html")
    text = f"{contents.stock.records.registry}@{change.digest} · {', '.join(change.tags)}"
    _text(entry, "summary", text)


def _text(parent: Element, name: str, text: str) -> None:
    # XML has no way to write control characters, not even escaped.
    SubElement(parent, name).text = "".join(max(sign, " ") for sign in text)
