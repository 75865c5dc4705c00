"""mod.yaml is parsed strictly; errors name the mod, the file and the line."""

import io
import json
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from packaging.version import Version

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.oci.tar import END, header
from images.shipped.mods.load import load_mod, load_mods
from images.shipped.mods.manifest import IMAGE_FILES, Mod, path_fault
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, make_mod, manifest, write_mod

GOOD = """\
name: good
summary: Makes something better for somebody
why: https://git.example/issues/1
licence: Apache-2.0
distribution: vllm
needed_when:
  - {arch: gb10}
upstreamed_in: "2.0"
not_needed:
  - {versions: "<1", reason: it came with 1.0}
variants:
  - versions: ">=1,<1.5"
    changes:
      - edit: vllm/one.py
        anchor: |
          ONE = 1
        after: |
          TWO = 2
    checks:
      - {file: vllm/one.py, contains: TWO}
  - versions: ">=1.5,<2"
    changes:
      - patch: files/two.diff
        files: [vllm/two.py]
    checks:
      - {file: vllm/two.py, class: Two, base: One}
  - versions: ">=1,<2"
    stage: source
    changes:
      - add: csrc/three.h
        source: files/three.h
    checks:
      - {file: csrc/three.h, contains: three}
"""


def written(folder: Path, text: str) -> Path:
    """Write the folder of the mod with another mod.yaml."""
    mod = folder / "good"
    (mod / "files").mkdir(parents=True)
    (mod / "files" / "two.diff").write_text("")
    (mod / "files" / "three.h").write_text("int three;\n")
    (mod / "mod.yaml").write_text(text)
    return mod


def test_a_valid_mod_is_loaded(tmp_path: Path) -> None:
    mod = load_mod(written(tmp_path, GOOD))
    assert [variant.versions for variant in mod.manifest.variants] == [">=1,<1.5", ">=1.5,<2", ">=1,<2"]
    assert mod.variant(Version("1.2")) is mod.manifest.variants[0]
    assert mod.variant(Version("1.5")) is mod.manifest.variants[1]
    assert mod.variant(Version("1.5"), "source") is mod.manifest.variants[2]
    assert mod.variant(Version("2.0")) is None
    assert mod.is_upstream(Version("2.1"))
    assert mod.reason_not_needed(Version("0.9")) == "it came with 1.0"
    assert mod.where_in(mod.manifest.variants[0], "changes", 0) == "mods/good/mod.yaml:14"


