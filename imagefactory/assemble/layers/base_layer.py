"""Builds the base layer: Debian, unpacked from .deb files without running their scripts.

It needs no root, no emulation and no dpkg, so an amd64 laptop can assemble an arm64 base. The result depends only on
the packages.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagefactory.assemble.layers.debian.deb import (
    Deb,
    DebPackage,
    Unpacked,
    join_hard_links,
    open_deb,
    unpack,
)
from imagefactory.assemble.layers.debian.dpkg_database import add_dpkg_database
from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.assemble.layers.debian.ldcache import add_ld_cache
from imagefactory.assemble.layers.debian.maintainer_scripts import (
    add_alternatives,
    add_apt_sources,
    add_certificates,
    add_configured_files,
    add_merged_links,
)
from imagefactory.assemble.layers.debian.policy import account_entries
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import Environment


def base_entries(debs: Sequence[tuple[DebPackage, Path]], scratch: Path) -> list[tuple[str, Entry]]:
    """Assemble the base from its packages and their files, and return its entries with their owners.

    The entries refer to spool files in `scratch`, which must stay until the layer is written.
    """
    architecture = next((deb.architecture for deb, _ in debs if deb.architecture != "all"), "all")
    packages = _unpack_all(debs, architecture, scratch)
    tree = FileTree()
    add_merged_links(tree, architecture)
    for deb, unpacked in packages:
        for entry in unpacked.entries:
            tree.add(entry, deb.name)
        add_apt_sources(tree, unpacked.left_out)
    for entry in account_entries():
        tree.add(entry)
    # After the packages: some of these files are written only if no package ships them, or copied from what one ships.
    add_configured_files(tree)
    add_alternatives(tree, [deb for deb, _ in packages])
    add_certificates(tree)
    add_dpkg_database(tree, packages, architecture)
    add_ld_cache(tree, architecture)  # last, because it reads every library of the tree
    return [(tree.owner(entry.path), entry) for entry in join_hard_links(iter(tree))]


def environment_entries(environment: Environment) -> list[Entry]:
    """List the entries of an empty virtual environment, as `python3 -m venv --without-pip` makes it."""
    root, version = environment.venv, environment.python
    config = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    links = {
        f"{root}/bin/python": f"/usr/bin/python{version}",
        f"{root}/bin/python3": "python",
        f"{root}/bin/python{version}": "python",
        f"{root}/lib64": "lib",
    }
    return [
        *(Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=links[path]) for path in links),
        Entry(ImagePath(environment.site), EntryKind.DIRECTORY, 0o755),
        Entry(ImagePath(f"{root}/pyvenv.cfg"), EntryKind.FILE, 0o644, Bytes(config.encode())),
    ]


def _unpack_all(
    debs: Sequence[tuple[DebPackage, Path]], architecture: str, scratch: Path
) -> list[tuple[Deb, Unpacked]]:
    """Decompress on all cores (decompressors release the GIL), and return the packages sorted by name."""

    def unpacked(package: tuple[DebPackage, Path]) -> tuple[Deb, Unpacked]:
        deb = open_deb(*package, scratch)
        return deb, unpack(deb, architecture)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(unpacked, sorted(debs, key=lambda package: package[0].name)))
