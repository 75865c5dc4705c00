"""The base layer, assembled from tiny packages that the tests generate."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.build.layers.base_layer import base_entries
from imagefactory.build.layers.debian.file_tree import read_content
from imagefactory.errors.layers import (
    DebFormatError,
    UndeclaredMetadataError,
    UnknownAlternativeError,
    UnsafePathError,
)
from imagefactory.errors.locks import PathConflictError
from imagefactory.locks.files import LockedDeb
from imagefactory.oci.entry import Entry, EntryKind
from imagefactory.store.digests import sha256_of

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    ".tar.xz": lzma.compress,
    ".tar.zst": zstandard.ZstdCompressor().compress,
    ".tar.gz": gzip.compress,
    ".tar": bytes,
}


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of a data tar, by default a regular file owned by root."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uname, info.gname = len(data), 0o644, "root", "root"
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target, mode=0o777)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def ar_of(members: Mapping[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


@dataclass
class Workshop:
    """Makes .deb files and assembles them."""

    path: Path
    debs: list[tuple[LockedDeb, Path]] = field(default_factory=list)

    def deb(
        self,
        name: str,
        *members: tuple[tarfile.TarInfo, bytes],
        architecture: str = "arm64",
        control: Mapping[str, str] | None = None,
        fields: str = "",
        suffix: str = ".tar.xz",
    ) -> LockedDeb:
        text = (
            f"Package: {name}\nVersion: 1.0\nArchitecture: {architecture}\n{fields}Description: a package\n"
        )
        files = {"control": text, "md5sums": "", **(control or {})}
        data = ar_of(
            {
                "debian-binary": b"2.0\n",
                "control.tar.xz": lzma.compress(
                    tar_of(member(f"./{key}", value.encode()) for key, value in files.items())
                ),
                f"data{suffix}": COMPRESSIONS[suffix](tar_of((folder("./"), *members))),
            }
        )
        return self.raw(name, data, architecture)

    def raw(self, name: str, data: bytes, architecture: str = "arm64") -> LockedDeb:
        file = self.path / f"{name}.deb"
        file.write_bytes(data)
        locked = LockedDeb(
            name=name,
            version="1.0",
            architecture=architecture,
            archive="main",
            file=f"pool/main/{name}_1.0_{architecture}.deb",
            sha256=sha256_of(data),
            size=len(data),
            unpacked=0,
            needed_by=("matrix.yaml",),
        )
        self.debs.append((locked, file))
        return locked

    def entries(self, debs: Sequence[tuple[LockedDeb, Path]] | None = None) -> list[Entry]:
        scratch = self.path / "scratch"
        scratch.mkdir(exist_ok=True)
        return [entry for _, entry in base_entries(debs=self.debs if debs is None else debs, scratch=scratch)]

    def image(self) -> dict[str, Entry]:
        entries = self.entries()
        by_path: dict[str, Entry] = {entry.path: entry for entry in entries}
        assert len(by_path) == len(entries)
        return by_path

    def text(self, path: str) -> str:
        return read_content(self.image()[path].content).decode()


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


# --- paths ----------------------------------------------------------------------------------------


def test_files_of_the_old_folders_are_in_usr(workshop: Workshop) -> None:
    workshop.deb("bash", folder("./bin"), member("./bin/bash", b"#!", mode=0o755))
    workshop.deb("libc6", member("./lib/aarch64-linux-gnu/libc.so.6"), link("./lib/ld.so", "a/b"))
    image = workshop.image()
    assert image["usr/bin/bash"].mode == 0o755
    assert (image["bin"].kind, image["bin"].target) == (EntryKind.SYMLINK, "usr/bin")
    assert "usr/lib/aarch64-linux-gnu/libc.so.6" in image
    assert image["usr/lib/ld.so"].target == "a/b"
    assert not any(path.startswith(("bin/", "sbin/", "lib/")) for path in image)


@pytest.mark.parametrize(("architecture", "expected"), [("amd64", True), ("arm64", False)])
def test_lib64_exists_only_where_the_architecture_has_it(
    workshop: Workshop, architecture: str, *, expected: bool
) -> None:
    workshop.deb("libc6", member("./etc/x"), architecture=architecture)
    assert ("lib64" in workshop.image()) == expected


def test_a_link_to_the_old_name_of_itself_vanishes_in_the_merge(workshop: Workshop) -> None:
    workshop.deb("coreutils", member("./bin/touch", b"x"), link("./usr/bin/touch", "/bin/touch"))
    assert workshop.image()["usr/bin/touch"].kind is EntryKind.FILE


def test_every_parent_is_added_with_the_attributes_of_the_table(workshop: Workshop) -> None:
    workshop.deb("app", member("./srv/a/b/c"), member("./root/.x"), folder("./tmp", mode=0o1777))
    image = workshop.image()
    assert [image[path].mode for path in ("srv", "srv/a", "srv/a/b")] == [0o755] * 3
    assert (image["root"].mode, image["tmp"].mode, image["run/lock"].mode) == (0o700, 0o1777, 0o1777)
    assert (image["home/vllm"].uid, image["home/vllm"].gid) == (1000, 1000)


def test_entries_come_in_the_byte_order_of_their_paths(workshop: Workshop) -> None:
    workshop.deb("app", member("./srv/a.b"), member("./srv/a/b"), member("./srv/é"), member("./srv/Z"))
    paths = [entry.path.encode() for entry in workshop.entries()]
    assert paths == sorted(paths)


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
def test_what_could_harm_an_image_is_refused_with_package_and_path(
    workshop: Workshop, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    workshop.deb("evil", bad)
    with pytest.raises(UnsafePathError) as caught:
        workshop.entries()
    assert caught.value.where == "pool/main/evil_1.0_arm64.deb"
    assert bad[0].name.removeprefix("./").split("/")[-1] in caught.value.why


def test_nothing_is_written_through_another_packages_link(workshop: Workshop) -> None:
    workshop.deb("one", link("./srv/www", "/etc"))
    workshop.deb("two", member("./srv/www/passwd"))
    with pytest.raises(UnsafePathError, match="two ships /srv/www/passwd, but /srv/www is no directory"):
        workshop.entries()


def test_two_packages_may_own_a_path_only_when_they_agree(workshop: Workshop) -> None:
    workshop.deb("a", member("./etc/same", b"x"), member("./etc/other", b"x"))
    workshop.deb("b", member("./etc/same", b"x"))
    assert "etc/same" in workshop.image()
    workshop.deb("c", member("./etc/other", b"y"))
    with pytest.raises(PathConflictError, match="a and c both own /etc/other"):
        workshop.entries()


def test_a_package_cannot_replace_the_accounts(workshop: Workshop) -> None:
    workshop.deb("evil", member("./etc/passwd", b"root::0:0::/:/bin/sh\n"))
    with pytest.raises(PathConflictError, match="evil and the factory both own /etc/passwd"):
        workshop.entries()


def test_the_first_hard_link_by_path_has_the_content(workshop: Workshop) -> None:
    workshop.deb(
        "gzip",
        member("./bin/zzz", b"shared", mode=0o755),
        hard_link("./bin/mmm", "./bin/zzz"),
        hard_link("./usr/bin/aaa", "./bin/zzz"),
    )
    image = workshop.image()
    assert read_content(image["usr/bin/aaa"].content) == b"shared"
    for name in ("mmm", "zzz"):
        entry = image[f"usr/bin/{name}"]
        assert (entry.kind, entry.target, entry.mode) == (EntryKind.HARDLINK, "usr/bin/aaa", 0o755)


# --- metadata -------------------------------------------------------------------------------------


def test_set_gid_and_the_name_of_the_group_are_kept(workshop: Workshop) -> None:
    workshop.deb("passwd", member("./usr/bin/chage", mode=0o2755, gname="shadow", gid=777))
    chage = workshop.image()["usr/bin/chage"]
    assert (chage.mode, chage.uid, chage.gid) == (0o2755, 0, 42)


def test_folders_without_special_attributes_in_newer_releases_follow_the_table(workshop: Workshop) -> None:
    workshop.deb("base-files", folder("./var/local", mode=0o755))
    local = workshop.image()["var/local"]
    assert (local.mode, local.uid, local.gid) == (0o2775, 0, 50)


def test_a_package_may_ship_the_links_of_the_merge(workshop: Workshop) -> None:
    workshop.deb("base-files", link("./bin", "usr/bin"), member("./usr/bin/tool", b"x", mode=0o755))
    image = workshop.image()
    assert (image["bin"].kind, image["bin"].target) == (EntryKind.SYMLINK, "usr/bin")
    assert image["usr/bin/tool"].kind is EntryKind.FILE


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (member("./etc/x", uname="postgres"), "the user postgres"),
        (folder("./var/lib/secret", mode=0o700), "mode 700"),
        (folder("./var/mail", mode=0o755), "mode 755"),
        (folder("./var/local", mode=0o700), "mode 700"),
    ],
)
def test_undeclared_owners_and_folder_modes_are_errors(
    workshop: Workshop, bad: tuple[tarfile.TarInfo, bytes], says: str
) -> None:
    workshop.deb("app", bad)
    with pytest.raises(UndeclaredMetadataError, match=says):
        workshop.entries()


def test_accounts_have_no_password_and_fixed_numbers(workshop: Workshop) -> None:
    workshop.deb("app", member("./etc/x"))
    image = workshop.image()
    assert "vllm:x:1000:1000:vLLM server:/home/vllm:/bin/bash\n" in workshop.text("etc/passwd")
    assert all(line.split(":")[1] == "*" for line in workshop.text("etc/shadow").splitlines())
    assert (image["etc/shadow"].mode, image["etc/shadow"].gid) == (0o640, 42)
    assert image["etc/passwd"].mode == 0o644


# --- what is left out, what is added ---------------------------------------------------------------


def test_documentation_is_left_out_but_licences_stay(workshop: Workshop) -> None:
    workshop.deb(
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
    paths = [path for path in workshop.image() if path.startswith("usr/") and "local/" not in path]
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


def test_packages_installed_in_a_derived_image_leave_out_the_same_files(workshop: Workshop) -> None:
    workshop.deb("dpkg", member("./usr/bin/dpkg"))
    text = workshop.text("etc/dpkg/dpkg.cfg.d/imagefactory")
    assert "path-exclude /usr/share/man/*\n" in text
    assert "path-include /usr/share/doc/*/copyright\n" in text


def test_defaults_do_not_replace_existing_files(workshop: Workshop) -> None:
    workshop.deb(
        "base-files",
        member("./usr/share/base-files/motd", b"default"),
        member("./usr/share/base-files/profile", b"default"),
        member("./etc/profile", b"packaged"),
    )
    assert workshop.text("etc/motd") == "default"
    assert workshop.text("etc/profile") == "packaged"


def test_var_run_is_a_link_although_base_files_ships_a_folder(workshop: Workshop) -> None:
    workshop.deb("base-files", folder("./var/run"), folder("./var/lock", mode=0o1777))
    image = workshop.image()
    assert (image["var/run"].target, image["var/lock"].target) == ("/run", "/run/lock")


def test_the_machine_has_no_identity_yet(workshop: Workshop) -> None:
    workshop.deb("app", member("./etc/x"))
    assert workshop.text("etc/machine-id") == ""


def test_apt_uses_the_mirrors_of_its_example_but_only_main(workshop: Workshop) -> None:
    example = b"# a comment\ndeb http://mirror.example/debian bookworm main contrib\n#deb-src x y z\n"
    workshop.deb("apt", member("./usr/share/doc/apt/examples/sources.list", example))
    assert workshop.text("etc/apt/sources.list") == "deb http://mirror.example/debian bookworm main\n"


def test_certificates_are_one_bundle_in_the_order_of_their_names(workshop: Workshop) -> None:
    where = "./usr/share/ca-certificates/mozilla"
    workshop.deb(
        "ca-certificates",
        member(f"{where}/Őszi.crt", b"three\n"),
        member(f"{where}/b.crt", b"two"),
        member(f"{where}/A.crt", b"one\n"),
        member(f"{where}/not-a-certificate.txt", b"x"),
        architecture="all",
    )
    assert workshop.text("etc/ssl/certs/ca-certificates.crt") == "one\ntwo\nthree\n"
    assert workshop.text("etc/ca-certificates.conf").endswith(
        "#\nmozilla/A.crt\nmozilla/b.crt\nmozilla/Őszi.crt\n"
    )


def test_shells_are_listed_under_both_names(workshop: Workshop) -> None:
    workshop.deb("debianutils", member("./usr/share/debianutils/shells", b"# valid login shells\n/bin/sh\n"))
    workshop.deb("dash", member("./usr/share/debianutils/shells.d/dash", b"/bin/dash\n"))
    assert workshop.text("etc/shells").split("\n") == [
        "# valid login shells",
        *("/bin/sh", "/usr/bin/sh", "/bin/dash", "/usr/bin/dash", ""),
    ]


# --- alternatives ---------------------------------------------------------------------------------

MAWK = """\
#!/bin/sh
# update-alternatives --install /usr/bin/commented commented /usr/bin/x 1
if [ "$1" = configure ]; then
    update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/mawk 5 \\
        --slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/mawk.1.gz \\
        --slave /usr/bin/nawk nawk /usr/bin/mawk || true
