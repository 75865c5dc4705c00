"""No page names a command, option, setting, file, column or version that does not exist."""

import ast
import re
import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from imagefactory.project.matrix import load_matrix
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.console import NAMESPACE, PAGES, in_prose, parse

DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))
WRITTEN = [*PAGES, *DECISIONS, REPOSITORY / "data" / "advice.yaml"]
EVERY_PAGE = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(REPOSITORY)))

# What belongs to somebody else's program, or is made on a user's machine.
OTHERS_OPTIONS = frozenset({
    *("--device", "--entrypoint", "--gpus", "--ipc", "--network", "--name", "--restart", "--ulimit"),  # docker run
    *("--profile", "--ephemeral", "--require-hashes"),  # docker compose, GitHub's runner, uv
    *("--all-files", "--hook-stage"),  # pre-commit
    "--node-ip",  # k3s
})  # fmt: skip
OTHERS_VARIABLES = frozenset({
    *("COMPOSE_PROFILES", "HTTPS_PROXY", "LD_DEBUG", "PIP_FIND_LINKS", "ANTHROPIC_MODEL"),
    "JOB_COMPLETION_INDEX",  # Kubernetes
    *("NCCL_ALGO", "NCCL_IB_MERGE_NICS", "NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_NET_PLUGIN"),  # docs/not-built.md
})  # fmt: skip
MADE_FILES = frozenset({
    *("compose.yaml", "config.yaml", "config.toml", "mod.yaml", "record.json", "setup-cluster.sh", "run.sh"),
    "backend.yaml",
    *("settings.json", "model.json", "index.json", "PAGE.json", "imagefactory-slim.json", "imagefactory.json"),
    *("locks/companions.toml", "keys/signing.pub", "keys/*.pub", "data/results", "DATE.md"),
})  # fmt: skip
MISTAKES = frozenset({"VLLM_API_KEYS", "SGLANG_API_KEY"})  # docs/serving.md: names that containers refuse
NO_VERSIONS = frozenset({"0.18", "0.33.0"})  # an example of a mistake, and of the next release
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_VARIABLE = re.compile(r"(?<![\w./<-])[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9](?![\w/>-])|\b[A-Z][A-Z0-9_]+(?==)")
_PATH = re.compile(r"[\w.*<>{}-]+(?:/[\w.*<>{}-]+)*")
_FILE = re.compile(r"\.(?:py|toml|yaml|yml|json|md|sh|js|j2)$")


