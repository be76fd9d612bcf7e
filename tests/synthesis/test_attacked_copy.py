"""`gumshoe synthesize attacks`: an attacked copy of an index and its scenarios, to train with the reward `safe`."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.environments.registry import open_env
from gumshoe.environments.tools import Call
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.planted_attack import PlantedAttack
from gumshoe.rollouts.keyword_searcher import find_keywords
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.attacks.attack_texts import load_families
from gumshoe.synthesis.attacks.training_copy import plan_attacked_copy
from tests.conftest import CommandResult
from tests.errors import raises
from tests.rollouts.conversations import synthetic

Run = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies") / "scenarios.jsonl"
    path.write_bytes(synthetic().scenarios.to_jsonl())
    return path


def digests(directory: Path) -> dict[str, bytes]:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def test_training_scenarios_are_attacked_with_families_to_train_on(
    run: Run, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    source, out = synthetic_index.path.parent, tmp_path / "attacked"
    before = digests(source)
    words = ("synthesize", "attacks", "--seed", 3, "--index", source, "--scenarios", scenarios, "--share", 0.5)
    ran = run(*words, "--out", out)
    assert ran.status == 0, ran.err
    assert "rewards.functions=[{name: rubric}, {name: safe}]" in ran.err + ran.out
    assert digests(source) == before
    made = load_scenarios(str(out / "scenarios.jsonl"))
    attacks = {each.id: PlantedAttack.of(each) for each in made}
    for split in ("train", "validation"):
        own = [attacks[each.id] for each in made.only(split)]
        assert 0 < sum(each is not None for each in own) == max(1, round(0.5 * len(own)))
    assert all(attacks[each.id] is None for each in made.only("test"))
    families = load_families()
    assert {families[each.family].split for each in attacks.values() if each} == {"train"}
    assert [(each.id, each.digest) for each in made] == [(each.id, each.digest) for each in synthetic().scenarios]
    env_factory = open_env(out / "index")
    inboxes = {str(each.inbox_address) for each in made}
    known = {each for inbox in inboxes for each, _ in synthetic_index.list_messages(inbox)}
    for each in made:
        if attacks[each.id] is not None:
            found = env_factory.new_environment(each, 5).toolbox.run(
                Call("search_inbox", {"keywords": find_keywords(each.question)})
            )
            assert not set(re.findall(r"^  id: (\S+)", found, re.M)) <= known

    assert "synthesis.output-exists" in run(*words, "--out", out).err
    again = run(*words, "--out", out, "--replace", "--json")
    assert sum(json.loads(again.out)["attacks"].values()) == sum(each is not None for each in attacks.values())
    assert load_scenarios(str(out / "scenarios.jsonl")).content == made.content


def test_a_copy_replaces_neither_its_source_nor_what_is_no_index(
    run: Run, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    shutil.copytree(synthetic_index.path.parent, tmp_path / "index")
    asked = shutil.copy(scenarios, tmp_path / "scenarios.jsonl")
    (tmp_path / "other" / "index").mkdir(parents=True)
    (tmp_path / "other" / "index" / "notes.txt").touch()
    beside = shutil.copy(scenarios, tmp_path / "index" / "mine.jsonl")
    before = digests(tmp_path)
    words = ("synthesize", "attacks", "--seed", 3, "--index", tmp_path / "index", "--replace")
    assert run(*words, "--scenarios", scenarios, "--out", tmp_path).code == "synthesis.replaces-its-input"
    words = ("synthesize", "attacks", "--seed", 3, "--index", synthetic_index.path.parent, "--replace")
    assert run(*words, "--scenarios", asked, "--out", tmp_path).code == "synthesis.replaces-its-input"
    assert run(*words, "--scenarios", beside, "--out", tmp_path).code == "synthesis.replaces-its-input"
    assert run(*words, "--scenarios", asked, "--out", tmp_path / "other").code == "synthesis.invalid-output"
    assert digests(tmp_path) == before


def test_the_reward_safe_can_be_used_in_a_training(run: Run, tmp_path: Path) -> None:
    words = ("train", "--model", "tiny", "--config", "tiny", "--print-config", "--out", tmp_path)
    ran = run(*words, "--set", "rewards.functions=[{name: rubric}, {name: safe}]")
    assert ran.status == 0, ran.err
    assert "safe" in ran.out


def test_without_training_scenarios_nothing_is_written(synthetic_index: MailIndex) -> None:
    tested = ScenarioSet.of(synthetic().scenarios.only("test"))
    with raises("synthesis.nothing-to-attack", len(tested)):
        plan_attacked_copy(synthetic_index, tested, 0.5, 0)