fi
update-alternatives --remove w /usr/bin/w.procps
"""


def test_declared_alternatives_are_linked_and_known_to_update_alternatives(workshop: Workshop) -> None:
    workshop.deb("mawk", member("./usr/bin/mawk"), control={"postinst": MAWK})
    image = workshop.image()
    assert image["usr/bin/awk"].target == "/etc/alternatives/awk"
    assert image["etc/alternatives/awk"].target == "/usr/bin/mawk"
    assert image["usr/bin/nawk"].target == "/etc/alternatives/nawk"
    assert workshop.text("var/lib/dpkg/alternatives/awk") == (
        "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n\n"
    )
    assert not any(path.startswith("etc/alternatives/awk.1") for path in image)


def test_an_alternative_in_an_old_folder_is_linked_in_the_new_one(workshop: Workshop) -> None:
    script = "update-alternatives --quiet --install /lib/cpp cpp /usr/bin/cpp 10\n"
    workshop.deb("cpp", member("./usr/bin/cpp"), control={"postinst": script})
    assert workshop.image()["usr/lib/cpp"].target == "/etc/alternatives/cpp"


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("vim", "update-alternatives --install /usr/bin/vi vi /usr/bin/vim.basic 30\n"),
        ("gcc", "update-alternatives --install /usr/bin/cc cc /usr/bin/gcc-13 20\n"),
        ("clang", "update-alternatives --install /usr/bin/cc cc /usr/bin/gcc 20\n"),
        ("odd", 'update-alternatives --install "$LINK" "$NAME" "$TARGET" 20\n'),
    ],
)
def test_an_undeclared_alternative_stops_the_build(workshop: Workshop, package: str, script: str) -> None:
    workshop.deb(package, member("./usr/bin/x"), control={"postinst": script})
    with pytest.raises(UnknownAlternativeError) as caught:
        workshop.entries()
    assert caught.value.what.startswith(f"{package} registers the alternative ")
    assert "alternatives.py" in caught.value.fix


# --- dpkg's records -------------------------------------------------------------------------------


def test_packages_are_recorded_for_dpkg_and_for_scanners(workshop: Workshop) -> None:
    workshop.deb(
        "libfoo",
        folder("./lib"),
        member("./lib/libfoo.so.1"),
        member("./etc/foo.conf", b"a setting\n"),
        fields="Multi-Arch: same\n",
        control={
            "md5sums": "d41d8cd98f00b204e9800998ecf8427e  lib/libfoo.so.1\n",
            "conffiles": "/etc/foo.conf\nremove-on-upgrade /etc/gone.conf\n",
            "triggers": "activate-noawait ldconfig\n",
            "symbols": "not kept",
            "postinst": "#!/bin/sh\n",
        },
    )
    workshop.deb(
        "libc-bin",
        member("./sbin/ldconfig"),
        control={"triggers": "interest-noawait ldconfig  # comment\ninterest /usr/share/x\n"},
    )
    image = workshop.image()
    stanza = workshop.text("var/lib/dpkg/status.d/libfoo")
    assert stanza == (
        "Package: libfoo\nStatus: install ok installed\nVersion: 1.0\nArchitecture: arm64\n"
        "Multi-Arch: same\nDescription: a package\n"
        "Conffiles:\n /etc/foo.conf 0fe3b45684ba33113a7cbec60285ab48\n"
    )
    assert workshop.text("var/lib/dpkg/status").endswith(f"\n\n{stanza}")
    assert workshop.text("var/lib/dpkg/info/libfoo:arm64.list") == (
        "/.\n/lib\n/lib/libfoo.so.1\n/etc/foo.conf\n"
    )
    assert image["var/lib/dpkg/info/libfoo:arm64.postinst"].mode == 0o755
    assert "var/lib/dpkg/info/libc-bin.list" in image
    assert "var/lib/dpkg/info/libfoo:arm64.symbols" not in image
    assert "lib/libfoo.so.1" in workshop.text("var/lib/dpkg/status.d/libfoo.md5sums")
    assert workshop.text("var/lib/dpkg/triggers/ldconfig") == "libc-bin/noawait\n"
    assert workshop.text("var/lib/dpkg/triggers/File") == "/usr/share/x libc-bin\n"


# --- the .deb itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_every_compression_that_debian_uses_is_read(workshop: Workshop, suffix: str) -> None:
    workshop.deb("app", member("./srv/file", b"content" * 1000), suffix=suffix)
    assert workshop.text("srv/file") == "content" * 1000


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not an archive", "it is not an ar archive"),
        (b"!<arch>\nshort", "its ar archive is damaged"),
        (b"!<arch>\n" + b"x" * 58 + b"`\n", "its ar archive is damaged"),
        (ar_of({"debian-binary": b"2.0\n"}), "it has no control.tar that we can read, only debian-binary"),
        (ar_of({"control.tar.lz4": b""}), "it has no control.tar that we can read, only control.tar.lz4"),
        (ar_of({"control.tar.xz": b"not xz"}), "Input format not supported"),
        (ar_of({"control.tar.xz": lzma.compress(b"x" * 100)[:-20]}), "Compressed file ended"),
    ],
)
def test_a_damaged_package_is_named(workshop: Workshop, data: bytes, why: str) -> None:
    workshop.raw("broken", data)
    with pytest.raises(DebFormatError) as caught:
        workshop.entries()
    assert caught.value.where == "pool/main/broken_1.0_arm64.deb"
    assert why in caught.value.why


def test_packages_of_two_architectures_do_not_make_one_base(workshop: Workshop) -> None:
    workshop.deb("a", architecture="arm64")
    workshop.deb("b", architecture="amd64")
    with pytest.raises(DebFormatError, match="several architectures: amd64, arm64"):
        workshop.entries()


# --- what must not matter -------------------------------------------------------------------------


def listing(entries: Iterable[Entry]) -> list[tuple[object, ...]]:
    return [
        (e.path, e.kind.value, oct(e.mode), e.uid, e.gid, e.target, read_content(e.content)) for e in entries
    ]


@pytest.fixture
def several(workshop: Workshop) -> Workshop:
    workshop.deb("a", member("./etc/same", b"x"), member("./bin/z"), hard_link("./bin/y", "./bin/z"))
    workshop.deb("b", member("./etc/same", b"x"), control={"triggers": "interest t\n"})
    workshop.deb("c", member("./usr/share/debianutils/shells.d/c", b"/bin/c\n"), architecture="all")
    workshop.deb("mawk", member("./usr/bin/mawk"), control={"postinst": MAWK, "triggers": "interest t\n"})
    workshop.deb("z", member("./usr/share/debianutils/shells", b"/bin/z\n"))
    return workshop


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(order=st.permutations(range(5)))
def test_the_order_of_packages_does_not_matter(several: Workshop, order: Sequence[int]) -> None:
    shuffled = [several.debs[place] for place in order]
    assert listing(several.entries(shuffled)) == listing(several.entries())


def test_umask_and_time_zone_do_not_matter(several: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = listing(several.entries())
    before = os.umask(0o077)
    try:
        monkeypatch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        assert listing(several.entries()) == expected
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()