@cache
def tracked() -> frozenset[str]:
    """List the files of the checkout, as Git has them; those of an unpacked archive otherwise."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        found = (path.relative_to(REPOSITORY) for path in REPOSITORY.rglob("*") if path.is_file())
        return frozenset(str(path) for path in found if path.parts[0] not in {".venv", "build"})
    return frozenset(name for name in done.stdout.splitlines() if (REPOSITORY / name).exists())


@cache
def programs() -> str:
    """Join the texts that may introduce a name: the library, what ships, workflows, the matrix and recorded flags."""
    of_tests = ("tests/conftest.py", "tests/unit/test_fuzz.py")
    folders = ("imagefactory/", "images/", ".github/", ".ci/", *of_tests, "inv", "matrix.yaml")
    names = (name for name in tracked() if name.startswith(folders) or name.endswith("/flags.toml"))
    texts = ((REPOSITORY / name).read_bytes().decode("utf-8", "replace") for name in sorted(names))
    return "\n".join(texts)


@cache
def words_of_programs() -> frozenset[str]:
    return frozenset(re.findall(r"[\w-]+", programs()))


@cache
def own_options() -> frozenset[str]:
    contexts = NAMESPACE.to_contexts()
    return frozenset(flag for context in contexts for flag in [*context.flags, *context.inverse_flags])


def unknown_options(code: str) -> list[str]:
    """List the options in a piece of code that neither a command here nor a server has."""
    options = [
        option for option in _OPTION.findall(code) if not code.startswith(("docker ", "git ", "gh ", "nvidia-ctk "))
    ]
    known = own_options() | OTHERS_OPTIONS | {"--flag"}
    wrong = [option for option in options if option not in known | words_of_programs()]
    words = code.split()
    if options and words[0].lstrip("/.") != "inv" and words[0] in NAMESPACE.task_names:
        why = parse([word.strip("'\"[]") for word in words])
        wrong += [why] if why and not why.endswith("needs a value.") else []
    return wrong


def unknown_variables(code: str) -> list[str]:
    placeholders = {"NAME", "TAG"}
    names = set(_VARIABLE.findall(code)) - placeholders - OTHERS_VARIABLES - MISTAKES
    return sorted(name for name in names if name not in words_of_programs())


def unknown_files(page: Path, code: str) -> list[str]:
    """List what looks like a file of this checkout and is none; UPPER CASE and <…> stand for anything."""
    if not _PATH.fullmatch(code) or code in MADE_FILES or code.rpartition("/")[2] in MADE_FILES:
        return []
    tops = {name.partition("/")[0] for name in tracked() if "/" in name}
    pattern = re.sub(r"<[^>]*>|\b[A-Z]{3,}\b(?!\.)", "*", code).rstrip("/")
    if "/" in code and code.partition("/")[0] in tops:
        below = {pattern, f"{pattern}/*"}
    elif _FILE.search(code) and not code.startswith((".", "*", "~")):
        below = {f"*/{pattern}", pattern, f"{page.parent.relative_to(REPOSITORY)}/{pattern}"}
    else:
        return []
    return [] if any(fnmatch(name, shape) for name in tracked() for shape in below) else [code]


@EVERY_PAGE
def test_options_and_variables_on_a_page_exist(page: Path) -> None:
    wrong = {code: [*unknown_options(code), *unknown_variables(code)] for code in in_prose(page)}
    assert {code: names for code, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        *("--rebuilders", "verify --rebuilders 2", "publish --fat", "./inv run --lend", "`--set` and --settle"),
        *("FACTORY_SHARED_CACHE", "MAX_MODEL_LENGTH", "-e NODE=2", "FACTORY_GPU=yes FACTORY_GPUS=yes"),
    ],
)
def test_an_option_or_variable_that_does_not_exist_is_seen(code: str) -> None:
    assert [*unknown_options(code), *unknown_variables(code)] != []


@pytest.mark.parametrize(
    "code",
    [
        *("docs/house.md", "imagefactory/publish/gates.py", "locks/handed-on.toml", "tests/smoke/test_<level>.py"),
        *("images/replay", "advise.yaml", "rebuild.yml", "picker_python.js"),
    ],
)
def test_a_file_that_does_not_exist_is_seen(code: str) -> None:
    assert unknown_files(REPOSITORY / "README.md", code) == [code]


@EVERY_PAGE
def test_files_on_a_page_exist(page: Path) -> None:
    assert sorted({name for code in in_prose(page) for name in unknown_files(page, code)}) == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        place = (page.parent / name) if name else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(link)
    assert broken == []


def test_versions_of_targets_on_pages_are_in_the_matrix() -> None:
    versions = {*load_matrix(REPOSITORY / "matrix.yaml").versions, *NO_VERSIONS}
    named = {
        (page.name, version)
        for page in PAGES
        for version in re.findall(r"[a-z0-9]@(0\.\d+(?:\.\d+)?(?:-[a-z]\w+)?)", page.read_text("utf-8"))
    }
    assert sorted((page, version) for page, version in named if version not in versions) == []


COLUMNS = {
    ("models.md", "column"): "docs/models.md",
    ("serving.md", "check"): "images/serve/program/checks.py",
    ("serving.md", "step"): "images/serve/program/timeline.py",
    ("benchmarks.md", "figure"): "imagefactory/cli/show/bench_tables.py",
    ("benchmarks.md", "profile"): "data/profiles.yaml",
    ("answers.md", "figure"): "imagefactory/cli/show/bench_tables.py",
    ("supply-chain.md", "check"): "imagefactory/publish/attest/image_check.py",
    ("smoke.md", "level"): "imagefactory/check/smoke/record.py",
    ("automation.md", "workflow"): ".github/workflows/{}.yml",
}
"""Tables that explain the columns or rows that a program prints, and where the program has their names."""


def first_column(page: str, head: str) -> list[str]:
    """Return the names in the first column of a page's table."""
    text = (REPOSITORY / "docs" / page).read_text("utf-8")
    found = re.search(rf"^\| {re.escape(head)} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found, f"{page} has no table of {head}"
    cells = [re.split(r"(?<!\\)\|", row)[1] for row in found[1].splitlines()]
    return [name.strip(" `").replace("\\|", "|") for cell in cells for name in cell.split(", ")]


def printed(place: str) -> set[str]:
    """Return the names that a program or a table has: texts of Python, keys of YAML, columns of a generated table."""
    names: set[str] = set()
    for name in tracked():
        if name != place and not name.startswith(f"{place}/"):
            continue
        text = (REPOSITORY / name).read_text("utf-8")
        if name.endswith(".py"):
            constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            words = [part for text in constants if isinstance(text, str) for part in text.split(", ")]
            names |= {word.strip(" >;:.") for word in words}
        elif name.endswith(".yaml"):
            names |= set(re.findall(r"^ *(?:- )?(?:name: )?([\w-]+):?", text, re.MULTILINE))
        else:
            names |= {
                cell.strip() for row in re.findall(r"^\| tag \|.*$", text, re.MULTILINE) for cell in row.split("|")
            }
    return names


@pytest.mark.parametrize(("page", "head"), COLUMNS, ids=str)
def test_columns_and_rows_that_a_page_explains_are_printed(page: str, head: str) -> None:
    place, names = COLUMNS[page, head], first_column(page, head)
    assert names
    if "{}" in place:
        assert [name for name in names if place.format(name) not in tracked()] == []
        return
    known = printed(place)
    assert [name for name in names if not any(re.match(rf"{re.escape(name)}( p\d+)?$", text) for text in known)] == []
