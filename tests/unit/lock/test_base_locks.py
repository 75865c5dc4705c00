"""Tests locking Debian packages from a small signed archive."""

import lzma
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pysequoia
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors import NetworkError
from imagefactory.lock.base_locks import closure, deb_locations, security_updates
from imagefactory.lock.debian_index import read_keys
from imagefactory.lock.mirrors import KEYS
from tests.fixtures.debian_archive import DebianArchive, stanza
from tests.fixtures.failures import raises


def test_dependencies_are_locked_with_the_packages_that_need_them(archive: DebianArchive) -> None:
    archive.suites["bookworm"] = [
        stanza("bash", Pre_Depends="libc6 (>= 2.36)", Depends="base-files:any"),
        stanza("libc6", "2.36-9", Depends="libgcc-s1"),
        stanza("libgcc-s1", Depends="libc6 (>= 2.36)"),
        stanza("base-files", Architecture="all"),
        stanza("not-needed"),
    ]
    lock = archive.lock("bash", "libc6")
    assert {deb.name: deb.needed_by for deb in lock.debs} == {
        "base-files": ("bash",),
        "bash": ("matrix.yaml",),
        "libc6": ("bash", "libgcc-s1", "matrix.yaml"),
        "libgcc-s1": ("libc6",),
    }
    [bash] = [deb for deb in lock.debs if deb.name == "bash"]
    assert (bash.version, bash.architecture, bash.archive) == ("1.0", "arm64", "main")
    assert (bash.unpacked, bash.size) == (7168, 100)
    assert {(suite.archive, suite.date) for suite in lock.suites} == {
        ("main", "20260711T101637Z"),
        ("security", "20260711T101637Z"),
    }


def test_highest_version_of_all_suites_wins(archive: DebianArchive) -> None:
    archive.suites["bookworm"] = [stanza("openssl", "3.0.9-1"), stanza("tzdata", "1:2.0~rc1")]
    archive.suites["bookworm-updates"] = [stanza("tzdata", "1:2.0")]
    archive.suites["bookworm-security"] = [stanza("openssl", "3.0.10-1"), stanza("tzdata", "3.0")]
    for suite in ("bookworm", "bookworm-security"):
        archive.suites[suite].append(stanza("zlib"))
    lock = archive.lock("openssl", "tzdata", "zlib")
    assert lock.debs[2].archive == "main", "main wins a tie"
    assert [(deb.version, deb.archive) for deb in lock.debs[:2]] == [
        ("3.0.10-1", "security"),
        ("1:2.0", "main"),
    ]


def selected(archive: DebianArchive, *stanzas: str) -> list[str]:
    """List what the package `app` gets from an archive."""
    archive.suites["bookworm"] = list(stanzas)
    return [deb.name for deb in archive.lock("app").debs]


def test_choice_among_alternatives(archive: DebianArchive) -> None:
    first = stanza("app", Depends="gone | b (>= 2) | c | d")
    assert selected(archive, first, *map(stanza, "bcd")) == ["app", "c"], "the first that exists"
    # `z` is found late and deep, yet before the choice is made.
    deep = stanza("app", Depends="a | z, y"), stanza("y", Depends="x"), stanza("x", Depends="z")
    assert selected(archive, *deep, *map(stanza, "az")) == ["app", "x", "y", "z"], "what is there anyway"
    gawk = stanza("gawk", Provides="awk", Priority="optional")
    mawk = stanza("mawk", Provides="awk", Priority="required")
    assert selected(archive, stanza("app", Pre_Depends="awk"), gawk, mawk) == ["app", "mawk"]
    provided = {"any": "api", "old": "api (= 1)", "right": "api (= 2.1)"}
    providers = [stanza(name, Provides=what) for name, what in provided.items()]
    assert selected(archive, stanza("app", Depends="api (>= 2)"), *providers) == ["app", "right"]


