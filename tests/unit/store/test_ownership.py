"""A cache that others can write to is refused, unless it is shared on purpose."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagefactory.errors.commands import OptionError
from imagefactory.errors.store import SharedCacheError
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256

KEY = Sha256("ab" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache that others may enter, with a folder at every depth."""
    for name in ("downloads/ab", "facts/kind/ab", "blobs/sha256"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    for folder in (tmp_path / "cache", *(tmp_path / "cache").glob("**/")):
        folder.chmod(0o755)
    return tmp_path / "cache"


def groups(monkeypatch: pytest.MonkeyPatch, name: str, *members: str) -> None:
    """Give every group this name and these members, and the user the name `me`."""
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=list(members)))


def refused(root: Path) -> SharedCacheError:
    with pytest.raises(SharedCacheError, match="Others can write") as caught:
        Store(root).download(KEY)
    for use in (Store(root).blob, Store(root).layer, lambda key: Store(root).facts("x", key)):
        with pytest.raises(SharedCacheError):
            use(KEY)  # type: ignore[arg-type]
    with pytest.raises(SharedCacheError), Store(root).in_use():
        pass
    return caught.value


def test_cache_of_the_user_is_used(root: Path, tmp_path: Path) -> None:
    assert Store(root).download(KEY).is_relative_to(root)
    assert Store(tmp_path / "new").download(KEY).is_relative_to(tmp_path / "new")


@pytest.mark.parametrize("folder", ["", "downloads", "downloads/ab", "facts/kind/ab", "blobs/sha256"])
@pytest.mark.parametrize(
    ("mode", "who"), [(0o777, "Every user"), (0o1777, "Every user"), (0o775, "The group all")]
)
def test_folder_that_others_can_write_to_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, mode: int, who: str
) -> None:
    groups(monkeypatch, "all", "me", "somebody")
    (root / folder).chmod(mode)
    error = refused(root)
    assert error.where == str(root / folder)
    assert error.why.startswith(who)
    assert f"chmod 700 {root}" in error.fix
    root.chmod(0o700)
    assert Store(root).download(KEY), "what nobody can reach is safe"


@pytest.mark.parametrize(("members", "safe"), [((), True), (("me",), True), (("me", "somebody"), False)])
def test_group_of_the_user_alone_is_no_other(
    root: Path, monkeypatch: pytest.MonkeyPatch, members: tuple[str, ...], *, safe: bool
) -> None:
    groups(monkeypatch, "me", *members)
    root.chmod(0o775)
    if safe:
        assert Store(root).download(KEY)
    else:
        refused(root)


def test_cache_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(root, os.geteuid() or 4321, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert refused(root).why.startswith("It belongs to ")


def test_new_cache_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with Store(tmp_path / "new").in_use():
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_shared_cache_has_only_what_its_name_can_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.chmod(0o777)
    monkeypatch.setenv("FACTORY_CACHE", str(root))
    monkeypatch.setenv("FACTORY_SHARED_CACHE", "checked")
    store = Store()
    assert store.is_shared
    assert store.download(KEY).is_relative_to(root)
    own = Path.home() / ".cache" / "imagefactory"
    with store.in_use(), store.scratch() as scratch:
        for path in (store.layer(KEY), store.facts("x", KEY), store.own, scratch):
            assert path.is_relative_to(own)


def test_folder_of_the_user_beside_a_shared_cache_must_be_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path.home() / ".cache" / "imagefactory"
    own.mkdir(parents=True)
    own.chmod(0o777)
    monkeypatch.setenv("FACTORY_SHARED_CACHE", "checked")
    for cache in (root, own):
        monkeypatch.setenv("FACTORY_CACHE", str(cache))
        with pytest.raises(SharedCacheError):
            Store().layer(KEY)


def test_other_ways_to_share_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORY_SHARED_CACHE", "yes")
    with pytest.raises(OptionError, match="'yes'"):
        Store()