@pytest.mark.parametrize(
    ("old", "new", "kind", "line", "said"),
    [
        ("    changes:\n      - edit", "    chnages:\n      - edit", "unknown-key", 13, "Did you mean changes or"),
        ("class: Two, base: One", "clas: Two, base: One", "unknown-key", 26, "Did you mean class or"),
        ("licence: Apache-2.0\n", "", "bad-licence", 1, "has no valid licence"),
        ("licence: Apache-2.0", "licence: free, as in beer", "bad-licence", 4, "SPDX"),
        ("edit: vllm/one.py", "edit: ../one.py", "forbidden-path", 14, "outside the distribution"),
        ("edit: vllm/one.py", f"edit: {IMAGE_FILES}../x", "forbidden-path", 14, "outside"),
        ("edit: vllm/one.py", "edit: vllm-1.dist-info/RECORD", "forbidden-path", 14, "written by the factory"),
        ("source: files/three.h", "source: ../x.h", "forbidden-path", 31, "outside"),
        ('">=1,<1.5"', '">=1,,<=>"', "bad-mod-versions", 12, "is not a version range"),
        ('">=1,<1.5"', f'">={"9" * 5000}"', "bad-mod-versions", 12, "is not a version range"),
        ('upstreamed_in: "2.0"', f'upstreamed_in: "{"9" * 5000}"', "bad-mod-versions", 8, "is not a version"),
        ('">=1,<1.5"', '">=1.5,<1"', "bad-mod-versions", 12, "matches no version"),
        ('">=1,<1.5"', '""', "bad-mod-versions", 12, "matches every version"),
        ('">=1,<1.5"', '">=1,<1.6"', "bad-mod-versions", 12, "two statements about 1.5"),
        ('">=1,<1.5"', '"<1.5"', "bad-mod-versions", 12, "not needed for '<1'"),
        ("edit: vllm/one.py", "script: ./patch.sh", "bad-mod", 14, "`edit` (with `anchor`)"),
        ("        after: |\n          TWO = 2\n", "", "bad-mod", 14, "exactly one of `before`"),
        ("{file: vllm/one.py, contains: TWO}", "{file: vllm/one.py}", "bad-mod", 20, "exactly one of"),
        ("class: Two, base: One", "base: One", "bad-mod", 26, "`base` needs `class`"),
        ("contains: TWO", "function: f, returns: 1 +", "bad-mod", 20, "is not Python"),
        ("name: good", "name: better", "bad-mod", 1, "is named better"),
        ("files/three.h\n", "files/four.h\n", "bad-mod", 29, "names an unusable file"),
        ("name: good\n", "name: good\nname: bad\n", "duplicate-key", 2, "appears twice"),
        ("name: good", "name: [good", "bad-yaml", 2, "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, *, kind: str, line: int, said: str
) -> None:
    assert GOOD.count(old) == 1
    folder = written(tmp_path, GOOD.replace(old, new))
    with raises(kind) as caught:
        load_mod(folder)
    assert said in str(caught.value)
    assert caught.value.where == f"mods/good/mod.yaml:{line}"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (".wh.torch", "would delete files of other layers"),
        (f"{IMAGE_FILES}.wh.x", "would delete files of other layers"),
        ("vllm/__init__.py\0.txt", "cannot be printed"),
        ("vllm/\u202eyp.x", "cannot be printed"),
        (f"vllm/{'x' * 256}", "name that is too long"),
        ("vllm/evil.pth", "would run whenever Python starts"),
        ("vllm/envs.abi3.so", "would run in place of a source"),
        ("vllm/envs.pyc", "would run in place of a source"),
        ("vllm/__pycache__/envs.cpython-313.pyc", "would run in place of a source"),
        ("sitecustomize.py", "would run whenever Python starts"),
        ("vllm-1.5.dist-info/entry_points.txt", "outside the distribution's packages"),
    ],
)
def test_a_path_that_no_mod_may_bring_is_refused(tmp_path: Path, path: str, said: str) -> None:
    data = manifest("m", {"add": path, "source": "x"}, checks=[has("vllm/x.py", "x")])
    with raises("bad-mod-path" if "packages" in said else "forbidden-path") as caught:
        load_mod(write_mod(tmp_path, data, {"x": "x"}).parent)
    assert said in caught.value.why
    assert caught.value.where.startswith("mods/m/mod.yaml:")


@given(path=st.text(st.characters() | st.sampled_from("/.\0\n"), min_size=1, max_size=300))
@example(path="vllm/__init__.py\0.txt")
@example(path=f"vllm/{'ä' * 100}/x")
def test_a_path_that_a_mod_may_bring_is_in_the_layer_as_it_is(path: str) -> None:
    assume(path_fault(path) is None)
    layer = header(Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(b""))) + END
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        [member] = tar.getmembers()
    assert (member.name, member.isfile()) == (path, True)
    assert not any(part.startswith(".wh.") or part == ".." for part in PurePosixPath(member.name).parts)