@pytest.mark.parametrize(
    ("wanted", "what", "why", "fix"),
    [
        ("libnuma", "There is no Debian package libnuma.", "No suite", "Did you mean libnuma1?"),
        ("awk", "There is no Debian package awk.", "virtual", "Name one of them: gawk, mawk"),
        ("app", "app 1.0 needs libnuma1 (>= 9), which", "There is libnuma1 1.0", "FACTORY_DEBIAN_MIRROR"),
    ],
)
def test_package_that_cannot_be_had_is_refused_with_advice(
    archive: DebianArchive, wanted: str, what: str, why: str, fix: str
) -> None:
    archive.suites["bookworm"] = [
        stanza("libnuma1"),
        stanza("mawk", Provides="awk"),
        stanza("gawk", Provides="awk"),
        stanza("app", Depends="libnuma1 (>= 9)"),
    ]
    with raises("no-debian-package") as caught:
        archive.lock(wanted)
    error = caught.value
    assert (what in error.what, why in error.why, fix in error.fix) == (True, True, True), str(error)


@pytest.mark.parametrize(
    ("flaw", "what"),
    [
        ("edited", "not signed by Debian"),
        ("signed by a stranger", "not signed by Debian"),
        ("unsigned", "not signed by Debian"),
        ("other packages", "not the one that Debian signed"),
        ("other suite", "serves the index of bullseye as bookworm"),
    ],
)
def test_index_that_debian_did_not_sign_is_refused(archive: DebianArchive, flaw: str, what: str) -> None:
    archive.publish()
    suite = archive.suite("bookworm")
    inrelease = suite / "InRelease"
    match flaw:
        case "edited":
            inrelease.write_bytes(inrelease.read_bytes().replace(b"Origin: Debian", b"Origin: Rebian"))
        case "signed by a stranger":
            stranger = pysequoia.Tsk.generate(user_id="A stranger").extract_certificate()
            (archive.folder / "keys" / "bookworm-test.asc").write_text(str(stranger))
        case "unsigned":
            inrelease.write_text("Codename: bookworm\n")
        case "other packages":
            packages = lzma.compress(stanza("evil").encode())
            (suite / "main" / "binary-arm64" / "Packages.xz").write_bytes(packages)
        case _:
            archive.publish(codename="bullseye")
    with raises("bad-archive-signature", match=what) as caught:
        archive.index()
    assert "\n" not in caught.value.why


