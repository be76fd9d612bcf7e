"""Synthetic mail: an invented company, one mailbox after another, and questions about what they hold."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, Split, seeded
from gumshoe.synthesis.calendar import BRITAIN
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.files import write_made
from gumshoe.synthesis.letters import Letter, Post
from gumshoe.synthesis.mail_questions import Archive, Asker, Background
from gumshoe.synthesis.people import Cast, Casting
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.small_talk import SmallTalk
from gumshoe.synthesis.stories import Story, Teller
from gumshoe.synthesis.topics import Inventor, Topic, topic_kinds

MIN_MAILBOXES = 3  # one for each split
MIN_MESSAGES, MAX_MESSAGES = 40, 20_000  # of a mailbox
MAX_TOTAL = 1_000_000  # messages; all are in memory at once, some 4 KB each
MAX_MAILBOXES = 1000
MAIL = "mail.jsonl"
_DAYS = 540  # that the mail of a mailbox spans
_TEST, _VALIDATION = 0.15, 0.1  # shares of the mailboxes
_COLLEAGUES, _OUTSIDERS = 16, 14


@dataclass(frozen=True, slots=True)
class SyntheticMail:
    """What was written."""

    messages: list[dict[str, Any]]
    """In order of date, with the fields of a JSONL source of mail."""
    scenarios: ScenarioSet
    company: str
    backgrounds: dict[str, Background]
    """What stands behind each scenario, by its id."""


def synthesize_mail(
    seed: int, mailboxes: int, messages: int, level: Level = "normal", advance: Callable[[int], object] = lambda _: None
) -> SyntheticMail:
    """Invent a company's mail: `messages` in all, in equal parts in `mailboxes` that share none.

    Train, validation and test scenarios are about different mailboxes. The same arguments give the same result on
    every machine. `advance` is told of messages as they are made.

    Raises:
        UsageError: there are too few mailboxes or messages, or too many.
    """
    check_size(mailboxes, messages)
    casting = Casting(Rng(seed, "company"))
    first = datetime(Rng(seed, "year").between(2015, 2023), 1, 1, tzinfo=BRITAIN)
    asker = Asker(Rng(seed, level, "questions"), LEVELS[level])
    records: list[tuple[datetime, str, dict[str, Any]]] = []
    asked: list[tuple[Scenario, Background]] = []
    ids: set[str] = set()
    contents: set[bytes] = set()
    for number, split in enumerate(_splits(seed, mailboxes), 1):
        dice = Rng(seed, level, "mailbox", number)
        cast = casting.cast(_COLLEAGUES, _OUTSIDERS)
        count = messages // mailboxes + (number <= messages % mailboxes)
        mailbox = _Mailbox(dice, cast, casting, level, first, contents)
        mailbox.fill(count, advance)
        letters = {_message_id(letter, dice, ids): letter for letter in mailbox.letters}
        records += [(letter.sent, message_id, _record(letter, message_id)) for message_id, letter in letters.items()]
        archive = Archive(cast.owner.address, mailbox.stories, letters)
        asked += asker.ask(archive, f"synthetic-{seed}-{level}-{number:03}", split)
    records.sort(key=lambda each: each[:2])
    return SyntheticMail(
        [record for *_, record in records],
        ScenarioSet.of([scenario for scenario, _ in asked]),
        casting.company.name,
        {scenario.id: background for scenario, background in asked},
    )


def check_size(mailboxes: int, messages: int) -> None:
    """Refuse what cannot be made.

    Raises:
        UsageError: there are too few mailboxes or messages, or too many.
    """
    if not MIN_MAILBOXES <= mailboxes <= MAX_MAILBOXES:
        raise UsageError(
            "synthesis.invalid-size",
            f"--mailboxes must be from {MIN_MAILBOXES} (one per split) to {MAX_MAILBOXES:,}, got {mailboxes:,}",
        )
    least, most = MIN_MESSAGES * mailboxes, min(MAX_MESSAGES * mailboxes, MAX_TOTAL)
    if not least <= messages <= most:
        raise UsageError(
            "synthesis.invalid-size",
            f"--messages must be from {least:,} to {most:,} for {mailboxes:,} mailboxes, got {messages:,}",
        )


def write_mail(made: SyntheticMail, directory: Path) -> None:
    """Write `mail.jsonl` and `scenarios.jsonl` into a directory, made where it is missing.

    Raises:
        StorageError: it cannot be written to.
    """
    write_made(directory, MAIL, made.messages, made.scenarios)


def _splits(seed: int, mailboxes: int) -> list[Split]:
    """The split of each mailbox, at least one in each."""
    order = sorted(range(mailboxes), key=lambda number: seeded(seed, str(number)))
    test = max(1, round(_TEST * mailboxes))
    held = test + max(1, round(_VALIDATION * mailboxes))
    places = {number: place for place, number in enumerate(order)}
    return [
        "test" if places[each] < test else "validation" if places[each] < held else "train" for each in range(mailboxes)
    ]


@dataclass(slots=True)
class _Mailbox:
    """One mailbox while it fills."""

    dice: Rng
    cast: Cast
    casting: Casting
    level: Level
    first: datetime
    contents: set[bytes]
    """Digests of the bodies in all mailboxes: no two messages say the same."""
    stories: list[Story] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)

    def fill(self, count: int, advance: Callable[[int], object]) -> None:
        """Write exactly so many letters: stories for the share that the level says, and chatter for the rest."""
        difficulty = LEVELS[self.level]
        post = Post(self.dice, self.casting.company)
        inventor = Inventor(self.dice, self.cast)
        teller = Teller(self.dice, self.cast, post, inventor, difficulty)
        about = round(count * (1 - difficulty.noise))
        kinds = list(topic_kinds())
        last: Topic | None = None
        while len(self.letters) < about and kinds:
            sibling = last is not None and last.kind in kinds and self.dice.chance(difficulty.siblings)
            kind, like = (last.kind, last) if last and sibling else (self.dice.pick(kinds), None)
            twin = kind.yearly and self.dice.chance(difficulty.twins)
            start = self.first + timedelta(days=370 + self.dice.below(90) if twin else self.dice.below(_DAYS - 60))
            matter = inventor.matter(kind, start, self.dice.between(*difficulty.facts), like)
            if matter is None:
                kinds.remove(kind)
                continue
            last = matter
            for each in [matter, inventor.twin(matter)] if twin else [matter]:
                self._tell(teller.tell(each), count, advance)
        chatter = SmallTalk(self.dice, self.cast, post)
        # It ends: when all small talk has been had, there are still newsletters, billions of each.
        while len(self.letters) < count:
            moment = post.clock(self.first + timedelta(days=self.dice.below(_DAYS)))
            self._take(chatter.some(moment, count - len(self.letters)), advance)

    def _tell(self, story: Story, count: int, advance: Callable[[int], object]) -> None:
        if len(self.letters) + len(story.letters) <= count and self._take(story.letters, advance):
            self.stories.append(story)

    def _take(self, letters: list[Letter], advance: Callable[[int], object]) -> bool:
        """Take letters in, unless the text of one of them is the text of another."""
        contents = [hashlib.sha256(letter.body.encode()).digest() for letter in letters]
        if len(set(contents)) < len(contents) or not self.contents.isdisjoint(contents):
            return False
        self.contents.update(contents)
        self.letters += letters
        advance(len(letters))
        return True


def _message_id(letter: Letter, dice: Rng, taken: set[str]) -> str:
    """An id that no other message has: short, and of syllables rather than digits, which small models confuse."""
    domain = letter.sender.address.partition("@")[2]
    while True:
        word = "".join(dice.pick("bdfgklmnprstvz") + dice.pick("aeiou") for _ in range(4))
        if (message_id := f"<{word}@{domain}>") not in taken:
            taken.add(message_id)
            return message_id


def _record(letter: Letter, message_id: str) -> dict[str, Any]:
    return {
        "message_id": message_id,
        "date": letter.sent.isoformat(),
        "from": letter.sender.address,
        "to": [person.address for person in letter.to],
        "cc": [person.address for person in letter.cc],
        "bcc": [],
        "subject": letter.subject,
        "body": letter.body,
        "x_from": letter.sender.name.strip(),
    }


def kinds_of(scenarios: ScenarioSet) -> dict[str, int]:
    """How many questions of each kind there are, the commonest first."""
    return dict(Counter(str(scenario.kind) for scenario in scenarios).most_common())
