"""Examines the image without starting it."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.parser import HeaderParser
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from imagefactory.assemble.applied_mods import RECORD_OF_MODS, image_path
from imagefactory.check.smoke.contents import Contents
from imagefactory.check.smoke.levels.image_files import (
    OWN_FILES,
    brings_nothing,
    checked_files,
    compiled_sources,
    hash_of_source,
    is_gpu_library,
    is_text,
    recorded_hash,
    resolved,
    site_of,
    some,
    source_of,
)
from imagefactory.check.smoke.subject import Subject, plan_of
from imagefactory.errors import FactoryError
from imagefactory.lock.auditing import GpuLibrary, judge_libraries
from imagefactory.oci.format import MTIME, VENV
from imagefactory.oci.image import Blob
from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan, WheelLayer, make_image
from imagefactory.plan.serve.image_paths import BY_NAME, CACHES, PROGRAM
from imagefactory.project.counterparts import has_gpu
from imagefactory.project.licences import DECLARED_ELSEWHERE
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, digest_of
from images.shipped.mods.checks import failing
from images.shipped.mods.manifest import Mod

Applies = Callable[[bool, str], None]
SHARED_FOLDERS = {"tmp", "var/tmp", "run/lock", CACHES.lstrip("/")}
"""World-writable folders with the sticky bit."""
PRIVILEGED = {
    *(f"usr/bin/{name}" for name in ("chage", "chfn", "chsh", "expiry", "gpasswd", "newgrp", "passwd", "su")),
    *("usr/sbin/unix_chkpwd", "var/local", "var/mail"),
}
"""Debian's own setuid and setgid programs and folders."""
SECRET_NAMES = re.compile(
    r"(^|/)(\.env|[._]netrc|\.pypirc|\.npmrc|\.git-credentials|\.htpasswd|id_(rsa|dsa|ecdsa|ed25519)|"
    r"[^/]*\.(p12|pfx|keystore|jks|kdbx))$|(^|/)\.(docker|aws|ssh|gnupg|kube|azure)(/|$)|(^|/)\.git/"
)
SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{40}|"
    rb"\bhf_[A-Za-z0-9]{30}|\bAKIA[0-9A-Z]{16}\b|\bsk-[A-Za-z0-9_-]{32}|\bxox[bpars]-[A-Za-z0-9-]{10}|://[^/\s:@\"']+:[^/\s:@\"']+@"
)
SECRET_VARIABLES = re.compile(r"(?i)(^|_)(token|secret|passw(or)?d|credentials?|api_?key)$")
LICENCE_FILE = re.compile(r"(?i)(licen[cs]e|copying|notice)")
NO_LICENCE_SAID = {"", "unknown"}


@pytest.fixture(scope="session")
def layout(subject: Subject) -> Layout:
    assert subject.layout is not None  # the assignment of this level has one
    return Layout(subject.layout)


@pytest.fixture(scope="session")
def contents(project: Project, subject: Subject, layout: Layout) -> Iterator[Contents]:
    """The image; all tests judge what one pass over each layer found."""
    plan = None
    with suppress(FactoryError):  # the tests that need the plan report it
        plan = plan_of(project, subject)
    checked = checked_files(plan) if plan else set()
    is_source = compiled_sources(project.root, plan) if plan else lambda _: False
    on_gpu = has_gpu(project.matrix, subject.cell.arch)

    def keep(path: str) -> bool:
        return is_text(path) or path in checked or is_source(path) or (on_gpu and is_gpu_library(path))

    with project.store.scratch() as scratch:
        contents = Contents(layout, project.store, keep, scratch)
        yield contents
        contents.close()


@pytest.fixture(scope="session")
def mods(plan: Plan) -> list[Mod]:
    return plan.mods


@pytest.fixture(scope="session")
def site(plan: Plan) -> str:
    return site_of(plan)


@pytest.fixture(scope="session")
def own_files(contents: Contents) -> list[str]:
    """The files of the factory itself."""
    return [path for path in contents.files if path.startswith(OWN_FILES)]


@pytest.fixture(scope="session")
def texts(contents: Contents, plan: Plan) -> dict[str, bytes]:
    """Every file whose content a test needs."""
    texts = [*filter(is_text, contents.files)]
    sources = [source_of(path) for path in texts if path.endswith(".pyc")]
    return contents.read([*texts, *filter(contents.files.__contains__, sources), *checked_files(plan)])


