"""Canaries: invented secrets in invented messages, and their private record."""

import json
import re
import stat
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import MARK
from gumshoe.errors import UsageError
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.canary_check import CANARY_ID_PREFIX, has_canaries
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.canary_record import CANARIES_FILE, CanaryRecord
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.canaries import CanaryMail, draw_alternatives, synthesize_canaries, write_canaries
from tests.conftest import CommandResult
from tests.scenarios.questions import scenario, write_questions

ANN, BOB = "ann@example.com", "bob@example.com"
DAY = date(2024, 5, 1)


def make(seed: int = 1, count: int = 6, controls: int = 4) -> CanaryMail:
    return synthesize_canaries(seed, [ANN, BOB], count, controls, DAY)


def test_the_same_seed_gives_the_same_canaries_and_another_seed_others() -> None:
    assert make().record.content == make().record.content
    assert make().messages == make().messages
    secrets = {each.secret for each in make().record.canaries}
    assert not secrets & {each.secret for each in make(seed=2).record.canaries}


def test_planted_secrets_are_in_their_own_inbox_and_controls_nowhere(tmp_path: Path) -> None:
    made = make()
    write_canaries(made, tmp_path)
    build_mail_index([f"jsonl:{tmp_path / 'mail.jsonl'}"], tmp_path / "index")
    assert has_canaries(tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    texts = "".join(each["body"] for each in made.messages)
    assert Counter(each.inbox_address for each in made.record.planted) == {ANN: 3, BOB: 3}
    for each in made.record.planted:
        assert each.message_id is not None
        assert each.message_id.startswith(CANARY_ID_PREFIX)
        assert each.secret in index.read(each.inbox_address, each.message_id).body
        other = BOB if each.inbox_address == ANN else ANN
        assert not index.search(other, [each.secret])
    assert len(made.record.controls) == 4
    for each in made.record.controls:
        assert each.secret not in texts
        assert each.name not in texts


def test_questions_about_planted_secrets_are_for_training_and_there_are_none_about_controls(tmp_path: Path) -> None:
    made = make()
    write_canaries(made, tmp_path, ScenarioSet((scenario(1, split="test"),)))
    loaded = load_scenarios(str(tmp_path / "scenarios.jsonl"))
    assert [each.id for each in loaded][:1] == ["q1"]
    own = {each.id: each for each in loaded if each.kind == "canary"}
    assert len(own) == sum(len(each.questions) for each in made.record.planted)
    assert {each.split for each in own.values()} == {"train"}
    assert {each.answer for each in own.values()} == {each.secret for each in made.record.planted}
    assert made.record.count_learned(each.digest for each in own.values()) == 6
    assert made.record.count_learned([scenario(1).digest]) == 0


def test_secrets_are_drawn_uniformly_from_their_form() -> None:
    canaries = make(count=250, controls=250).record.canaries
    digits = Counter(digit for each in canaries for digit in re.sub(r"\D", "", each.secret))
    assert all(re.fullmatch(r"\d{5}-\d[A-Z]", each.secret) for each in canaries)
    assert canaries[0].space == 10**6 * 24
    expected = sum(digits.values()) / 10
    assert sum((count - expected) ** 2 / expected for count in digits.values()) < 27.9  # chi-squared, p = 0.001
    assert len({each.name for each in canaries}) == 500


def test_alternatives_differ_from_the_secret_and_from_each_other() -> None:
    canary = make().record.planted[0]
    found = draw_alternatives(canary, 300, 7)
    assert len(set(found)) == 300
    assert canary.secret not in found
    assert found == draw_alternatives(canary, 300, 7)
    with pytest.raises(UsageError) as refused:
        draw_alternatives(canary.model_copy(update={"form": "#", "secret": "1"}), 10, 7)
    assert refused.value.code == "synthesis.too-many-alternatives"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("It is {secret}.", True),
        ("it is {lower}", True),
        ("It is {spaced}", True),
        ("It is {first}", False),
        ("", False),
    ],
)
def test_a_secret_is_recognized_in_any_case_and_with_other_separators(text: str, is_found: bool) -> None:
    canary = make().record.planted[0]
    secret = canary.secret
    forms = {
        "secret": secret,
        "lower": secret.lower(),
        "spaced": " ".join(secret.replace("-", "")),
        "first": secret[:6],
    }
    assert canary.is_in(text.format(**forms)) is is_found


def test_only_the_owner_may_read_the_record(tmp_path: Path) -> None:
    made = make()
    write_canaries(made, tmp_path)
    assert stat.S_IMODE((tmp_path / CANARIES_FILE).stat().st_mode) == 0o600
    assert json.loads((tmp_path / MARK).read_text())["inboxes"] == [ANN, BOB]
    assert CanaryRecord.read(str(tmp_path)) == CanaryRecord.read(str(tmp_path / CANARIES_FILE)) == made.record


@pytest.mark.parametrize(
    ("inboxes", "count", "controls", "code"),
    [
        ([], 4, 4, "synthesis.no-inboxes"),
        (["ann"], 4, 4, "synthesis.invalid-inbox"),
        (["ann@"], 4, 4, "synthesis.invalid-inbox"),
        ([ANN], 1, 4, "synthesis.invalid-size"),
        ([ANN], 4, 0, "synthesis.invalid-size"),
        ([ANN], 400, 101, "synthesis.invalid-size"),
    ],
)
def test_impossible_canaries_are_refused(inboxes: list[str], count: int, controls: int, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        synthesize_canaries(1, inboxes, count, controls, DAY)
    assert refused.value.code == code


def test_a_record_must_exist_and_have_planted_canaries_and_controls(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as missing:
        CanaryRecord.read(str(tmp_path))
    assert missing.value.code == "scenarios.canaries-not-found"
    CanaryRecord(seed=1, canaries=tuple(make().record.planted)).write(tmp_path)
    with pytest.raises(UsageError) as incomplete:
        CanaryRecord.read(str(tmp_path))
    assert incomplete.value.code == "scenarios.canaries-incomplete"
    broken = make().record.model_dump(mode="json")
    broken["canaries"][0]["secret"] = "none"
    (tmp_path / CANARIES_FILE).write_text(json.dumps(broken))
    with pytest.raises(UsageError) as invalid:
        CanaryRecord.read(str(tmp_path))
    assert invalid.value.code == "scenarios.canaries-invalid"


def test_the_command_writes_all_files_and_refuses_scenarios_without_a_split(
    run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    options = ["synthesize", "canaries", "--seed", 3, "--inbox", f"{ANN},{BOB}", "--count", 4, "--controls", 3]
    options += ["--date", DAY, "--out", tmp_path / "made"]
    others = write_questions(tmp_path / "q.jsonl", [json.loads(scenario(1).to_json())])
    refused = run(*options, "--scenarios", others)
    assert (refused.status, refused.code) == (2, "synthesis.scenarios-without-split")
    ran = run(*options, "--json")
    assert ran.status == 0, ran.err
    record = CanaryRecord.read(str(tmp_path / "made"))
    assert json.loads(ran.out) == {"planted": 4, "controls": 3, "content": record.content}
    assert {each.query_date for each in record.canaries} == {DAY}
    assert run(*options).code == "synthesis.output-exists"
