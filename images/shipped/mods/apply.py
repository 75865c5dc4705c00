"""Applies mods exactly, in a fixed order, and verifies all their checks in the final tree."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from images.shipped.errors import ModError
from images.shipped.hashing import Sha256, sha256_of
from images.shipped.mods.checks import failing, syntax_fault
from images.shipped.mods.edits import Texts, apply_spans, locate, refuse_overlaps
from images.shipped.mods.manifest import IMAGE_FILES, Mod, Variant, changed_paths, folders_above

Reader = Callable[[str], str | None]  # returns the original text of a file; None if there is none


@dataclass(frozen=True)
class Applied:
    """The result of applying a mod."""

    mod: Mod
    variant: Variant
    files: dict[str, str]
    before: dict[str, Sha256 | None]  # the hash of each file before this mod; None if the mod added it

    @property
    def added(self) -> list[str]:
        return [path for path, before in self.before.items() if before is None]

    def record(self) -> dict[str, object]:
        return {
            "name": self.mod.name,
            "versions": self.variant.versions,
            "licence": self.mod.manifest.licence,
            "distribution": self.mod.manifest.distribution,
            "digest": self.mod.digest(self.variant),
            "files": {
                path: {"before": self.before[path], "after": sha256_of(text.encode())}
                for path, text in sorted(self.files.items())
            },
        }


def apply_mods(chosen: Iterable[tuple[Mod, Variant]], read: Reader) -> list[Applied]:
    """Apply mods to a tree; return the result of each, sorted by name.

    All are located in the original text, so their order does not matter.
    """
    chosen = sorted(chosen, key=lambda pair: pair[0].name)
    texts: dict[str, str | None] = {
        path: read(path)
        for _, variant in chosen
        for path in (*variant.paths, *(check.file for check in variant.checks))
    }
    spans = [span for mod, variant in chosen for span in locate(mod, variant, texts)]
    refuse_overlaps(spans)
    for mod, variant in chosen:
        _refuse_redundant(mod, variant, texts)
    original, done = dict(texts), set[str]()
    results: list[Applied] = []
    for mod, variant in chosen:
        done.add(mod.name)
        files = {
            path: apply_spans(original[path] or "", [span for span in spans if span.path == path and span.mod in done])
            for path in variant.paths
        }
        _refuse_broken(mod, variant, files)
        before = {path: None if (text := texts[path]) is None else sha256_of(text.encode()) for path in files}
        results.append(Applied(mod, variant, files, before))
        texts |= files
    # In the final tree, since a later mod must not undo an earlier one.
    for result in results:
        for index, check in enumerate(result.variant.checks):
            fault = failing(check, texts[check.file])
            if fault is not None:
                raise ModError(
                    "check-failed",
                    f"A check of the mod {result.mod.label(result.variant)} does not hold.",
                    where=result.mod.where_in(result.variant, "checks", index),
                    why=f"{check}: {fault}.",
                    fix="Correct the change or the check; the mod is not applied.",
                )
        _refuse_misplaced(result, texts, read)
    return results


def _module(path: str) -> str | None:
    """Return the path of a module without what tells its kinds apart: Python imports one of them."""
    folder, _, name = path.rpartition("/")
    stem, _, kind = name.partition(".")
    if kind != "py" and not f".{kind}".endswith(".so"):
        return None
    return folder if stem == "__init__" else f"{folder}/{stem}"


def refuse_taken(mod: Mod, variant: Variant, added: Iterable[str], owner: str, owned: Iterable[str]) -> None:
    """Refuse a mod that adds what would hide a file of a distribution, or be below one."""
    files = set(added)
    folders = {folder for path in files for folder in folders_above(path)}
    modules = {_module(path) for path in files} - {None}
    for path in owned if files else ():
        hidden = path in files or path in folders or _module(path) in modules
        if hidden or not files.isdisjoint(folders_above(path)):
            raise misplaced(mod, variant, path, f"{owner} installs it.", "taken-path")


def misplaced(mod: Mod, variant: Variant, path: str, why: str, name: str = "bad-mod-path") -> ModError:
    return ModError(
        name,
        f"The mod {mod.label(variant)} may not add, hide or change {path}.",
        where=mod.where_in(variant, "changes"),
        why=why,
        fix=f"The mod's author: add files inside a package of {mod.manifest.distribution}, or below {IMAGE_FILES}.",
    )


def _refuse_misplaced(applied: Applied, texts: Texts, read: Reader) -> None:
    """Refuse a new file that is below another file, or in no package of the distribution."""
    mod, variant = applied.mod, applied.variant
    for path in applied.added:
        folders = folders_above(path)
        for folder in folders:
            if texts.get(folder) is not None or read(folder) is not None:
                raise misplaced(mod, variant, path, f"{folder} is a file.", "taken-path")
        module = _module(path)
        for other in {f"{module}.py", f"{module}/__init__.py"} - {path} if module else ():
            if texts.get(other) is not None or read(other) is not None:
                raise misplaced(mod, variant, path, f"{other} is the module of that name.", "taken-path")
        if path.startswith(IMAGE_FILES) or variant.stage != "installed":
            continue
        if all(read(f"{folder}/__init__.py") is None for folder in folders):
            why = f"It is in no package of {mod.manifest.distribution}: no folder above has an __init__.py."
            raise misplaced(mod, variant, path, why)


def _refuse_redundant(mod: Mod, variant: Variant, texts: Texts) -> None:
    if all(failing(check, texts[check.file]) is None for check in variant.checks):
        raise ModError(
            "check-failed",
            f"The checks of the mod {mod.label(variant)} hold without it.",
            where=mod.where_in(variant, "checks"),
            why="Either this version has the change, or the checks do not test it.",
            fix="Set `upstreamed_in`, or add a check that fails without the change.",
        )


def _refuse_broken(mod: Mod, variant: Variant, files: dict[str, str]) -> None:
    for path, text in files.items():
        fault = syntax_fault(path, text)
        if fault is not None:
            index = next(index for index, change in enumerate(variant.changes) if path in changed_paths(change))
            raise ModError(
                "broken-syntax",
                f"The mod {mod.label(variant)} breaks {path}.",
                where=mod.where_in(variant, "changes", index),
                why=f"It does not compile: {fault}.",
                fix="Correct the inserted text and its indentation.",
            )