def test_every_blob_matches_its_digest(layout: Layout, contents: Contents) -> None:
    """The image is damaged on this disk and cannot be pushed."""
    documents = (layout.manifest_digest(), layout.config_digest())
    hashes = {digest: digest_of(layout.blob(digest).read_bytes()) for digest in documents}
    hashes |= {digest: contents.layers[digest].digest for digest in layout.layer_digests()}
    for digest, actual in hashes.items():
        assert actual == digest, f"{digest} has the hash {actual or '(unreadable)'}"


def test_layers_unpack_to_what_the_configuration_promises(layout: Layout, contents: Contents) -> None:
    """Container engines refuse the image, because a layer does not match the configuration."""
    for digest, promised in zip(layout.layer_digests(), layout.config()["rootfs"]["diff_ids"], strict=True):
        layer = contents.layers[digest]
        assert not layer.fault, f"the layer {digest} does not unpack: {layer.fault}"
        assert layer.diff_id == promised, f"the layer {digest} unpacks to {layer.diff_id}, not to {promised}"


def test_it_has_the_plan_of_this_checkout(plan: Plan, subject: Subject) -> None:
    """The image does not match the matrix, locks and mods of this checkout, so its tag would be wrong."""
    assert plan.key == subject.plan_key
    assert plan.cell == subject.cell


def test_configuration_and_labels_match_the_plan(plan: Plan, contents: Contents) -> None:
    """Labels, variables, user, entrypoint or health check are not as documented: `docker run` may not work."""
    diff_ids = contents.config["rootfs"]["diff_ids"]
    assert len(diff_ids) == len(plan.layers), f"{len(diff_ids)} layers; the plan has {len(plan.layers)}"
    # Of its layers a configuration names only the diff_ids.
    blobs = [Blob(diff_id=Digest(diff_id), digest=Digest(""), size=0, unpacked=0) for diff_id in diff_ids]
    planned = json.loads(make_image(plan, blobs).config)
    actual = dict(contents.config)
    built, expected = (
        {name: value for name, value in document["config"].items() if value}
        | {name: document.get(name) for name in ("architecture", "os", "created", "history")}
        for document in (actual, planned)
    )
    wrong = [
        f"{name} is {built.get(name)!r}, planned: {expected.get(name)!r}"
        for name in dict.fromkeys([*expected, *built])
        if built.get(name) != expected.get(name)
    ]
    assert not wrong, "; ".join(wrong)


def test_layers_match_their_records(plan: Plan, contents: Contents, project: Project, applies: Applies) -> None:
    """A layer differs from its record in locks/layers.toml: a rebuild elsewhere gives another image."""
    known_layers = KnownLayers(project.known_layers)
    on_record = [known_layers.blob(layer.key) for layer in plan.layers]
    applies(any(on_record), "none of its layers is on record")
    layers = zip(plan.layers, on_record, contents.config["rootfs"]["diff_ids"], strict=True)
    wrong = [f"{layer.kind} {layer.name}" for layer, blob, diff_id in layers if blob and blob.diff_id != diff_id]
    assert not wrong, f"not as recorded: {some(wrong)}"


def test_the_serve_program_is_complete(plan: Plan, contents: Contents) -> None:
    """The image does not start, or starts another program than the one that was tested."""
    [serve] = [layer for layer in plan.layers if layer.kind == "serve"]
    places = serve.settings.files
    planned = {places[entry.name]: entry.sha256 for entry in serve.inputs}
    actual = {path: contents.files[path].sha256 for path in planned if path in contents.files}
    wrong = [path for path, sha256 in planned.items() if actual.get(path) != sha256]
    assert not wrong, f"missing or changed: {some(wrong)}"
    assert contents.files[f"{PROGRAM}/__main__.py"].kind == "file"


def test_programs_to_start_exist(contents: Contents, texts: dict[str, bytes], subject: Subject) -> None:
    """The container ends at once: "no such file or directory"."""
    server = f"{VENV}/bin/{subject.cell.server}"
    for path in ("usr/bin/python3", f"{VENV}/bin/python", server, "bin/sh", "usr/bin/sleep", *BY_NAME):
        entry = resolved(contents.files, path)
        assert entry is not None, f"/{path} leads nowhere"
        assert int(entry.mode, 8) & 0o111 == 0o111, f"/{path} is not executable"
    first_line = texts[server].split(b"\n")[0].decode()
    assert first_line.startswith(f"#!/{VENV}/bin/python"), f"/{server} starts with {first_line}"


