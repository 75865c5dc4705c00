"""Licences: what packages declare as SPDX, the record of it, and the summary of an image."""

import io
import json
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock
from zipfile import ZipFile

import license_expression
import pytest

from imagefactory.plan.make import make_plan
from imagefactory.project.locks.files import LicenceLock
from imagefactory.project.project import Project
from imagefactory.publish.attest import spdx
from imagefactory.publish.attest.components import components_of, summarise_parts
from imagefactory.publish.attest.licence_record import check_licences, update_licences
from imagefactory.publish.attest.spdx import (
    DeclaredLicence,
    copyright_licence,
    deb_licence,
    gnu_licences,
    wheel_licence,
)
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises, refused
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory, make_deb


def wheel(metadata: str, *, of: str = "a", **texts: str) -> ZipFile:
    data = io.BytesIO()
    with ZipFile(data, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {of}\nVersion: 1\n{metadata}")
        for name, text in texts.items():
            archive.writestr(f"a-1.dist-info/licenses/{name}", text)
    return ZipFile(data)


def edit_record(factory: SmallFactory, start: str, **changes: object) -> Path:
    """Change what is on record about the files whose names begin so."""
    path = LicenceLock.path(factory.root / "locks")
    lock = LicenceLock.read(path)
    files = [one.model_copy(update=changes) if one.file.startswith(start) else one for one in lock.files]
    lock.model_copy(update={"files": tuple(files)}).write(path)
    return path


def test_many_threads_may_read_the_first_licences_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheels of a lock are read in parallel, and license_expression hands out an automaton that is half built."""
    threads, interval = 16, sys.getswitchinterval()
    together, load = Barrier(threads), Mock(wraps=license_expression.get_spdx_licensing)
    monkeypatch.setattr(license_expression, "get_spdx_licensing", load)
    spdx._loaded.cache_clear()

    def read(_: int) -> str | None:
        together.wait()
        return spdx.from_text("MIT OR Apache-2.0")

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(threads) as pool:
            assert [*pool.map(read, range(threads))] == ["MIT OR Apache-2.0"] * threads
    finally:
        sys.setswitchinterval(interval)
    assert load.call_count == 1, "another list replaces classes of the first, which may be in use"


@pytest.mark.parametrize(
    ("debian", "expected"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL", "GPL-1.0-or-later"),
        ("Expat or GPL-1+ or Artistic", "Artistic-1.0-Perl OR GPL-1.0-or-later OR MIT"),
        ("GPL-1+ or Artistic, and BSD-3-clause", "BSD-3-Clause AND (Artistic-1.0-Perl OR GPL-1.0-or-later)"),
        ("GPL-2+ with Libtool exception", "GPL-2.0-or-later WITH Libtool-exception"),
        ("GPL-2+-libtool-exception", "GPL-2.0-or-later WITH Libtool-exception"),
        ("GPL-2+ with distribution exception", "LicenseRef-GPL-2-with-distribution-exception"),
        ("public-domain", "LicenseRef-public-domain"),
    ],
)
def test_debian_names_become_spdx(debian: str, expected: str) -> None:
    assert spdx.from_debian(debian) == expected


@pytest.mark.parametrize(
    ("metadata", "expected", "says"),
    [
        ("License-Expression: MIT OR Apache-2.0\n", "MIT OR Apache-2.0", "expression"),
        ("License: Apache 2.0\n", "Apache-2.0", "field"),
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License\n", "MIT", "classifier"),
        (
            "Classifier: License :: X :: MIT License\nClassifier: License :: X :: Apache Software License\n",
            "Apache-2.0 AND MIT",
            "classifier",
        ),
        ("License: Do what you like\n", "LicenseRef-Do-what-you-like", "field"),
        ("", "NOASSERTION", "nothing"),
    ],
)
def test_a_wheel_declares_its_licence_in_its_metadata(metadata: str, expected: str, says: str) -> None:
    assert wheel_licence(wheel(metadata)) == DeclaredLicence(expected, says)  # type: ignore[arg-type]


def test_a_licence_that_is_declared_elsewhere_and_a_gpl_library_in_the_notices_are_found() -> None:
    assert wheel_licence(wheel("", of="kernels-data")) == DeclaredLicence("Apache-2.0", "elsewhere")
    assert wheel_licence(wheel("License-Expression: MIT\n", of="kernels-data")).licence == "MIT"
    notices = "libgfortran is under the GNU General Public License, version 3 with an exception; FFmpeg: LGPL-2.1"
    found = wheel_licence(wheel("License-Expression: BSD-3-Clause\n", NOTICE=notices))
    assert found.licence == "BSD-3-Clause"
    assert found.notices == ("GPL-3.0", "LGPL-2.1")


def test_a_licence_that_only_mentions_the_gpl_does_not_count() -> None:
    mozilla = '"Secondary License" means the GNU General Public License, Version 2.0, or others of those licenses.'
    assert gnu_licences(mozilla) == set()
    whole = "GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n" + "text " * 300
    whole += "the GNU Affero General Public License ... END OF TERMS AND CONDITIONS"
    assert gnu_licences(whole) == {"GPL-3.0"}


def test_a_copyright_file_gives_every_licence_once_or_is_read_for_its_references() -> None:
    text = "Format: https://example\n\nFiles: *\nLicense: GPL-2+\n\n"
    text += "Files: lib/*\nLicense: Expat\n\nLicense: GPL-2+\n long text\n"
    assert copyright_licence(text) == DeclaredLicence("GPL-2.0-or-later AND MIT", "copyright")
    text = (
        "This is free software; version 2, or (at your option) any later version.\n"
        "See /usr/share/common-licenses/GPL-2 and /usr/share/common-licenses/BSD.\n"
    )
    assert copyright_licence(text) == DeclaredLicence("BSD-3-Clause AND GPL-2.0-or-later", "text")
    assert copyright_licence("Copyright 2020 somebody") == DeclaredLicence("NOASSERTION", "text")


@pytest.mark.parametrize(("says", "expected"), [("text", "MIT"), ("field", "NOASSERTION")])
def test_what_somebody_found_out_about_another_release_holds(
    small_factory: SmallFactory, says: str, expected: str
) -> None:
    path = edit_record(small_factory, "pure-", sha256="f" * 64, licence="MIT", says=says)
    update_licences(small_factory.project, lambda _: None)
    [found] = [entry.licence for entry in LicenceLock.read(path).files if entry.file.startswith("pure-")]
    assert found == expected


def test_a_gpl_that_can_be_avoided_is_told_apart() -> None:
    assert spdx.copyleft("MIT OR GPL-2.0-only") == ("GPL-2.0-only",)
    assert not spdx.is_unavoidable("(MIT OR GPL-2.0-only) AND Zlib")
    assert spdx.is_unavoidable("(LGPL-3.0-only OR GPL-2.0-only) AND MIT")
    assert spdx.copyleft("LicenseRef-NVIDIA-Proprietary AND MPL-2.0") == ()


def test_every_committed_lock_has_its_licences_on_record() -> None:
    check_licences(Project(REPOSITORY))


def test_a_file_without_a_recorded_licence_is_named(locked_checkout: Checkout) -> None:
    with raises("no-licence-record", match=r"base_1\.0"):
        check_licences(Project(locked_checkout.root))
    done = locked_checkout.invoke("lock", "--check")
    assert refused(done, "no-licence-record")
    assert "./inv licences --update" in done.stderr


def test_updating_reads_missing_licences_and_drops_unused_ones(small_factory: SmallFactory) -> None:
    path = LicenceLock.path(small_factory.root / "locks")
    before = path.read_bytes()
    files = LicenceLock.read(path).files
    stale = files[0].model_copy(update={"sha256": "f" * 64})
    LicenceLock(made_from={}, files=(stale, *files[2:])).write(path)
    said: list[str] = []
    assert update_licences(small_factory.project, said.append) == (path, True)
    assert said == ["Reading the licences of 2 wheels"]
    assert {entry.sha256 for entry in LicenceLock.read(path).files} == {entry.sha256 for entry in files}
    path.unlink()
    update_licences(small_factory.project, said.append)
    rewritten = path.read_bytes()
    assert update_licences(small_factory.project, said.append) == (path, False)
    assert sorted(rewritten.splitlines()[5:]) == sorted(before.splitlines()[5:])


def test_a_package_may_share_the_documentation_of_another(small_factory: SmallFactory) -> None:
    pool = small_factory.mirror / "pool/main"
    text = b"Format: https://example\n\nFiles: *\nLicense: Expat\n"
    owner = make_deb(pool, "owner", "1.0", {"usr/share/doc/owner/copyright": text})
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        link = tarfile.TarInfo("./usr/share/doc/guest")
        link.type, link.linkname = tarfile.SYMTYPE, "owner"
        tar.addfile(link)
    guest = make_deb(pool, "guest", "1.0", {})
    archive = guest.read_bytes()
    start = archive.index(b"data.tar")
    size = f"{len(data.getvalue()):<10}`\n".encode()
    guest.write_bytes(archive[: start + 48] + size + data.getvalue())
    small_factory.lock_debs([guest, owner])
    locked = {deb.name: deb for deb in small_factory.project.base_lock(CELL).debs}
    assert deb_licence(locked["owner"], owner) == DeclaredLicence("MIT", "copyright")
    assert deb_licence(locked["guest"], guest) == "owner"
    update_licences(small_factory.project, lambda _: None)
    licences = LicenceLock.read(LicenceLock.path(small_factory.root / "locks")).files
    assert {entry.file: entry.licence for entry in licences if entry.file.endswith(".deb")} == {
        f"guest_1.0_{MACHINE}.deb": "MIT",
        f"owner_1.0_{MACHINE}.deb": "MIT",
    }


@pytest.fixture
def gnu_factory(small_factory: SmallFactory) -> SmallFactory:
    """A small factory with a package under the GPL, and a wheel that mentions it in its notices."""
    licence = b"Format: https://example\n\nFiles: *\nLicense: GPL-3+\n"
    pool = small_factory.mirror / "pool/main"
    small_factory.lock_debs([make_deb(pool, "bash", "1.0", {"usr/share/doc/bash/copyright": licence})])
    small_factory.record_licences()
    edit_record(small_factory, "platform-", notices=("LGPL-2.1",))
    return small_factory


def test_the_summary_names_the_gpl_parts_as_table_json_and_markdown(gnu_factory: SmallFactory) -> None:
    parts = components_of(gnu_factory.project, make_plan(gnu_factory.project, SECOND))
    summary = summarise_parts("other", parts)
    assert {part.name: (part.how, part.licences) for part in summary.gnu} == {
        "bash": ("declared", ("GPL-3.0-or-later",)),
        "platform": ("in notices", ("LGPL-2.1",)),
    }
    assert set(summary.undeclared) == {"pure", "namespaced", "sharing", "platform"}
    assert summary.elsewhere == ("somebody/other",)

    def run(*options: str) -> str:
        return gnu_factory.invoke("licences", "--target", "other", *options).stdout

    table = run()
    assert "bash" in table
    assert "somebody/other" in table
    [data] = json.loads(run("--json"))
    assert data["counts"]["GPL-3.0-or-later"] == 1
    assert "| bash | deb |" in run("--markdown")
