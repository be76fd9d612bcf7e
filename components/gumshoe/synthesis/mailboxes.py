"""Generate synthetic mail: an invented company, its mailboxes, and questions about them."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, Split, seeded_sort_key
from gumshoe.synthesis.calendar import BRITAIN
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.files import write_dataset
from gumshoe.synthesis.letters import Letter, LetterWriter
from gumshoe.synthesis.mail_questions import FactLookup, MailQuestionGenerator, QuestionBackground
from gumshoe.synthesis.people import Cast, CastInventor
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.small_talk import SmallTalkWriter
from gumshoe.synthesis.stories import Story, StoryWriter
from gumshoe.synthesis.topics import Topic, TopicInventor, load_topic_kinds

MIN_MAILBOXES = 3  # one per split
MIN_MESSAGES, MAX_MESSAGES = 40, 20_000  # per mailbox
MAX_TOTAL = 1_000_000  # messages; all are in memory, about 4 KB each
MAX_MAILBOXES = 1000
MAIL_FILE = "mail.jsonl"
_DAYS = 540  # time span of a mailbox
_TEST, _VALIDATION = 0.15, 0.1  # shares of the mailboxes
_COLLEAGUES, _OUTSIDERS = 16, 14


@dataclass(frozen=True, slots=True)
class SyntheticMail:
    """Generated messages and scenarios."""

    messages: list[dict[str, Any]]
    """Sorted by date, with the fields of a JSONL mail source."""
    scenarios: ScenarioSet
    company: str
    backgrounds: dict[str, QuestionBackground]
    """Background of each scenario, by its id."""


def synthesize_mail(
    seed: int, mailboxes: int, messages: int, level: Level = "normal", advance: Callable[[int], object] = lambda _: None
) -> SyntheticMail:
    """Generate a company's mail: `messages` in total, divided equally among `mailboxes` without common messages.

    Train, validation and test scenarios are about different mailboxes. The same arguments give the same result on every
    machine. `advance` is called with the number of messages generated.

    Raises:
        UsageError: if there are too few or too many mailboxes or messages.
    """
    check_size(mailboxes, messages)
    casting = CastInventor(Rng(seed, "company"))
    first = datetime(Rng(seed, "year").between(2015, 2023), 1, 1, tzinfo=BRITAIN)
    asker = MailQuestionGenerator(Rng(seed, level, "questions"), LEVELS[level])
    records: list[tuple[datetime, str, dict[str, Any]]] = []
    asked: list[tuple[Scenario, QuestionBackground]] = []
    ids: set[str] = set()
    contents: set[bytes] = set()
    for number, split in enumerate(_assign_splits(seed, mailboxes), 1):
        rng = Rng(seed, level, "mailbox", number)
        cast = casting.make_cast(_COLLEAGUES, _OUTSIDERS)
        count = messages // mailboxes + (number <= messages % mailboxes)
        mailbox = _Mailbox(rng, cast, casting, level, first, contents)
        mailbox.fill(count, advance)
        letters = {_make_message_id(letter, rng, ids): letter for letter in mailbox.letters}
        records += [(letter.sent, message_id, _to_record(letter, message_id)) for message_id, letter in letters.items()]
        archive = FactLookup(cast.owner.address, mailbox.stories, letters)
        asked += asker.generate(archive, f"synthetic-{seed}-{level}-{number:03}", split)
    records.sort(key=lambda each: each[:2])
    return SyntheticMail(
        [record for *_, record in records],
        ScenarioSet.of([scenario for scenario, _ in asked]),
        casting.company.name,
        {scenario.id: background for scenario, background in asked},
    )


def check_size(mailboxes: int, messages: int) -> None:
    """Check the requested size.

    Raises:
        UsageError: if there are too few or too many mailboxes or messages.
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
    """Write `mail.jsonl` and `scenarios.jsonl` into a directory, which is created if needed.

    Raises:
        StorageError: if the directory is not writable.
    """
    write_dataset(directory, MAIL_FILE, made.messages, made.scenarios)