def test_a_path_below_another_file_of_the_mod_is_refused(tmp_path: Path) -> None:
    files = [{"add": path, "source": "x"} for path in ("vllm/new.py/below.py", "vllm/new.py")]
    data = manifest("m", *files, checks=[has("vllm/new.py", "x")])
    with raises("taken-path", match="not allowed") as caught:
        load_mod(write_mod(tmp_path, data, {"x": "x"}).parent)
    assert "is below another file" in caught.value.why


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("env", name, "1") for name in ("LD_PRELOAD", "PYTHONPATH", "PATH", "VLLM_API_KEY", "HF_ENDPOINT")),
        ("env", "VLLM_ALLOW_INSECURE_SERIALIZATION", "1"),
        ("env", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "x"),
        ("env", "VLLM_MOE_X", "/x.so"),
        ("env", "VLLM_USE_MODELSCOPE", "1"),
        *(("flags", name, "x") for name in ("middleware", "api_key", "trust_remote_code", "model", "host")),
        ("flags", "chat_template", "/etc/passwd"),
        ("flags", "tool_parser_plugin", "/usr/share/imagefactory/mods/../x.py"),
        ("flags", "quantization", "x --api-key y"),
    ],
)
def test_a_mod_sets_only_what_is_listed(tmp_path: Path, kind: str, name: str, value: str) -> None:
    data = manifest("m", edit("vllm/x.py", "x", after="!"), checks=[has("vllm/x.py", "!")])
    with raises("bad-mod", match="settings of the mod m is wrong") as caught:
        load_mod(write_mod(tmp_path, data | {"settings": {kind: {name: value}}}).parent)
    assert name in caught.value.why
    good = {"env": {"VLLM_USE_DEEP_GEMM": "0"}, "flags": {"chat_template": f"{IMAGE_FILES}a.jinja"}}
    load_mod(write_mod(tmp_path, data | {"settings": good}).parent)


def test_an_expression_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    check = {"file": "vllm/x.py", "function": "f", "returns": "(" * 1000 + ")" * 1000}
    data = manifest("m", edit("vllm/x.py", "x", after="!"), checks=[check])
    with raises("bad-mod", match="is wrong"):
        load_mod(write_mod(tmp_path, data).parent)


@pytest.mark.parametrize("text", ["", "- a list\n", "just words\n"])
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with raises("bad-mod", match=r"mod\.yaml of the mod good is wrong"):
        load_mod(written(tmp_path, text))


def test_a_folder_without_mod_yaml_is_refused_and_a_missing_one_has_no_mods(tmp_path: Path) -> None:
    assert load_mods(tmp_path / "nothing") == {}
    (tmp_path / "half-done").mkdir()
    (tmp_path / ".hidden").mkdir()
    with raises("bad-mod", match=r"mods/half-done has no mod\.yaml"):
        load_mods(tmp_path)


def test_a_file_outside_the_folder_or_not_text_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = written(tmp_path, GOOD)
    (folder / "files" / "three.h").unlink()
    (folder / "files" / "three.h").symlink_to(secret)
    with raises("bad-mod", match="link to another folder"):
        load_mod(folder)
    (folder / "files" / "three.h").unlink()
    (folder / "files" / "three.h").write_bytes(b"\xff\xfe")
    with raises("bad-mod", match="must be a text file"):
        load_mod(folder)


def test_a_mod_survives_the_round_trip_through_a_plan(tmp_path: Path) -> None:
    mod = load_mod(written(tmp_path, GOOD))
    for variant in mod.manifest.variants:
        carried = Mod.from_data(json.loads(json.dumps(mod.data(variant))))
        assert carried.manifest.variants == [variant]
        for name in variant.own_files:
            assert carried.read(name) == mod.read(name)
        assert carried.digest(carried.manifest.variants[0]) == mod.digest(variant)


def test_a_digest_covers_the_effect_of_a_variant_but_not_prose_or_other_variants(tmp_path: Path) -> None:
    def digest(folder: str, **more: object) -> str:
        data = manifest("m", edit("vllm/x.py", "x", after="!"), checks=[has("vllm/x.py", "!")])
        mod, variant = make_mod(tmp_path / folder, data | more)
        return mod.digest(variant)

    same = digest("a")
    assert digest("b", summary="Says the same in other words", why="https://git.example/2") == same
    assert digest("h", settings={"env": {"VLLM_MOE_A": "b"}}) == same
    assert digest("c", needed_when=[{"arch": "gb10"}], upstreamed_in="3") == same
    assert digest("d", not_needed=[{"versions": "<1", "reason": "it is not there"}]) == same
    other = manifest("m", edit("vllm/y.py", "y", after="?"), checks=[has("vllm/y.py", "?")], versions=">=2")
    first = manifest("m", edit("vllm/x.py", "x", after="!"), checks=[has("vllm/x.py", "!")])
    assert digest("e", variants=[first["variants"][0], other["variants"][0]]) == same
    assert digest("f", licence="MIT") != same
    assert digest("g", variants=other["variants"]) != same
