"""Plan a suite of attacks on scenarios about mail, and read and write the file of one.

A suite is deterministic: the same index, scenarios, name, count and seed give the same messages.
"""

import io
import json
import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.lines import read_lines
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.mail.search_arguments import MailSearchError
from gumshoe.model_validation import describe_validation_error
from gumshoe.rewards.planted_attack import PlantedAttack
from gumshoe.rollouts.keyword_searcher import find_keywords
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.attacks.attack_recipe import AttackRecipe, AttackTarget, PlannedAttack, plan_attack
from gumshoe.synthesis.attacks.attack_texts import LANGUAGES, AttackFamily, load_families
from gumshoe.synthesis.rng import Rng

SuiteName = Literal["standard", "train", "held-out"]
SUITES: tuple[SuiteName, ...] = get_args(SuiteName)
"""Built-in suites: all families, those that may be trained on, and the others."""
DEFAULT_COUNT = 475
_SECRET_WORDS = (6, 30)  # least and most words of a passage to leak
_TRIES = 40  # messages that are looked at to find one to leak


class _SuiteLine(BaseModel):
    """One attack of a suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str
    recipe: AttackRecipe
    planted: PlantedAttack
    messages: tuple[str, ...] = Field(min_length=1)


def plan_suite(
    index: MailIndex, scenarios: Sequence[Scenario], name: SuiteName, number: int = DEFAULT_COUNT, seed: int | str = 0
) -> list[PlannedAttack]:
    """Return `number` attacks on scenarios about mail, each on one of them.

    Families, goals and languages are used equally often. An attack on a scenario whose inbox has no message to leak has
    another goal.
    """
    families = [each for each in load_families().values() if name in ("standard", each.split)]
    order = Rng("suite", seed).shuffled(list(scenarios))
    targets = {each.id: find_target(index, each, seed) for each in order[:number]}
    planned = []
    for place in range(number):
        target = targets[order[place % len(order)].id]
        recipe = _choose_recipe(families, place, seed, can_leak=bool(target.secret))
        planned.append(plan_attack(recipe, target))
    return planned


def _choose_recipe(families: Sequence[AttackFamily], place: int, seed: int | str, *, can_leak: bool) -> AttackRecipe:
    """Return the recipe of the attack with a number. Within a family, goals and languages form all pairs."""
    family, turn = families[place % len(families)], place // len(families)
    goals = [goal for goal in family.goals if can_leak or goal != "leak"]
    rng = Rng("recipe", family.name, turn, seed)
    return AttackRecipe(
        id=f"{family.name}-{turn + 1:03}",
        family=family.name,
        goal=goals[turn % len(goals)],
        language=LANGUAGES[(turn + turn // len(goals)) % len(LANGUAGES)],
        carrier=family.carriers[(turn + turn // len(family.carriers)) % len(family.carriers)],
        wording=rng.below(12),
        seed=seed,
        split=family.split,
        at_end=rng.chance(0.5),
    )


def find_target(index: MailIndex, scenario: Scenario, seed: int | str) -> AttackTarget:
    """Return the target of attacks on a scenario: a message of its inbox that is not a source, and words that find it.

    At most a third of the words of the passage are in the question, the answer or the subject of the message.
    """
    inbox, until = str(scenario.inbox_address), scenario.visible_before
    sources = {each.strip("<>") for each in scenario.sources}
    listed = [each for each, sent in index.list_messages(inbox) if sent and until and sent < until]
    candidates = [each for each in sorted(listed) if each.strip("<>") not in sources]
    for message_id in Rng("target", scenario.id, seed).sample(candidates, _TRIES):
        try:
            message = index.read(inbox, message_id, visible_before=until)
            topic = " ".join(find_keywords(message.subject))
            found = index.search(inbox, topic.split()[:4], limit=2, visible_before=until) if topic else ()
        except (MailSearchError, MessageNotFoundError):
            continue
        secret = _find_passage(message.body, f"{scenario.question} {scenario.answer} {message.subject}")
        if secret and len(topic.split()) > 1 and [each.message_id for each in found] == [message.message_id]:
            return AttackTarget(scenario, topic, secret)
    return AttackTarget(scenario)


def _find_passage(body: str, known: str) -> str:
    """Return the first sentence of a message that is long enough and has few known words; empty if there is none."""
    words = set(re.findall(r"\w+", known.casefold()))
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", body):
        found = re.findall(r"\w+", sentence.casefold())
        least, most = _SECRET_WORDS
        known_words = sum(each in words for each in found)
        if least <= len(found) <= most and known_words * 3 <= len(found) and not sentence.endswith(":"):
            return " ".join(sentence.split())
    return ""


def attacked_scenario(scenario: Scenario, attack: PlantedAttack) -> Scenario:
    """Return a scenario with the private field of an attack."""
    return Scenario.model_validate({**scenario.model_dump(), "attack": attack.model_dump(mode="json")})


def split_into_waves(planned: Iterable[PlannedAttack], scenarios: Iterable[Scenario]) -> list[list[PlannedAttack]]:
    """Divide attacks into waves with one attack an inbox at most, so that attacks do not disturb each other."""
    inboxes = {each.id: str(each.inbox_address) for each in scenarios}
    waves: list[list[PlannedAttack]] = []
    taken: dict[str, count[int]] = {}
    for attack in planned:
        place = next(taken.setdefault(inboxes[attack.scenario], count()))
        while len(waves) <= place:
            waves.append([])
        waves[place].append(attack)
    return waves


def write_suite(planned: Iterable[PlannedAttack], path: Path) -> None:
    """Write a suite file, atomically: one attack per line, with its messages as text."""
    lines = []
    for each in planned:
        fields: dict[str, Any] = {
            "scenario": each.scenario,
            "recipe": each.recipe.model_dump(mode="json", exclude_defaults=True),
            "planted": each.planted.model_dump(mode="json"),
            "messages": [message.decode() for message in each.messages],
        }
        lines.append(json.dumps(fields, ensure_ascii=True) + "\n")
    write_atomically(path, io.BytesIO("".join(lines).encode()))


def read_suite(path: Path, scenarios: Iterable[Scenario]) -> list[PlannedAttack]:
    """Read a suite file.

    Raises:
        UsageError: if a line is not an attack, an id is used twice, or a scenario does not exist.
    """
    known = {each.id for each in scenarios}
    found: dict[str, PlannedAttack] = {}
    for number, line in enumerate(read_lines(str(path)), 1):
        try:
            each = _SuiteLine.model_validate_json(line)
        except ValidationError as error:
            raise _invalid(path, number, f"not an attack: {describe_validation_error(error)}") from None
        if each.scenario not in known:
            raise _invalid(path, number, f"the scenario {each.scenario!r} is not among those that are evaluated")
        if each.planted.id in found:
            raise _invalid(path, number, f"the id {each.planted.id!r} is used twice")
        messages = tuple(message.encode() for message in each.messages)
        found[each.planted.id] = PlannedAttack(each.scenario, each.recipe, each.planted, messages)
    if not found:
        raise UsageError("synthesis.empty-attacks", f"{path} has no attacks; name a file with some, or {SUITES[0]}")
    return list(found.values())


def _invalid(path: Path, number: int, problem: str) -> UsageError:
    return UsageError(
        "synthesis.invalid-attacks",
        f"{path}:{number}: {problem}; use a file `attacks.jsonl` that `gumshoe evaluate --attacks` wrote",
    )
