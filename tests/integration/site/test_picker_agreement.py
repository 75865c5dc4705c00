"""Judges random settings by the picker in a browser and by the serve program: the two must not disagree."""

from __future__ import annotations

import random
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
import ruamel.yaml
import yaml
from playwright.sync_api import Browser, Page

from imagefactory.launch.docker_run import Launch, compose, docker_run, shell_line
from imagefactory.launch.recipes import Format, recipe_document, recipe_text
from imagefactory.plan.serve.description import describe_cell, write_description
from imagefactory.project.cells import Cell
from imagefactory.project.servers.known import server_of
from imagefactory.site.choosing import USES, best_first, best_start
from imagefactory.site.rendering import SCRIPTS
from images.serve.program import checks, errors, readings
from images.serve.program import image as program_images
from images.serve.program import settings as program_settings
from images.serve.program.findings import Start
from images.serve.program.memory import KNOWN, Machine
from images.serve.program.servers.known import server_of as program_server
from tests.fixtures.picker import DIGEST, PROJECT, SITE, settings_document

FEW, MANY = 300, 3000
JUDGED = ("gpu", "kernels", "model", "drafter", "memory", "combination")
"""The checks that need nothing of the machine but its GPU and memory."""
CHOSEN = """({ order, questions }) => questions.map((question) =>
  ImagePicker.choose(pickerData, order, question).map(({ model, given, room }) => ({ model, given, room })))"""
TOGETHER = """(pairs) => pairs.map(({ images, machine }) => {
  const [one, two] = images.map((number) => ImagePicker.load(pickerData, pickerData.images[number]));
  return ImagePicker.together(one, two, machine)?.map(({ given }) => given) ?? null;
})"""
JUDGE = """(cases) => {
  const { load, judge } = ImagePicker;
  const images = pickerData.images.map((entry) => load(pickerData, entry));
  return cases.map(({ image, machine, environment }) => {
    const { refusal, command, findings } = judge(images[image], environment, machine);
    return refusal ? { refusal } : { words: command.words, remarks: command.remarks, findings };
  });
}"""

MACHINES: tuple[dict[str, Any], ...] = tuple(
    dict(zip(("title", "capability", "total", "free", "unified"), machine, strict=True))
    for machine in (
        ("GB10", "12.1", 128_525_242_368, 122_406_567_936, True),
        ("GB10", "12.1", 128_525_242_368, 64_000_000_000, True),
        ("RTX 5090", "12.0", 34_190_917_632, 33_200_000_000, False),
        ("B200", "10.0", 192_265_846_784, 191_000_000_000, False),
        ("H100", "9.0", 85_520_809_984, 84_900_000_000, False),
        ("RTX 3090", "8.6", 25_769_803_776, 1_000_000_000, False),
        ("no GPU", "", None, None, False),
    )
)
GOOD = {
    "whole": ("1", "7", "16", "64", "+8", "007", " 12 ", "1024", "16384", "32768", "131072", "262144"),
    "fraction": ("0.3", "0.5", "0.7", "0.8", ".85", "0.9", "9e-1", "0.95", "1", "1.0"),
    "switch": ("1", "0", "true", "OFF", "Yes", "no"),
    "counts": ('{"image": 0}', '{"image":2, "vidéo": 1}', '{"image": {"count": 1, "more": {}}}', "{}"),
    "list": ("memory", "gpu,memory", "port  disk,", "combination"),
}
TEXTS: dict[str, tuple[str, ...]] = {
    "DFLASH_DRAFTER": (
        *("off", "z-lab/gemma-4-31B-it-DFlash", "RedHatAI/gemma-4-31B-it-speculator.dflash"),
        *("some/drafter", "/models/drafter", "./here"),
    ),
    "SERVED_MODEL_NAME": ("chat", "one,two", "a:b", ",only,", "größe"),
    "TOOL_CALL_PARSER": ("hermes", "openai", "off", "qwen3_xml"),
    "REASONING_PARSER": ("deepseek_r1", "off"),
    "HOST": ("127.0.0.1", "::1", "localhost"),
}
BAD = {
    "whole": ("", "0", "-1", "1.5", "1e3", "1_000", "٣", "many", "99999999999999999999", "9" * 4301, "0x10"),
    "fraction": ("0", "-0.5", "1.01", "nan", "inf", "-Infinity", "half", "0,8", "1e", "0.000001", "."),
    "switch": ("2", "maybe", "-", "on off"),
    "counts": (
        *(
            '{"image": 1.0}',
            '{"image": -1}',
            '{"image": 1e2}',
            '{"image": true}',
            '{"image": null}',
            "[1]",
            "3",
        ),
        *('{"image": 9223372036854775808}', '{"image": "1"}', "{'image': 1}", '{"image": [1]}', "NaN"),
        '{"a.5": 1',
    ),
    "list": ("nothing", "memory,it's", "gpu;disk"),
    "text": ("two\nlines",),
    "choice": (
        *("nonsense", "it's", 'say "so"', 'it\'s "so"', "aut", "tab\there", "\U0001f600"),
        "\N{NO-BREAK SPACE}x\N{ZERO WIDTH SPACE}y",
    ),
}


