"""The paths, attributes and files of the base layer, assembled from tiny packages."""

import tarfile
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.oci.entry import Entry, EntryKind, read_content
from tests.fixtures.debs import Base, Member, folder, hard_link, link, member
from tests.fixtures.failures import raises
from tests.unit.assemble.test_dpkg_records import MAWK

SYMLINK, FILE = EntryKind.SYMLINK, EntryKind.FILE


@pytest.mark.parametrize(
    ("shipped", "path", "expected"),
    [
        (member("./bin/bash", mode=0o755), "usr/bin/bash", {"kind": FILE, "mode": 0o755}),
        (member("./lib/aarch64-linux-gnu/libc.so.6"), "usr/lib/aarch64-linux-gnu/libc.so.6", {"kind": FILE}),
        (link("./lib/ld.so", "a/b"), "usr/lib/ld.so", {"kind": SYMLINK, "target": "a/b"}),
        (folder("./bin"), "bin", {"kind": SYMLINK, "target": "usr/bin"}),
        (link("./bin", "usr/bin"), "bin", {"kind": SYMLINK, "target": "usr/bin"}),
        (folder("./var/run"), "var/run", {"kind": SYMLINK, "target": "/run"}),
        (folder("./var/lock", 0o1777), "var/lock", {"kind": SYMLINK, "target": "/run/lock"}),
        (member("./srv/a/b"), "srv/a", {"mode": 0o755, "uid": 0, "gid": 0}),
        (member("./root/.x"), "root", {"mode": 0o700}),
        (folder("./tmp", 0o1777), "tmp", {"mode": 0o1777}),
        (member("./etc/x"), "run/lock", {"mode": 0o1777}),
        (member("./etc/x"), "home/vllm", {"mode": 0o755, "uid": 1000, "gid": 1000}),
        (folder("./var/local"), "var/local", {"mode": 0o2775, "uid": 0, "gid": 50}),  # plain since trixie
        (
            member("./usr/bin/chage", mode=0o2755, gname="shadow", gid=777),
            "usr/bin/chage",
            {"mode": 0o2755, "uid": 0, "gid": 42},
        ),
    ],
)
def test_entry_has_merged_path_and_attributes_of_the_table(
    base: Base, shipped: Member, path: str, expected: dict[str, object]
) -> None:
    base.deb("app", shipped)
    image = base.image()
    assert {name: getattr(image[path], name) for name in expected} == expected
    assert not any(path.startswith(("bin/", "sbin/", "lib/")) for path in image)


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_link_to_its_own_old_name_vanishes_in_the_merge_and_lib64_exists_only_on_amd64(
    base: Base, architecture: str
) -> None:
    files = (member("./bin/touch", b"x"), link("./usr/bin/touch", "/bin/touch"))
    base.deb("coreutils", *files, architecture=architecture)
    image = base.image()
    assert image["usr/bin/touch"].kind is FILE
    assert ("lib64" in image) == (architecture == "amd64")


@pytest.mark.parametrize(
    "bad",
    [
        member("./a/../../etc/passwd"),
        member("/etc/passwd"),
        member("./a//b"),
        member("./etc/.wh.passwd"),
        member("./etc/a\nb"),
        member("./dev/null", type=tarfile.CHRTYPE),
        member("./run/fifo", type=tarfile.FIFOTYPE),
        hard_link("./etc/x", "./etc/missing"),
    ],
    ids=lambda bad: str(bad[0].name).encode("unicode_escape").decode(),
)
def test_unsafe_path_is_refused_with_package_and_path(base: Base, bad: Member) -> None:
    base.deb("evil", bad)
    with raises("unsafe-path") as caught:
        base.entries()
    assert caught.value.where == "pool/main/evil_1.0_arm64.deb"
    assert bad[0].name.removeprefix("./").split("/")[-1] in caught.value.why


