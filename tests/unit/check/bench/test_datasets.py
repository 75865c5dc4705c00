"""Data sets of others: how their rows become prompts, and what requests have beside a prompt."""

import json
from pathlib import Path

import pytest

from imagefactory.check.bench.comparison import differences
from imagefactory.check.bench.datasets import load_datasets, read_dataset
from imagefactory.check.bench.measuring import Asking, Bench, Fit
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.fixtures.benchmarks import result
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.inv import Inv

FIT = Fit(output=2048, depths=(0,), tokens_per_character=0.3, left_out=())


def written(folder: Path, name: str, *rows: object) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "row", "prompt"),
    [
        ("gsm8k", {"question": "How many {}?", "answer": "2"}, "How many {}?\nPlease reason step by step"),
        ("math500", {"problem": "1 + 1", "answer": "2"}, "put your final answer within \\boxed{}."),
        ("humaneval", {"prompt": "def f():", "test": ""}, "```python\ndef f():\n```"),
        ("mbpp", {"prompt": "Write f.", "code": ""}, "Write f."),
        ("mt-bench", {"turns": ["One.", "Two."]}, "One."),
        ("mt-bench", {"prompt": ["One.", "Two."]}, "One."),
        # As z-lab's benchmark has it in its cache: words and all.
        ("gsm8k", {"turns": ["How many?"]}, "How many?"),
        ("mine", {"prompt": "Hello"}, "Hello"),
    ],
)
def test_rows_become_prompts(tmp_path: Path, name: str, row: object, prompt: str) -> None:
    found, [text] = read_dataset(REPOSITORY, tmp_path, str(written(tmp_path, name, row)))
    assert found == name
    assert text.endswith(prompt) or prompt in text
    if "turns" in str(row):
        assert text == prompt


def test_a_name_is_looked_up_among_the_users_files_and_nothing_is_fetched(tmp_path: Path) -> None:
    for name, dataset in load_datasets(REPOSITORY).items():
        with raises("bad-data", match=f"There is no data set {name}") as caught:
            read_dataset(REPOSITORY, tmp_path, name)
        assert f"load_dataset({dataset.source}).to_json('{tmp_path}/{name}.jsonl')" in caught.value.fix
    with raises("bad-data", match="There is no data set mine") as caught:
        read_dataset(REPOSITORY, tmp_path, str(tmp_path / "mine.jsonl"))
    assert caught.value.fix.startswith("Name a file of JSON lines, or one of mt-bench, ")
    written(tmp_path, "mbpp", {"prompt": "Write f."})
    assert read_dataset(REPOSITORY, tmp_path, "mbpp") == ("mbpp", ("Write f.",))


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "no rows"), ("[]\n", "no object"), ('{"a": 1}', "Line 1: it has no text"), ("{", "Line 1")],
)
def test_a_file_that_is_no_data_set_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with raises("bad-data", match=why):
        read_dataset(REPOSITORY, tmp_path, str(path))


def test_each_table_of_the_field_is_asked_as_its_author_did(tmp_path: Path) -> None:
    """80 prompts of MT-Bench, one user, 2048 tokens; 128 of a card's, at 1, 8 and 32 users, 4096 tokens, thinking."""
    project = Project(REPOSITORY, Store(tmp_path))
    (tmp_path / "datasets").mkdir()
    written(tmp_path / "datasets", "mt-bench", *({"turns": [f"Question {number}"]} for number in range(80)))
    written(tmp_path / "datasets", "gsm8k", *({"question": f"How many {number}?"} for number in range(200)))
    warm_up, *jobs = Bench(project, "chat", {}, asking=Asking("mt-bench")).jobs(FIT)
    assert [(job.kind, job.users, job.prompts[0], len(job.prompts)) for job in jobs] == [
        ("mt-bench", 1, "Question 0", 80)
    ]
    assert not {*warm_up.prompts} & {*jobs[0].prompts}
    _, *jobs = Bench(project, "cards", {}, asking=Asking("gsm8k", thinking=True)).jobs(FIT)
    assert [(job.kind, job.users, len(job.prompts)) for job in jobs] == [("gsm8k", users, 128) for users in (1, 8, 32)]
    words = jobs[0].document("http://x", "m", "m")["arguments"]
    assert json.loads(words[words.index("--extra-body") + 1]) == {"chat_template_kwargs": {"enable_thinking": True}}
    assert words[words.index("--temperature") + 1] == "0"
    _, *jobs = Bench(project, "texts", {}).jobs(FIT)
    assert [job.kind for job in jobs] == ["dialogue", "code", "json", "maths", "longcode"] * 2


def test_sampling_and_tools_are_asked_for_recorded_and_told_apart(tmp_path: Path) -> None:
    asking = Asking(temperature=0.7, tools=True)
    job = Bench(Project(REPOSITORY, Store(tmp_path)), "quick", {}, asking=asking).jobs(FIT)[1]
    words = job.document("http://x", "m", "m")["arguments"]
    body = json.loads(words[words.index("--extra-body") + 1])
    assert (words[words.index("--temperature") + 1], body["tool_choice"]) == ("0.7", "none")
    assert body["tools"][0]["function"]["name"]
    assert asking.words() == {"temperature": "0.7", "tools": "offered"}
    assert Asking().words() == {}
    assert differences(result(), result(asked=asking.words())) == {
        "temperature": "temperature: none and 0.7",
        "tools": "tools: none and offered",
    }


def test_the_command_refuses_what_it_cannot_ask_before_anything_starts(own_inv: Inv) -> None:
    assert "It is on or off" in own_inv.fails("bad-option", "bench", "--thinking", "maybe")
    assert "from 0 to 2" in own_inv.fails("bad-option", "bench", "--temperature", "3")
