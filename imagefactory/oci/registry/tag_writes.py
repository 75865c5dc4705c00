"""Replaces what a tag names so that, of two concurrent writers, one wins and the other finds out.

Registries have no "write only if unchanged". Fischer's mutual exclusion needs only time: look at the tag, write it
within a window, wait as long, look again. If the tag still names our write, we won. Two writers cannot both win: if
both saw the same content, the later write came within the window of a look that preceded the earlier write, so the
earlier writer, who waited that long after writing, saw it. Clocks need to run at the same speed, not to agree.
"""

import threading
import time
import uuid
from concurrent.futures import CancelledError

from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest

_CLAIM = "imagefactory.claim"


def claim() -> dict[str, str]:
    """Return an annotation that makes a document differ from all others.

    Without it, two writers of the same content could take each other for one.
    """
    return {_CLAIM: uuid.uuid4().hex}


def replace_tag(repository: Repository, tag: str, seen: Digest | None, body: bytes, media_type: str) -> Digest | None:
    """Point a tag at a new document if it still names what was seen; None if somebody interfered, or may have.

    The caller has to read the tag again then: its document may be there, or not.
    """
    window = repository.window
    began = time.monotonic()
    if repository.resolve(tag) != seen:
        return None
    if time.monotonic() - began > window.longest / 2:
        return None  # this process was asleep, and what it saw may be outdated
    late = threading.Event()
    timer = threading.Timer(window.longest, late.set)
    timer.start()
    try:
        digest = repository.put_manifest(body, media_type, tag, stopped=late)
    except CancelledError:  # a retry after the window could overwrite what others wrote meanwhile
        return None
    finally:
        timer.cancel()
    if time.monotonic() - began > window.longest:
        return None
    time.sleep(window.wait)
    return digest if repository.resolve(tag) == digest else None
