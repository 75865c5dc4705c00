"""What the folder for downloaded models holds, and whether it suffices for a start without the hub.

A repository's files are known from the list that `download` leaves beside them, or from the one of newer versions of
huggingface_hub, whose format it has. Without a list, a snapshot counts as complete if it has what every model needs.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from . import checkpoint
from .command import option
from .findings import Start
from .image import Json
from .readings import SIZES

OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite")
"""Files that servers do not load where there are safetensors."""
COPIES = ("original/", "metal/")
"""Folders with the same weights for other programs."""
LISTS = ("imagefactory", "trees")
"""Folders of a repository with its lists of files: the program's own, and that of huggingface_hub."""
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_REPOSITORY = re.compile(r"(?<![\w./-])[\w.-]+/[\w.-]+(?![\w./-])")


class Wanted(NamedTuple):
    """A repository that a start needs."""

    role: str
    repo: str
    revision: str
    """Empty for the newest."""


class File(NamedTuple):
    """A file of a repository."""

    path: str
    size: int
    digest: str
    """Its SHA-256 or, if it is small, git's SHA-1; also its name among the cache's blobs."""


def wanted(start: Start) -> list[Wanted]:
    """List the repositories of the model and of its drafter; a folder is none."""
    drafter = start.command.speculative or {}
    found = [Wanted("model", start.command.model, start.command.revision)]
    if drafter.get("model") not in {None, "", start.command.model}:  # which may draft by itself
        found.append(Wanted("drafter", str(drafter["model"]), str(drafter.get("revision", ""))))
    return [want for want in found if not checkpoint.is_path(want.repo)]


def needed(files: Iterable[File], server: str) -> list[File]:
    """List the files that a server reads: every small one, and the weights in one format."""
    kept = [file for file in files if not file.path.startswith(COPIES)]
    if not any(file.path.endswith(".safetensors") for file in kept):
        return kept
    kept = [file for file in kept if not file.path.endswith(OTHER_FORMATS)]
    if server == "vllm" and any(map(_is_mistrals, kept)):
        # vLLM prefers Mistral's own format.
        kept = [file for file in kept if _is_mistrals(file) or not file.path.endswith(".safetensors")]
    return kept


def _is_mistrals(file: File) -> bool:
    return file.path.startswith("consolidated") and file.path.endswith(".safetensors")


def read_list(repository: Path, commit: str) -> tuple[list[File], bool] | None:
    """Return the files of a revision, and whether `download` has verified them; None if they are not known."""
    for folder in LISTS:
        value = checkpoint.read_json(repository / folder / f"{commit}.json")
        with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            if value is not None:
                return files_of(value["files"]), value.get("verified") is True
    return None


def files_of(entries: Mapping[str, Json]) -> list[File]:
    """Return the files of a list; raise ValueError if they could not be those of a repository."""
    files = [_file_of(path, entry) for path, entry in entries.items()]
    folders = {folder.as_posix() for file in files for folder in PurePosixPath(file.path).parents}
    if clash := folders & entries.keys():
        raise ValueError(f"{min(clash)} is a file and a folder")
    return files


def _file_of(path: str, entry: Json) -> File:
    file = File(path, int(entry["size"]), str(entry.get("lfs_sha256") or entry["blob_id"]))
    parts = path.split("/")
    # `isprintable` also refuses half a character, which no file system takes.
    if (
        {"", ".", ".."} & {*parts}
        or not path.isprintable()
        or file.size not in SIZES
        or not _DIGEST.fullmatch(file.digest)
    ):
        raise ValueError(path)
    return file


def has_size(path: Path, file: File) -> bool:
    with suppress(OSError):
        return path.stat().st_size == file.size
    return False


def commit_of(want: Wanted, cache: str) -> str:
    """Return the revision in the cache that a start would use; empty if there is none."""
    folder = checkpoint.locate(want.repo, want.revision, cache)
    return Path(folder).name if folder else ""


def offline_if_complete(start: Start, environment: Mapping[str, str]) -> Start:
    """Return the start, without the hub if the cache has all that the server would ask it for."""
    wants = wanted(start)
    if environment.get("HF_HUB_OFFLINE") or not wants or not all(_suffices(start, want) for want in wants):
        return start
    words = start.command.arguments
    others = set(_REPOSITORY.findall(" ".join(start.settings.extra))) - {want.repo for want in wants}
    if others or any(name.startswith("VLLM_LORA_RESOLVER") for name in environment):
        return start  # adapters, a tokenizer or the like may have to be fetched
    if option(words, "--served-model-name") is None:
        words = (*words, "--served-model-name", *start.command.served_names)  # vLLM would take the folder's
    remark = f"{' and '.join(want.repo for want in wants)} complete in {start.cache}: the hub is not asked"
    remarks = (*start.command.remarks, f"{remark} (HF_HUB_OFFLINE=0 asks it, `download` fetches the newest)")
    return start._replace(offline=True, command=start.command._replace(arguments=words, remarks=remarks))