def test_packages_may_share_a_path_only_if_they_agree(base: Base) -> None:
    base.deb("a", member("./etc/same", b"x"), member("./etc/other", b"x"), link("./srv/www", "/etc"))
    base.deb("b", member("./etc/same", b"x"))
    assert "etc/same" in base.image()


@pytest.mark.parametrize(
    ("shipped", "name", "what"),
    [
        (member("./etc/other", b"y"), "path-conflict", "a and evil both own /etc/other"),
        (member("./etc/passwd"), "path-conflict", "evil and the factory both own /etc/passwd"),
        (member("./srv/www/passwd"), "duplicate-path", "/srv/www is a symlink and a folder in one layer"),
    ],
)
def test_path_of_another_owner_is_refused(base: Base, shipped: Member, name: str, what: str) -> None:
    base.deb("a", member("./etc/other", b"x"), link("./srv/www", "/etc"))
    base.deb("evil", shipped)
    with raises(name, match=what):
        base.entries()


def test_first_hard_link_by_path_has_the_content(base: Base) -> None:
    base.deb(
        "gzip",
        member("./bin/zzz", b"shared", mode=0o755),
        hard_link("./bin/mmm", "./bin/zzz"),
        hard_link("./usr/bin/aaa", "./bin/zzz"),
    )
    image = base.image()
    assert read_content(image["usr/bin/aaa"].content) == b"shared"
    for name in ("mmm", "zzz"):
        entry = image[f"usr/bin/{name}"]
        assert (entry.kind, entry.target, entry.mode) == (EntryKind.HARDLINK, "usr/bin/aaa", 0o755)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (member("./etc/x", uname="postgres"), "the user postgres"),
        (folder("./var/lib/secret", mode=0o700), "mode 700"),
        (folder("./var/mail", mode=0o755), "mode 755"),
        (folder("./var/local", mode=0o700), "mode 700"),
    ],
)
def test_undeclared_owner_or_folder_mode_is_refused(base: Base, bad: Member, says: str) -> None:
    base.deb("app", bad)
    with raises("undeclared-metadata", match=says):
        base.entries()


def test_accounts_have_no_password_and_fixed_numbers(base: Base) -> None:
    base.deb("app", member("./etc/x"))
    image = base.image()
    assert "vllm:x:1000:1000:vLLM server:/home/vllm:/bin/bash\n" in base.text("etc/passwd")
    assert all(line.split(":")[1] == "*" for line in base.text("etc/shadow").splitlines())
    assert (image["etc/shadow"].mode, image["etc/shadow"].gid) == (0o640, 42)
    assert image["etc/passwd"].mode == 0o644


def test_documentation_is_left_out_but_licences_stay(base: Base) -> None:
    base.deb(
        "gcc",
        member("./usr/share/doc/gcc/changelog.gz"),
        member("./usr/share/doc/gcc/copyright"),
        link("./usr/share/doc/libgcc-s1", "gcc"),
        member("./usr/share/man/man1/gcc.1.gz"),
        folder("./usr/share/man/man1"),
        folder("./usr/share/man/de/man1"),
        member("./usr/share/locale/de/LC_MESSAGES/gcc.mo"),
        member("./usr/bin/aarch64-linux-gnu-lto-dump-12"),
        member("./usr/lib/locale/C.utf8/LC_CTYPE"),
    )
    paths = [path for path in base.image() if path.startswith("usr/") and "local/" not in path]
    assert [path for path in paths if "share" in path or "locale" in path or "lto" in path] == [
        "usr/lib/locale",
        "usr/lib/locale/C.utf8",
        "usr/lib/locale/C.utf8/LC_CTYPE",
        "usr/share",
        "usr/share/doc",
        "usr/share/doc/gcc",
        "usr/share/doc/gcc/copyright",
        "usr/share/doc/libgcc-s1",
        "usr/share/man",
        "usr/share/man/man1",
    ]


