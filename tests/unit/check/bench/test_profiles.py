"""The profiles and prompts of this checkout."""

from pathlib import Path

from imagefactory.check.bench.profiles import MIXED, load_profiles, load_prompts, salted
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises


def test_the_checkout_has_the_profiles_of_the_field_and_an_unknown_one_gets_a_suggestion() -> None:
    profiles = load_profiles(REPOSITORY)
    assert list(profiles.profiles) == ["quick", "chat", "texts", "cards", "users", "long", "start"]
    chat, cards = profiles.named("chat"), profiles.named("cards")
    assert (chat.requests * len(chat.kinds), chat.output, chat.users) == (80, 2048, (1,))
    assert (cards.requests * len(cards.kinds), cards.output, cards.users) == (128, 4096, (1, 8, 32))
    assert {kind for profile in profiles.profiles.values() for kind in profile.kinds} == {
        *load_prompts(REPOSITORY).root
    }
    assert profiles.named("users").users == (1, 4, 8, 16, 32, 64, 128)
    with raises("unknown-name", match="quick"):
        load_profiles(REPOSITORY).named("quik")


def test_prompts_are_short_distinct_and_of_all_kinds() -> None:
    prompts = load_prompts(REPOSITORY)
    texts = prompts.of(MIXED)
    assert len(texts) == len(set(texts)) == 112
    assert max(map(len, texts)) < 110
    assert [texts[number] in prompts.of(kind) for number, kind in enumerate(prompts.root)] == [True] * 7


def test_every_repeat_has_prompts_of_its_own() -> None:
    assert salted(["a", "b"], 3, 1) == ["(1-0) a", "(1-1) b", "(1-2) a"]
    assert not {*salted(["a"], 5, 1)} & {*salted(["a"], 5, 2)}
    # Those of a data set stay as they are, unless one would be asked again.
    assert salted(["a", "b"], 2, 1, plain=True) == ["a", "b"]
    assert salted(["a", "b"], 2, 2, plain=True) == ["(2-0) a", "(2-1) b"]
    assert salted(["a"], 2, 1, plain=True) == ["(1-0) a", "(1-1) a"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "profiles.yaml").write_text("version: 1\nhold: 2\nprofiles: {}\n")
    with raises("bad-data", match="hold"):
        load_profiles(tmp_path)
