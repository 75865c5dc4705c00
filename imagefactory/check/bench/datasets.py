"""Data sets of others as prompts, from files that the user has: nothing is fetched."""

from pathlib import Path
from typing import Final

from pydantic import RootModel

from imagefactory.errors import InputError
from imagefactory.project.data import load_data
from imagefactory.project.locks.files import Frozen
from imagefactory.store.digests import parse_json
from imagefactory.store.paths import expand_home, open_regular

SUFFIX: Final = ".jsonl"
_LARGEST: Final = 64 * 1024 * 1024  # bytes of a file, of which a few hundred prompts are taken


class Dataset(Frozen):
    """A data set: where it comes from, and how its rows become prompts."""

    source: str = ""
    field: str = "prompt"
    prompt: str = "{}"

    def text_of(self, row: object) -> str:
        """Return the prompt of a row; raise ValueError if there is none."""
        if not isinstance(row, dict):
            raise ValueError("it is no object")  # noqa: TRY004 - a file's fault
        template = "{}" if "turns" in row else self.prompt
        value = row.get("turns", row.get(self.field))
        text = value[0] if isinstance(value, list) and value else value
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"it has no text in `turns` or `{self.field}`")
        return template.replace("{}", text, 1)


class Datasets(RootModel[dict[str, Dataset]]):
    """Those that have a name here."""


def load_datasets(root: Path) -> dict[str, Dataset]:
    return load_data(root, "datasets.yaml", Datasets).root


def read_dataset(root: Path, folder: Path, named: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the prompts of a data set: a file of JSON lines, or one in a folder by its name."""
    known = load_datasets(root)
    path = expand_home(named, "--dataset") if named not in known else folder / f"{named}{SUFFIX}"
    name = path.name.removesuffix(SUFFIX)
    dataset = known.get(name, Dataset())
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        write = f"from datasets import load_dataset; load_dataset({dataset.source}).to_json('{path}')"
        make = f"pip install datasets && mkdir -p {path.parent}"
        get = f'`{make}`, then `python3 -c "{write}"`. Or name' if dataset.source else "Name"
        fix = f"{get} a file of JSON lines, or one of {', '.join(known)}."
        why = f"Nothing is fetched without asking, and the file cannot be read: {error.strerror}."
        raise InputError("bad-data", f"There is no data set {name}.", where=path, why=why, fix=fix) from None
    if len(content) > _LARGEST:
        raise _unusable(path, "It is larger than 64 MiB.")
    return name, _prompts(path, dataset, content)


def _prompts(path: Path, dataset: Dataset, content: bytes) -> tuple[str, ...]:
    prompts = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                prompts.append(dataset.text_of(parse_json(line)))
            except ValueError as error:
                raise _unusable(path, f"Line {number}: {error}.") from None
    if not prompts:
        raise _unusable(path, "It has no rows.")
    return tuple(prompts)


def _unusable(path: Path, why: str) -> InputError:
    fix = "Name a file with one JSON object per line."
    return InputError("bad-data", f"{path.name} is not a data set.", where=path, why=why, fix=fix)
