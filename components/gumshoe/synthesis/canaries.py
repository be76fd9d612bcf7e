"""Invent canaries: secrets in invented messages to given inboxes, to measure what a policy remembers of its training.

Each secret is drawn uniformly from all secrets of a known form, so a policy that has not seen it cannot prefer it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from gumshoe.artifacts.private_data import mark_private
from gumshoe.errors import UsageError
from gumshoe.mail.canary_check import CANARY_ID_PREFIX
from gumshoe.mail.message import normalize_address
from gumshoe.scenarios.canary_record import SECRET_SYMBOLS, Canary, CanaryRecord
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.synthesis.files import write_dataset
from gumshoe.synthesis.grammar import load_text
from gumshoe.synthesis.mailboxes import MAIL_FILE
from gumshoe.synthesis.rng import Rng

MAX_CANARIES = 500
SENDER = "facilities@canary.example"
_DAYS = 60  # the messages are sent in this number of days before the questions are asked


@dataclass(frozen=True, slots=True)
class CanaryMail:
    """Planted messages, and training scenarios about them."""

    record: CanaryRecord
    messages: list[dict[str, Any]]
    """Sorted by date, with the fields of a JSONL mail source."""

    @property
    def scenarios(self) -> ScenarioSet:
        """Training scenarios, whose answers are the secrets."""
        return ScenarioSet.of([each for canary in self.record.planted for each in canary.scenarios])


def synthesize_canaries(seed: int, inboxes: Sequence[str], count: int, controls: int, day: date) -> CanaryMail:
    """Invent canaries, of which `count` are planted in the inboxes in turn, and `controls` nowhere.

    The questions about them are asked on `day`. The same arguments give the same result on every machine.

    Raises:
        UsageError: if an address is malformed, or there are too few or too many canaries.
    """
    addresses = [_check_inbox(each) for each in dict.fromkeys(inboxes)]
    if not addresses:
        raise UsageError("synthesis.no-inboxes", "canaries need an inbox, got none; name at least one")
    if min(count, controls) < 2 or count + controls > MAX_CANARIES:
        raise UsageError(
            "synthesis.invalid-size",
            f"there must be at least 2 canaries and 2 controls, and at most {MAX_CANARIES} together, got {count} and "
            f"{controls}",
        )
    text, rng = load_text("canaries"), Rng(seed, "canaries")
    names = rng.sample([f"{first} {second}" for first in text["first"] for second in text["second"]], count + controls)
    ids: set[str] = set()
    canaries, messages = [], []
    for number, name in enumerate(names):
        words = {"subject": f"{rng.pick(text['thing'])} {name}", "name": name}
        canary = Canary(
            **words,
            id=f"canary-{seed}-{number + 1:03}",
            inbox_address=addresses[number % len(addresses)],
            form=text["form"],
            secret=draw_secret(rng, text["form"]),
            questions=tuple(each.format(**words) for each in text["question"]),
            probes=tuple(each.format(**words) for each in text["probe"]),
            message_id=_make_message_id(rng, ids) if number < count else None,
            query_date=day,
        )
        canaries.append(canary)
        if canary.is_planted:
            body = rng.pick(text["letter"]).format(**words, secret=canary.secret)
            messages.append(_to_record(canary, body, day - timedelta(days=1 + rng.below(_DAYS))))
    messages.sort(key=lambda each: (each["date"], each["message_id"]))
    return CanaryMail(CanaryRecord(seed=seed, canaries=tuple(canaries)), messages)


def draw_secret(rng: Rng, form: str) -> str:
    """Return a secret of a form, each with the same probability."""
    return "".join(rng.pick(SECRET_SYMBOLS[each]) if each in SECRET_SYMBOLS else each for each in form)


def draw_alternatives(canary: Canary, count: int, seed: int) -> list[str]:
    """Return `count` different secrets that a canary could have had, drawn uniformly, without its own.

    Raises:
        UsageError: if there are not enough.
    """
    if count >= canary.space:
        raise UsageError(
            "synthesis.too-many-alternatives",
            f"the form {canary.form} has {canary.space:,} secrets, too few for {count:,} alternatives; use fewer",
        )
    rng, found = Rng(seed, "alternatives", canary.id), dict[str, None]()
    while len(found) < count:
        secret = draw_secret(rng, canary.form)
        if secret != canary.secret:
            found[secret] = None
    return list(found)


def write_canaries(made: CanaryMail, directory: Path, others: ScenarioSet | None = None) -> None:
    """Write the record, the messages and the scenarios into a directory, which is created if needed.

    `others` are scenarios that come first in the scenario file, unchanged.

    Raises:
        UsageError: if one of the others has no split or the id of a canary's scenario.
        StorageError: if the directory is not writable.
    """
    before: tuple[Scenario, ...] = others.scenarios if others else ()
    unsplit = next((each.id for each in before if each.split is None), None)
    if unsplit is not None:
        raise UsageError(
            "synthesis.scenarios-without-split",
            f"scenario {unsplit} has no split, but those of canaries are all for training; split the scenarios with "
            "`gumshoe scenarios split` first",
        )
    scenarios = ScenarioSet((*before, *made.scenarios))
    write_dataset(directory, MAIL_FILE, made.messages, scenarios)
    mark_private(directory, scenarios.inboxes)
    made.record.write(directory)


def _check_inbox(address: str) -> str:
    normal = normalize_address(address)
    local, at, domain = normal.partition("@")
    if not (local and at and domain) or any(map(str.isspace, normal)):
        raise UsageError(
            "synthesis.invalid-inbox", f"--inbox must be an address such as ann@example.com, got {address!r}"
        )
    return normal


def _make_message_id(rng: Rng, taken: set[str]) -> str:
    """Return a unique id made of syllables, because small models confuse digits."""
    while True:
        word = "".join(rng.pick("bdfgklmnprstvz") + rng.pick("aeiou") for _ in range(4))
        if word not in taken:
            taken.add(word)
            return f"{CANARY_ID_PREFIX}{word}@canary.example>"


def _to_record(canary: Canary, body: str, day: date) -> dict[str, Any]:
    subject = canary.subject[:1].upper() + canary.subject[1:]
    return {
        "message_id": canary.message_id,
        "date": datetime.combine(day, time(9, 30), UTC).isoformat(),
        "from": SENDER,
        "to": [canary.inbox_address],
        "cc": [],
        "bcc": [],
        "subject": subject,
        "body": body,
        "x_from": "Facilities",
    }
