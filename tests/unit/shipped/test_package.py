"""The package that ships is self-contained, and alone determines the layer's digest."""

import ast
import sys
from pathlib import Path

from imagefactory.plan.make import serve_layer
from imagefactory.plan.serve.image_paths import serve_files
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.unit.test_rooms import Modules

SHIPPED = "images.shipped"
IN_EVERY_ENVIRONMENT = {"packaging", "pydantic", "pydantic_core", "yaml"}
"""Requirements of vLLM itself."""


def test_every_shipped_module_is_used_in_an_image() -> None:
    imports = Modules(REPOSITORY, "images").imports
    needed, waiting = set[str](), [f"{SHIPPED}.mods.at_start"]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [other for other in imports[name] if other not in needed]
    packages = {parent for name in needed for parent in (name.rpartition(".")[0], SHIPPED)}
    assert {name for name in imports if name.startswith(SHIPPED)} == needed | packages


def test_shipped_modules_import_only_what_every_image_has() -> None:
    roots = set[str]()
    for path in (REPOSITORY / "images" / "shipped").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add(str(node.module).partition(".")[0])
    assert roots - sys.stdlib_module_names - IN_EVERY_ENVIRONMENT == {"images"}


def test_only_shipped_files_change_the_key_of_the_layer(factory_checkout: Checkout, tmp_path: Path) -> None:
    assert all(name.startswith("images/") for name in serve_files(factory_checkout.root))
    before = serve_layer(factory_checkout.root).key
    library = factory_checkout.root / "imagefactory"
    library.unlink()  # a link to the repository's own
    (tmp_path / "elsewhere").mkdir()
    library.symlink_to(tmp_path / "elsewhere")
    assert serve_layer(factory_checkout.root).key == before
    edited = factory_checkout.root / "images" / "shipped" / "mods" / "apply.py"
    edited.write_text(edited.read_text("utf-8") + "# a comment\n", "utf-8")
    assert serve_layer(factory_checkout.root).key != before