@pytest.mark.parametrize("held_back", ["expired", "older"])
def test_index_that_holds_updates_back_is_refused_unless_that_is_wanted(
    archive: DebianArchive, held_back: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive.publish()
    known = archive.index().suites
    fresh = shutil.copytree(archive.folder, tmp_path / "fresh")
    if held_back == "expired":
        archive.expires = "Sun, 12 Jul 2026 10:16:37 UTC"
    else:
        archive.signed = "Fri, 10 Jul 2026 10:16:37 UTC"
    archive.publish()
    with raises("outdated-index", match="it expired on" if held_back == "expired" else "before that of the lock"):
        archive.index(locked=known)
    main, security = (str(fresh / name) for name in ("debian", "debian-security"))
    both = replace(archive.mirrors, main=(*archive.mirrors.main, main), security=(*archive.mirrors.security, security))
    assert archive.index(both, locked=known).suites == known, "the next mirror is asked"
    monkeypatch.setenv("FACTORY_DEBIAN_OLD", "yes")
    archive.index(locked=known)


def test_missing_mirror_is_reported_with_the_setting(archive: DebianArchive) -> None:
    archive.publish()
    nowhere = replace(archive.mirrors, main=(), security=())
    with raises("mirror-unreachable") as caught:
        archive.index(nowhere)
    assert "No mirror is known" in caught.value.why
    assert "FACTORY_DEBIAN_MIRROR" in caught.value.fix


def test_mirrors_that_fail_halfway_or_lack_the_platform_are_skipped(
    archive: DebianArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.publish("amd64")
    elsewhere = DebianArchive(archive.folder / "second", archive.key)
    elsewhere.folder.mkdir()
    elsewhere.suites["bookworm"] = [stanza("bash")]
    elsewhere.publish()

    def flaky(url: str) -> bytes:
        if url.endswith("InRelease"):
            return (elsewhere.suite(url.split("/")[-2]) / "InRelease").read_bytes()
        raise NetworkError(
            "mirror-unreachable", "A Debian mirror does not answer.", where=url, why="reset", fix="Try again."
        )

    monkeypatch.setattr("imagefactory.lock.mirrors._download", flaky)
    main = ("http://flaky.example", *archive.mirrors.main, *elsewhere.mirrors.main)
    found = archive.index(replace(archive.mirrors, main=main, security=elsewhere.mirrors.security))
    assert list(found.packages) == ["bash"]


def test_committed_keys_are_those_of_debian_and_a_release_without_keys_is_refused() -> None:
    # Debian publishes these fingerprints; a key that comes or goes here deserves a second pair of eyes.
    assert {key.fingerprint.upper() for key in read_keys(KEYS, "bookworm")} == {
        "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8",
        "05AB90340C0C5E797F44A8C8254CF3B5AEC0A8F0",
        "4D64FEC119C2029067D6E791F8D2585B8783D481",
    }
    with raises("bad-archive-signature", match="no archive keys for Debian sid"):
        read_keys(KEYS, "sid")


def test_locked_package_is_sought_on_mirrors_before_snapshots(archive: DebianArchive) -> None:
    archive.suites["bookworm-security"] = [stanza("openssl")]
    lock = archive.lock("openssl")
    mirrors = replace(archive.mirrors, snapshots="https://snapshots.example")
    file = lock.debs[0].file
    assert deb_locations(lock.debs[0], lock.suites, mirrors) == [
        str(archive.folder / "debian-security" / file),
        f"https://snapshots.example/debian-security/20260711T221637Z/{file}",
        f"https://snapshots.example/debian-security/20260712T221637Z/{file}",
    ]


@pytest.mark.parametrize(
    ("main", "security", "expected"),
    [
        ("1.0", "1.0+deb12u1", ("openssl",)),
        ("1.0+deb12u2", "1.0+deb12u1", ("openssl",)),
        ("1.0+deb12u1", "", ()),
    ],
    ids=["security", "overtaken", "only in main"],
)
def test_update_from_the_security_suite_is_recognised(
    archive: DebianArchive, main: str, security: str, expected: tuple[str, ...]
) -> None:
    archive.suites["bookworm"] = [stanza("openssl"), stanza("bash")]
    old = archive.lock("openssl", "bash")
    archive.suites["bookworm"] = [stanza("openssl", main), stanza("bash", "2.0")]
    archive.suites["bookworm-security"] = [stanza("openssl", security)] if security else []
    archive.suites["bookworm-security"].append(stanza("new"))
    new = archive.lock("openssl", "bash", "new")
    assert security_updates(old, new, archive.index()) == expected


TANGLE = [
    stanza("a", Depends="b | c, d"),
    stanza("b", Depends="v"),
    stanza("c", Provides="v"),
    stanza("d", Depends="e | b"),
    stanza("e", Provides="v", Depends="a"),
]


@given(order=st.permutations(range(len(TANGLE))), roots=st.permutations(["a", "d"]))
def test_order_of_index_and_roots_does_not_matter(
    archive: DebianArchive, order: Sequence[int], roots: Sequence[str]
) -> None:
    archive.suites["bookworm"] = [TANGLE[place] for place in order]
    archive.publish()
    index = archive.index()
    assert closure(index, roots) == {
        "a": {"matrix.yaml"},
        "b": {"a", "d"},
        "c": {"b"},
        "d": {"matrix.yaml", "a"},
    }