def _assign_splits(seed: int, mailboxes: int) -> list[Split]:
    """Return the split of each mailbox. Each split gets at least one."""
    order = sorted(range(mailboxes), key=lambda number: seeded_sort_key(seed, str(number)))
    test = max(1, round(_TEST * mailboxes))
    held_out = test + max(1, round(_VALIDATION * mailboxes))
    places = {number: place for place, number in enumerate(order)}
    return [
        "test" if places[each] < test else "validation" if places[each] < held_out else "train"
        for each in range(mailboxes)
    ]


@dataclass(slots=True)
class _Mailbox:
    """A mailbox that is being filled."""

    rng: Rng
    cast: Cast
    casting: CastInventor
    level: Level
    first: datetime
    contents: set[bytes]
    """Digests of the bodies in all mailboxes, because bodies must be unique."""
    stories: list[Story] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)

    def fill(self, count: int, advance: Callable[[int], object]) -> None:
        """Write exactly `count` letters: stories for the share given by the level, and small talk for the rest."""
        difficulty = LEVELS[self.level]
        post = LetterWriter(self.rng, self.casting.company)
        inventor = TopicInventor(self.rng, self.cast)
        teller = StoryWriter(self.rng, self.cast, post, inventor, difficulty)
        about = round(count * (1 - difficulty.noise))
        kinds = list(load_topic_kinds())
        last: Topic | None = None
        while len(self.letters) < about and kinds:
            sibling = last is not None and last.kind in kinds and self.rng.chance(difficulty.siblings)
            kind, like = (last.kind, last) if last and sibling else (self.rng.pick(kinds), None)
            twin = kind.yearly and self.rng.chance(difficulty.twins)
            start = self.first + timedelta(days=370 + self.rng.below(90) if twin else self.rng.below(_DAYS - 60))
            topic = inventor.invent_topic(kind, start, self.rng.between(*difficulty.facts), like)
            if topic is None:
                kinds.remove(kind)
                continue
            last = topic
            for each in [topic, inventor.invent_twin(topic)] if twin else [topic]:
                self._add_story(teller.write(each), count, advance)
        chatter = SmallTalkWriter(self.rng, self.cast, post)
        # The loop ends: small talk may run out, but there are billions of different newsletters.
        while len(self.letters) < count:
            moment = post.find_working_moment(self.first + timedelta(days=self.rng.below(_DAYS)))
            self._add_letters(chatter.write(moment, count - len(self.letters)), advance)

    def _add_story(self, story: Story, count: int, advance: Callable[[int], object]) -> None:
        if len(self.letters) + len(story.letters) <= count and self._add_letters(story.letters, advance):
            self.stories.append(story)

    def _add_letters(self, letters: list[Letter], advance: Callable[[int], object]) -> bool:
        """Add letters unless the text of one of them exists already. Return True if they were added."""
        contents = [hashlib.sha256(letter.body.encode()).digest() for letter in letters]
        if len(set(contents)) < len(contents) or not self.contents.isdisjoint(contents):
            return False
        self.contents.update(contents)
        self.letters += letters
        advance(len(letters))
        return True


def _make_message_id(letter: Letter, rng: Rng, taken: set[str]) -> str:
    """Return a unique id, short and made of syllables, because small models confuse digits."""
    domain = letter.sender.address.partition("@")[2]
    while True:
        word = "".join(rng.pick("bdfgklmnprstvz") + rng.pick("aeiou") for _ in range(4))
        if (message_id := f"<{word}@{domain}>") not in taken:
            taken.add(message_id)
            return message_id


def _to_record(letter: Letter, message_id: str) -> dict[str, Any]:
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


def count_kinds(scenarios: ScenarioSet) -> dict[str, int]:
    """Return the number of questions of each kind, most frequent first."""
    return dict(Counter(str(scenario.kind) for scenario in scenarios).most_common())