@pytest.fixture(scope="module")
def page(browser: Browser, picker: dict[str, Any]) -> Iterator[Page]:
    """A page with the picker's scripts, and nothing to see."""
    page = browser.new_page()
    page.evaluate("(data) => { globalThis.pickerData = data; }", picker)
    for name in SCRIPTS["home.html"]:
        page.add_script_tag(path=SITE / "static" / f"{name}.js")
    yield page
    page.close()


@pytest.fixture(scope="module")
def programs(picker: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[program_images.Image]:
    """The images of the picker, as the serve program loads them."""
    folder, found = tmp_path_factory.mktemp("share"), []
    for image in picker["images"]:
        write_description(settings_document(picker, image), image["document"], folder)
        found.append(program_images.load(str(folder)))
    return found


def random_environment(
    source: random.Random, settings: list[Mapping[str, Any]], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return up to six settings; one in twenty is nothing that its setting accepts."""
    chosen = source.sample(settings, k=source.randint(0, 6))
    found = {str(setting["name"]): random_value(source, setting) for setting in chosen}
    if refused and source.random() < 0.05:
        found[source.choice(list(refused))] = source.choice(("1", "  "))
    return found


def random_value(source: random.Random, setting: Mapping[str, Any]) -> str:
    kind, choices = str(setting["kind"]), list(setting.get("choices", ()))
    if source.random() < 0.05 and kind in BAD:
        return source.choice(BAD[kind])
    if choices:
        word = str(source.choice(choices))
        misspelled = word[:-1] if len(word) > 1 else word
        return source.choice((*[word] * 14, word.upper(), misspelled))
    if kind == "whole" and source.random() < 0.3:
        return str(source.choice((setting["minimum"], setting["maximum"], source.randint(1, 300_000))))
    if kind == "fraction":
        return source.choice((*GOOD[kind], str(round(source.uniform(0.01, 1), 3))))
    return source.choice(GOOD.get(kind) or TEXTS.get(str(setting["name"]), ("text",)))


def random_cases(picker: dict[str, Any], count: int) -> list[dict[str, Any]]:
    source = random.Random(21)
    # The tiny model and one chat template are in images only.
    models = enumerate(image["document"]["model"] for image in picker["images"])
    own = [number for number, model in models if not model.startswith("/")]
    found = []
    for _ in range(count):
        number = source.choice(own)
        server = picker["servers"][picker["images"][number]["server"]]
        capability = picker["images"][number]["facts"]["capability"]
        same = [machine for machine in MACHINES if machine["capability"] == capability]
        offered = [setting for setting in server["settings"] if setting["name"] not in picker["not_offered"]]
        machine = source.choice([*MACHINES, *same * 3])
        environment = random_environment(source, offered, server["refused"])
        found.append({"image": number, "machine": machine, "environment": environment})
    return found


def judged_by_program(
    image: program_images.Image, machine: dict[str, Any], environment: dict[str, str]
) -> dict[str, Any]:
    """Judge a start as the container would, in the form of the picker's judgement."""
    own = (None, None) if machine["unified"] else (machine["total"], machine["free"])
    gpus = (readings.Gpu(machine["title"], machine["capability"], *own),) if machine["capability"] else ()
    found = readings.Readings(gpus, "580.95.05", machine["total"], machine["free"])
    server = program_server(image)
    try:
        settings = program_settings.read(image, environment)
        command = server.build(image, settings)
        start = Start(server, image, settings, command, found, "/nowhere", None)
        findings = [finding._asdict() for finding in checks.run(start, JUDGED)]
    except errors.StartError as error:
        names = ("what", "setting", "value", "allowed", "remedy")
        return {"refusal": {"error": error.name, **{name: getattr(error, name) for name in names}}}
    return {
        "words": list(command.arguments),
        "remarks": list(command.remarks),
        "findings": [finding for finding in findings if finding["setting"] != "CHAT_TEMPLATE"],
    }


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_picker_and_the_serve_program_agree_on_random_settings(
    page: Page, programs: list[program_images.Image], picker: dict[str, Any], count: int
) -> None:
    cases = random_cases(picker, count)
    in_browser = page.evaluate(JUDGE, cases)
    outcomes: Counter[str] = Counter()
    for case, judged in zip(cases, in_browser, strict=True):
        expected = judged_by_program(programs[case["image"]], case["machine"], case["environment"])
        if expected.get("refusal", {}).get("remedy", "").startswith("Did you mean"):
            del expected["refusal"]["remedy"], judged["refusal"]["remedy"]  # the picker offers the values
        assert judged == expected, case
        failed = [finding["name"] for finding in expected.get("findings", ()) if finding["result"] == "fail"]
        outcomes[expected["refusal"]["error"] if "refusal" in expected else (failed or ["accepted"])[0]] += 1
    # Most kinds of refusal were among them, all among many; and enough that was accepted.
    kinds = {"bad-value", "out-of-range", "contradiction", "memory", "gpu"}
    rare = {"not-in-this-server", "combination", "drafter"}
    assert set(outcomes) >= kinds | (rare if count == MANY else set()), outcomes
    assert outcomes["accepted"] > count // 10, outcomes


def random_questions(picker: dict[str, Any], count: int) -> list[dict[str, Any]]:
    source, found = random.Random(36), []
    machines = [machine for machine in picker["machines"] if machine["capability"]]
    for _ in range(count):
        machine = source.choice(machines)
        free = source.choice((machine["free"], machine["total"], source.randrange(machine["total"])))
        context = source.choice((0, 8192, 65_536, 131_072, source.randint(1, 1_100_000)))
        question = {"use": source.choice(USES), "context": context, "users": source.choice((1, 2, 4, 8, 16, 32, 300))}
        found.append({**question, "machine": {**machine, "free": free}})
    return found


@pytest.mark.parametrize("count", [FEW // 10, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_home_page_and_the_factory_choose_alike(
    page: Page,
    programs: list[program_images.Image],
    picker: dict[str, Any],
    choices: dict[str, Any],
    count: int,
) -> None:
    questions, order = random_questions(picker, count), choices["order"]
    places: Counter[int] = Counter()
    answers = page.evaluate(CHOSEN, {"order": order, "questions": questions})
    for question, answer in zip(questions, answers, strict=True):
        machine, users = question["machine"], question["users"]
        fits = {
            image["model"]: best_start(program, machine, question["context"], users)
            for image, program in zip(picker["images"], programs, strict=True)
            if image["machine"] == machine["name"] and image["default"] and image["model"] in order[question["use"]]
        }
        names = best_first([name for name in order[question["use"]] if name in fits], fits, users)
        expected = [{"model": name, "given": dict(fits[name].given), "room": fits[name].room} for name in names]
        assert answer == expected, question
        places.update(fits[name].place(users) for name in names)
    assert all(places[place] > count for place in range(3)), places


def test_two_images_that_are_said_to_run_together_do(
    page: Page, programs: list[program_images.Image], picker: dict[str, Any]
) -> None:
    source, outcomes = random.Random(2), Counter[str]()
    machine = next(machine for machine in picker["machines"] if machine["name"] == "gb10")
    own = [number for number, image in enumerate(picker["images"]) if image["machine"] == "gb10" and image["default"]]
    pairs = [{"images": source.sample(own, 2), "machine": machine} for _ in range(FEW)]
    for pair, found in zip(pairs, page.evaluate(TOGETHER, pairs), strict=True):
        first, second = (programs[number] for number in pair["images"])
        outcomes["yes" if found else "no"] += 1
        if found is None:
            continue
        taken = _taken(first, found[0], machine)
        rest = {**machine, "free": int(machine["free"] - taken)}
        assert taken + _taken(second, found[1], rest) <= machine["total"] - KNOWN.host_reserve
        for image, given, where in ((first, found[0], machine), (second, found[1], rest)):
            judged = judged_by_program(image, where, given)
            assert not [one for one in judged["findings"] if one["result"] == "fail"], (pair, found)
    assert min(outcomes["yes"], outcomes["no"]) > FEW // 10, outcomes


def _taken(image: program_images.Image, given: dict[str, str], machine: dict[str, Any]) -> float:
    share = program_server(image).share
    utilization = program_settings.read(image, given).fraction("GPU_MEMORY_UTILIZATION") or share.default
    beside = 0 if share.holds_working else KNOWN.working
    return utilization * share.whole(Machine(machine["total"], machine["free"], machine["unified"])) + beside


WRITE = """(environment) => pickerData.images.map((entry) => {
  const image = ImagePicker.load(pickerData, entry);
  const machine = pickerData.machines.find(({ name }) => name === entry.machine);
  const judged = ImagePicker.judge(image, environment, machine);
  return judged.refusal ? null : ImagePicker.outputs(judged, environment);
})"""


CHANGED = {
    "MAX_MODEL_LEN": "8191",
    "SERVED_MODEL_NAME": "my chat's",
    "GPU_MEMORY_UTILIZATION": "0.53",
    "PORT": "8001",
}


@pytest.mark.parametrize("environment", [{}, CHANGED], ids=["defaults", "changed"])
def test_commands_and_files_are_those_that_the_factory_prints(
    page: Page,
    picker_cells: list[Cell],
    programs: list[program_images.Image],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    project, written = PROJECT, page.evaluate(WRITE, environment)
    every = list(zip(picker_cells, programs, written, strict=True))
    for cell, image, texts in every[::3]:
        if project.matrix.models[cell.model].sparks > 1:
            continue  # a node's command needs the head's address, which is no setting of the picker
        served = describe_cell(project, cell, project.wheel_lock(cell).kernels)
        name = f"{project.matrix.effective_registry}@{DIGEST}"
        launch = Launch(cell, name, served.description, environment)
        line = shell_line(docker_run(launch))
        assert texts["docker"] == line.replace("/home/somebody/", "~/") + "\n"
        assert yaml.safe_load(texts["compose"]) == yaml.safe_load(compose(launch))
        assert environment or texts["compose"] == compose(launch)
        server = program_server(image)
        command = [*server.command, *server.build(image, program_settings.read(image, environment)).arguments]
        for style in get_args(Format):
            if style in server_of(cell).recipes:
                expected = recipe_text(recipe_document(style, launch, served.model, command, served.extra))
                assert texts[style] == expected
            else:
                assert texts[style].startswith(f"# {style} does not start")


LINE_ENDS = ("\r", "\n", "\x0b", "\x0c", "\x1b", "\x85", "\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff")
RECIPE = """(name) => pickerData.images.flatMap((entry) => Object.keys(entry.recipes).map((style) => {
  const image = ImagePicker.load(pickerData, entry);
  const { command, settings } = ImagePicker.judge(image, {}, {});
  command.words.push("--served-model-name", name);
  return ImagePicker.outputs({ image, command, settings }, { SERVED_MODEL_NAME: name });
}))[0]"""


@pytest.mark.parametrize("sign", LINE_ENDS)
def test_no_setting_holds_what_may_end_a_line(page: Page, sign: str) -> None:
    evil = f"a{sign}container: evil"
    for name, value in {
        "SERVED_MODEL_NAME": evil,
        "SKIP_CHECKS": evil,
        "LIMIT_MM_PER_PROMPT": f'{{"a{sign}b": 1}}',
    }.items():
        case = {"image": 0, "machine": MACHINES[0], "environment": {name: value}}
        [judged] = page.evaluate(JUDGE, [case])
        assert judged["refusal"]["error"] == "bad-value", name


@pytest.mark.parametrize("sign", [*LINE_ENDS[:-3], "\N{NO-BREAK SPACE}", "é", "\U0001f600", '"', "'", "\\", "{", "#"])
def test_recipes_and_compose_files_hold_any_text_as_text(page: Page, sign: str) -> None:
    evil = f"a{sign}container: evil"
    written = page.evaluate(RECIPE, evil)
    for style in get_args(Format):
        for read in (yaml.safe_load, ruamel.yaml.YAML(typ="safe", pure=True).load):
            document = read(written[style])
            assert document["container"].endswith(DIGEST)
            assert evil in shlex.split(document["command"].replace("{{", "{").replace("}}", "}").replace("\\\n", " "))
    environment = yaml.safe_load(written["compose"])["services"]["vllm"]["environment"]
    assert evil in environment["SERVED_MODEL_NAME"]
