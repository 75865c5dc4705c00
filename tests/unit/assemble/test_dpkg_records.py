"""Alternatives, dpkg's records, and reading the .deb files that the base layer is made from."""

import lzma

import pytest

from tests.fixtures.debs import COMPRESSIONS, Base, ar_of, folder, member
from tests.fixtures.failures import raises

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


def test_declared_alternatives_are_linked_and_registered(base: Base) -> None:
    script = "update-alternatives --quiet --install /lib/cpp cpp /usr/bin/cpp 10\n"
    base.deb("cpp", member("./usr/bin/cpp"), control={"postinst": script})
    base.deb("mawk", member("./usr/bin/mawk"), control={"postinst": MAWK})
    image = base.image()
    assert image["usr/bin/awk"].target == "/etc/alternatives/awk"
    assert image["etc/alternatives/awk"].target == "/usr/bin/mawk"
    assert image["usr/bin/nawk"].target == "/etc/alternatives/nawk"
    assert base.text("var/lib/dpkg/alternatives/awk") == (
        "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n\n"
    )
    assert not any(path.startswith("etc/alternatives/awk.1") for path in image)
    assert image["usr/lib/cpp"].target == "/etc/alternatives/cpp", "in the merged folder"


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("vim", "update-alternatives --install /usr/bin/vi vi /usr/bin/vim.basic 30\n"),
        ("gcc", "update-alternatives --install /usr/bin/cc cc /usr/bin/gcc-13 20\n"),
        ("clang", "update-alternatives --install /usr/bin/cc cc /usr/bin/gcc 20\n"),
        ("odd", 'update-alternatives --install "$LINK" "$NAME" "$TARGET" 20\n'),
    ],
)
def test_undeclared_alternative_stops_the_build(base: Base, package: str, script: str) -> None:
    base.deb(package, member("./usr/bin/x"), control={"postinst": script})
    with raises("unknown-alternative") as caught:
        base.entries()
    assert caught.value.what.startswith(f"{package} registers the alternative ")
    assert "maintainer_scripts.py" in caught.value.fix


def test_packages_are_recorded_for_dpkg_and_for_scanners(base: Base) -> None:
    base.deb(
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
    base.deb(
        "libc-bin",
        member("./sbin/ldconfig"),
        control={"triggers": "interest-noawait ldconfig  # comment\ninterest /usr/share/x\n"},
    )
    image = base.image()
    stanza = base.text("var/lib/dpkg/status.d/libfoo")
    assert stanza == (
        "Package: libfoo\nStatus: install ok installed\nVersion: 1.0\nArchitecture: arm64\n"
        "Multi-Arch: same\nDescription: a package\n"
        "Conffiles:\n /etc/foo.conf 0fe3b45684ba33113a7cbec60285ab48\n"
    )
    assert base.text("var/lib/dpkg/status").endswith(f"\n\n{stanza}")
    assert base.text("var/lib/dpkg/info/libfoo:arm64.list") == ("/.\n/lib\n/lib/libfoo.so.1\n/etc/foo.conf\n")
    assert image["var/lib/dpkg/info/libfoo:arm64.postinst"].mode == 0o755
    assert "var/lib/dpkg/info/libc-bin.list" in image
    assert "var/lib/dpkg/info/libfoo:arm64.symbols" not in image
    assert "lib/libfoo.so.1" in base.text("var/lib/dpkg/status.d/libfoo.md5sums")
    assert base.text("var/lib/dpkg/triggers/ldconfig") == "libc-bin/noawait\n"
    assert base.text("var/lib/dpkg/triggers/File") == "/usr/share/x libc-bin\n"


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_deb_is_read_in_every_compression(base: Base, suffix: str) -> None:
    base.deb("app", member("./srv/file", b"content" * 1000), suffix=suffix)
    assert base.text("srv/file") == "content" * 1000


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not an archive", "it is not a sound ar archive"),
        (b"!<arch>\nshort", "it is not a sound ar archive"),
        (b"!<arch>\n" + b"x" * 58 + b"`\n", "it is not a sound ar archive"),
        (ar_of({"debian-binary": b"2.0\n"}), "it has no control.tar that we can read, only debian-binary"),
        (ar_of({"control.tar.lz4": b""}), "it has no control.tar that we can read, only control.tar.lz4"),
        (ar_of({"control.tar.xz": b"not xz"}), "Input format not supported"),
        (ar_of({"control.tar.xz": lzma.compress(b"x" * 100)[:-20]}), "Compressed file ended"),
    ],
)
def test_damaged_deb_is_named_in_the_error(base: Base, data: bytes, why: str) -> None:
    base.raw("broken", data)
    with raises("bad-deb") as caught:
        base.entries()
    assert caught.value.where == "pool/main/broken_1.0_arm64.deb"
    assert why in caught.value.why
