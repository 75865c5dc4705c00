"""The empty virtual environment that wheels are installed into, as `python3 -m venv` would lay it out."""

from __future__ import annotations

from imagefactory.build.layers.wheel_layer import Environment
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath


def environment_entries(environment: Environment) -> list[Entry]:
    """Return the files, folders and links of an environment without pip."""
    root, version = environment.venv, environment.python
    config = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    return [
        _link(f"{root}/bin/python", f"/usr/bin/python{version}"),
        _link(f"{root}/bin/python3", "python"),
        _link(f"{root}/bin/python{version}", "python"),
        _link(f"{root}/lib64", "lib"),
        Entry(ImagePath(f"{root}/lib/python{version}/site-packages"), EntryKind.DIRECTORY, 0o755),
        Entry(ImagePath(f"{root}/pyvenv.cfg"), EntryKind.FILE, 0o644, Bytes(config.encode())),
    ]


def _link(path: str, target: str) -> Entry:
    return Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target)