def test_permissions_are_no_wider_than_debians(contents: Contents) -> None:
    """Any user in the container can change programs or become root."""
    modes = {path: int(entry.mode, 8) for path, entry in contents.files.items() if entry.kind != "symlink"}
    writable = {path for path, mode in modes.items() if mode & 0o002}
    assert writable == SHARED_FOLDERS, f"writable for all: {some(sorted(writable ^ SHARED_FOLDERS))}"
    assert all(modes[path] & 0o1000 for path in writable), "a shared folder without its sticky bit"
    lending = {path for path, mode in modes.items() if mode & 0o6000}
    assert lending <= PRIVILEGED, f"setuid or setgid: {some(sorted(lending - PRIVILEGED))}"


def test_owners_and_times_are_fixed(contents: Contents) -> None:
    """The image contains traces of the build machine, so its digest differs elsewhere."""
    packages = {path: entry for path, entry in contents.files.items() if path.startswith(VENV)}
    strange = [path for path, entry in packages.items() if (entry.uid, entry.gid) != (0, 0)]
    assert not strange, f"not root's: {some(strange)}"
    assert {entry.uid for entry in contents.files.values()} <= {0, 1000}, "files of unknown users"
    dated = [path for path, entry in contents.files.items() if entry.mtime != MTIME]
    assert not dated, f"of another time: {some(dated)}"


def test_packages_are_complete(contents: Contents, texts: dict[str, bytes], site: str) -> None:
    """Files of a Python package are missing or changed: imports may fail later."""
    wrong: list[str] = []
    checked = 0
    for path, data in texts.items():
        if not path.endswith(".dist-info/RECORD"):
            continue
        for row in csv.reader(io.StringIO(data.decode())):
            entry = contents.files.get(normpath(join(site, row[0])))  # scripts are ../../../bin/NAME
            checked += 1
            if entry is None:
                wrong.append(f"{row[0]} is missing")
            # RECORD has no hash of itself (PEP 376).
            elif row[1].startswith("sha256=") and row[1] != recorded_hash(entry):
                wrong.append(f"{row[0]} has other bytes")
    assert checked > 0, "no package has a RECORD"
    assert not wrong, some(wrong)


def test_no_bytecode_is_stale(contents: Contents, texts: dict[str, bytes]) -> None:
    """Python runs old bytecode instead of the source, so a mod has no effect."""
    wrong: list[str] = []
    for path, data in texts.items():
        if not path.endswith(".pyc"):
            continue
        entry = contents.files.get(source_of(path))
        # PEP 552: after the magic number flags, then time and size of the source, or with flags its hash.
        flags, mtime, size = struct.unpack("<III", data[4:16])
        if entry is None:
            wrong.append(f"{path} has no source")
        elif flags == 0 and (mtime, size) != (entry.mtime, entry.size):
            wrong.append(f"{path} is older than its source")
        elif flags and data[8:16] != hash_of_source(data[:4], texts[source_of(path)]):
            wrong.append(f"{path} is compiled from another source")
    assert not wrong, some(wrong)


def test_bytecode_is_for_the_images_python(
    plan: Plan, contents: Contents, texts: dict[str, bytes], site: str, applies: Applies
) -> None:
    """Python compiles every module again at each first start of a container: it takes several times as long."""
    applies(any(layer.kind == "bytecode" for layer in plan.layers), "its base has no Python")
    tag = re.search(r"python3\.(\d+)", site)
    assert tag is not None
    compiled = [path for path in texts if path.endswith(".pyc")]
    wrong = [path for path in compiled if not path.endswith(f".cpython-3{tag[1]}.pyc")]
    assert not wrong, f"for another Python: {some(wrong)}"
    versions = {texts[path][:4] for path in compiled}
    assert len(versions) == 1, f"several versions of bytecode: {versions}"
    places = contents.files.keys()
    for needed in (f"{site}/{plan.cell.server}/__pycache__/__init__", f"{PROGRAM}/program/__pycache__/main"):
        assert f"{needed}.cpython-3{tag[1]}.pyc" in places, f"{needed}.*.pyc is missing"


def test_mods_are_recorded(contents: Contents, texts: dict[str, bytes], mods: list[Mod], site: str) -> None:
    """The image does not record its changes of vLLM, or the record is wrong."""
    label = contents.config["config"]["Labels"]["imagefactory.mods"]
    names = [mod.name for mod in mods]
    assert label == (" ".join(names) or "none"), f"the label says {label}"
    if not mods:
        assert RECORD_OF_MODS not in contents.files, "mods.json exists although there are no mods"
        return
    record = json.loads(texts[RECORD_OF_MODS])["mods"]
    assert [entry["name"] for entry in record] == names
    # Several mods may have changed a file; the last one counts.
    recorded = {path: hashes["after"] for entry in record for path, hashes in entry["files"].items()}
    wrong = [path for path, sha256 in recorded.items() if contents.files[image_path(path, site)].sha256 != sha256]
    assert not wrong, f"not as the mods left them: {some(wrong)}"