def _suffices(start: Start, want: Wanted) -> bool:
    repository, commit = checkpoint.repository(start.cache, want.repo), commit_of(want, start.cache)
    listed, folder = read_list(repository, commit) if commit else None, repository / "snapshots" / commit
    if listed is None or not all(has_size(folder / file.path, file) for file in needed(listed[0], start.server.name)):
        return False
    configs = [checkpoint.read_json(folder / name) or {} for name in ("config.json", "tokenizer_config.json")]
    if any("--" in json.dumps(config.get("auto_map", "")) for config in configs):
        return False  # its code is in another repository
    if start.server.name == "vllm" and not start.image.at_least("0.32"):
        # It asks for the whole snapshot, which huggingface_hub compares with its list.
        tree = checkpoint.read_json(repository / "trees" / f"{commit}.json") or {}
        return all((folder / path).exists() for path in tree.get("files", ()))
    return True


def snapshots(start: Start) -> Iterator[Json]:
    """Describe the revisions in the cache; of one without a list of its files, what every model needs is looked for."""
    uses = {want.repo: (want.role, commit_of(want, start.cache)) for want in wanted(start)}
    for repository in sorted(Path(start.cache).glob("models--*")):
        repo = repository.name.removeprefix("models--").replace("--", "/")
        refs: dict[str, list[str]] = {}
        for ref in sorted(path for path in (repository / "refs").rglob("*") if path.is_file()):
            with suppress(OSError):
                commit = ref.read_text("utf-8", "replace").strip()
                refs.setdefault(commit, []).append(str(ref.relative_to(repository / "refs")))
        for folder in [folder for folder in sorted((repository / "snapshots").glob("*")) if folder.is_dir()]:
            commit = folder.name
            listed = read_list(repository, commit)
            if listed is None:
                missing = checkpoint.missing_files(str(folder), weights=True)
            else:
                files = needed(listed[0], start.server.name)
                missing = [file.path for file in files if not has_size(folder / file.path, file)]
            role, used = uses.get(repo, ("", ""))
            yield {
                "repo": repo,
                "revision": commit,
                "refs": refs.get(commit, []),
                "size": sum(_size(path) for path in folder.rglob("*") if path.is_file()),
                "listed": listed is not None,
                "verified": listed is not None and listed[1] and not missing,
                "missing": missing,
                "used_as": role if commit == used or not used else "",
                "complete": not missing,
            }


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def as_value(start: Start) -> Json:
    found = list(snapshots(start))
    there = {snapshot["used_as"] for snapshot in found}
    return {
        "cache": start.cache,
        "free": start.readings.disk_free,
        "snapshots": found,
        "unfinished": sum(map(_size, Path(start.cache).glob("models--*/blobs/*.incomplete"))),
        "absent": [want._asdict() for want in wanted(start) if want.role not in there],
    }


def as_text(start: Start) -> str:
    value = as_value(start)
    total = sum(entry["size"] for entry in value["snapshots"]) + value["unfinished"]
    lines = [f"{start.cache}: {amount(total)}" + (f", {amount(value['free'])} free" if value["free"] else "")]
    for entry in value["snapshots"]:
        refs = f" ({', '.join(entry['refs'])})" if entry["refs"] else ""
        name = f"{entry['repo']}{'@' if entry['revision'] else ''}{entry['revision'][:12]}{refs}"
        state = "complete" if entry["complete"] else f"incomplete, lacks {checkpoint.some(entry['missing'])}"
        state += ", verified" if entry["verified"] else ""
        lines.append(f"{entry['used_as'] or 'unused':8} {amount(entry['size']):>9}  {name}: {state}")
    absent = [f"{entry['role']:8} {'':9}  {entry['repo']}: not downloaded" for entry in value["absent"]]
    lines += [f"{line}; `IMAGE download` fetches it" for line in absent]
    if value["unfinished"]:
        lines.append(f"{'':8} {amount(value['unfinished']):>9}  of unfinished files, which `IMAGE download` resumes")
    if checkpoint.is_path(start.command.model):
        lines.append(f"{'model':8} {'':9}  {start.command.model}: a folder")
    return "\n".join(lines)


def amount(size: float) -> str:
    """Write a number of bytes for people."""
    unit, divisor = next((unit for unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= unit[1]), ("B", 1))
    return f"{size / divisor:.{0 if divisor == 1 else 1}f} {unit}"