EXAMPLE = b"# a comment\ndeb http://mirror.example/debian bookworm main contrib\n#deb-src x y z\n"
STANZAS = b"""## a comment
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main contrib
Signed-By: /usr/share/keyrings/x.gpg

## and another
Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main contrib
"""
MAIN_ONLY = "\n".join(line.replace(" contrib", "") for line in STANZAS.decode().split("\n") if not line.startswith("#"))
SHELLS = "usr/share/debianutils/shells"


@pytest.mark.parametrize(
    ("shipped", "path", "text"),
    [
        ({"etc/x": b""}, "etc/machine-id", ""),
        ({"usr/share/base-files/motd": b"default"}, "etc/motd", "default"),
        ({"usr/share/base-files/profile": b"default", "etc/profile": b"packaged"}, "etc/profile", "packaged"),
        (
            {"usr/share/doc/apt/examples/sources.list": EXAMPLE},
            "etc/apt/sources.list",
            "deb http://mirror.example/debian bookworm main\n",
        ),
        (
            {"usr/share/doc/apt/examples/debian.sources": STANZAS},
            "etc/apt/sources.list.d/debian.sources",
            MAIN_ONLY,
        ),
        (
            {SHELLS: b"# valid login shells\n/bin/sh\n", f"{SHELLS}.d/dash": b"/bin/dash\n"},
            "etc/shells",
            "# valid login shells\n/bin/sh\n/usr/bin/sh\n/bin/dash\n/usr/bin/dash\n",
        ),
    ],
)
def test_file_is_written_as_maintainer_scripts_would(
    base: Base, shipped: dict[str, bytes], path: str, text: str
) -> None:
    base.deb("app", *(member(f"./{name}", data) for name, data in shipped.items()))
    assert base.text(path) == text


def test_packages_of_derived_images_leave_out_the_same_files(base: Base) -> None:
    base.deb("dpkg", member("./usr/bin/dpkg"))
    text = base.text("etc/dpkg/dpkg.cfg.d/imagefactory")
    assert "path-exclude /usr/share/man/*\n" in text
    assert "path-include /usr/share/doc/*/copyright\n" in text


def test_certificates_are_bundled_in_the_order_of_their_names(base: Base) -> None:
    where = "./usr/share/ca-certificates/mozilla"
    base.deb(
        "ca-certificates",
        member(f"{where}/Őszi.crt", b"three\n"),
        member(f"{where}/b.crt", b"two"),
        member(f"{where}/A.crt", b"one\n"),
        member(f"{where}/not-a-certificate.txt", b"x"),
        architecture="all",
    )
    assert base.text("etc/ssl/certs/ca-certificates.crt") == "one\ntwo\nthree\n"
    listed = "#\nmozilla/A.crt\nmozilla/b.crt\nmozilla/Őszi.crt\n"
    assert base.text("etc/ca-certificates.conf").endswith(listed)


def listing(entries: Iterable[Entry]) -> list[tuple[object, ...]]:
    return [(e.path, e.kind.value, oct(e.mode), e.uid, e.gid, e.target, read_content(e.content)) for e in entries]


@pytest.fixture
def several(base: Base) -> Base:
    base.deb("a", member("./etc/same", b"x"), member("./bin/z"), hard_link("./bin/y", "./bin/z"))
    base.deb("b", member("./etc/same", b"x"), control={"triggers": "interest t\n"})
    base.deb("c", member(f"./{SHELLS}.d/c", b"/bin/c\n"), architecture="all")
    base.deb("mawk", member("./usr/bin/mawk"), control={"postinst": MAWK, "triggers": "interest t\n"})
    base.deb("z", member(f"./{SHELLS}", b"/bin/z\n"))
    return base


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(order=st.permutations(range(5)))
def test_order_of_packages_does_not_matter(several: Base, order: Sequence[int]) -> None:
    shuffled = [several.debs[place] for place in order]
    assert listing(several.entries(shuffled)) == listing(several.entries())