def test_checks_of_mods_pass(texts: dict[str, bytes], mods: list[Mod], site: str, applies: Applies) -> None:
    """A mod is not in the image's files: the model fails or is slow."""
    applies(bool(mods), "the image has no mods")
    wrong = []
    for mod in mods:
        for check in mod.manifest.variants[0].checks:
            data = texts.get(image_path(check.file, site))
            fault = failing(check, None if data is None else data.decode())
            if fault is not None:
                wrong.append(f"{mod.name}: {check}: {fault}")
    assert not wrong, "; ".join(wrong)


def test_kernels_support_the_arch(
    project: Project,
    plan: Plan,
    contents: Contents,
    applies: Applies,
    record_property: Callable[[str, object], None],
) -> None:
    """vLLM crashes or computes garbage, because its code was compiled for another GPU."""
    applies(has_gpu(project.matrix, plan.arch), "the image is for CPUs")

    def unpacker(path: str) -> Callable[[Path], None]:
        return lambda target: contents.copy(path, target)

    libraries = [
        GpuLibrary(path.partition("/site-packages/")[2], f"file:{entry.sha256}", unpacker(path))
        for path, entry in contents.files.items()
        if entry.kind == "file" and is_gpu_library(path)
    ]
    verdicts = judge_libraries(project, libraries, plan.arch)
    assert verdicts, "the image has no GPU code at all"
    record_property("libraries", len(verdicts))
    wrong = [f"{verdict.library}: {verdict.why}" for verdict in verdicts if not verdict.passes]
    assert not wrong, "; ".join(wrong)


def test_it_contains_no_secrets(contents: Contents, texts: dict[str, bytes], own_files: list[str]) -> None:
    """Anyone who pulls the image gets credentials of its builder."""
    named = [path for path in contents.files if SECRET_NAMES.search(path)]
    assert not named, f"files with names of secrets: {some(named)}"
    variables = [variable.partition("=") for variable in contents.config["config"]["Env"]]
    set_ = [name for name, _, value in variables if value and SECRET_VARIABLES.search(name)]
    assert not set_, f"variables: {some(set_)}"
    holding = [path for path in own_files if SECRETS.search(texts.get(path, b""))]
    assert not holding, f"files with apparent keys: {some(holding)}"
    assert not SECRETS.search(json.dumps(dict(contents.config)).encode()), "the configuration"


def test_licences_are_included(contents: Contents, texts: dict[str, bytes], plan: Plan) -> None:
    """The image must not be redistributed: it lacks the text and the name of a package's licence."""
    assert plan.config.labels["org.opencontainers.image.licenses"]
    # The second name of a package has no licence of its own.
    second = [layer.settings.second_name for layer in plan.layers if isinstance(layer, WheelLayer)]
    second_names = {f"{entry.name}-{entry.version}.dist-info" for entry in second if entry}
    split = [path.partition(".dist-info/") for path in contents.files]
    with_texts = {f"{name}.dist-info" for name, _, file in split if LICENCE_FILE.search(file)}
    wrong = []
    for path, data in texts.items():
        folder = dirname(path)
        if not path.endswith(".dist-info/METADATA") or folder.rpartition("/")[2] in second_names:
            continue
        if brings_nothing(texts.get(f"{folder}/RECORD", b"")):
            continue
        metadata = HeaderParser().parsestr(data.decode())
        licences = [str(metadata.get(field, "")) for field in ("License-Expression", "License")]
        licences += [value for value in metadata.get_all("Classifier", []) if value.startswith("License ::")]
        # The image has the text of a licence that is declared elsewhere from Debian.
        elsewhere = DECLARED_ELSEWHERE.get(str(metadata["Name"]), "unknown")
        if f"usr/share/common-licenses/{elsewhere}" in contents.files:
            continue
        if folder not in with_texts and all(value.strip().lower() in NO_LICENCE_SAID for value in licences):
            wrong.append(folder.rpartition("/")[2])
    for path in contents.files:
        # A package of which several architectures can be installed has its own in the name: NAME:ARCH.list.
        package = re.fullmatch(r"var/lib/dpkg/info/([^:/]+)(?::[^/]+)?\.list", path)
        if package and resolved(contents.files, f"usr/share/doc/{package[1]}/copyright") is None:
            wrong.append(package[1])
    assert not wrong, f"no licence: {some(wrong, 20)}"
