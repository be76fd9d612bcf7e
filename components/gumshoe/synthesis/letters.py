"""Format messages as people write them: greeting, text, farewell, signature and quotations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dateutil.easter import easter

from gumshoe.synthesis.grammar import expand, load_text
from gumshoe.synthesis.people import Company, Person, format_signature
from gumshoe.synthesis.rng import Rng

_MAX_BODY = 4500  # characters; an index skips bodies over 5,000
_OPENS, _NOON, _CLOSES = 8, 12, 18  # hours of the working day


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A part of a message, with the keys of the facts that it states."""

    text: str
    facts: frozenset[str] = frozenset()
    postscript: bool = False
    """True if it follows the name."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One message. The quoted letter is an earlier one, which may be missing in this mailbox."""

    sent: datetime
    sender: Person
    to: tuple[Person, ...]
    cc: tuple[Person, ...]
    subject: str
    own_text: str
    """Its own text, from greeting to signature."""
    own_facts: frozenset[str]
    quoted: "Letter | None" = None
    forwarded: bool = False
    depth: int = 1
    """Number of earlier letters that are quoted, starting with the one it answers."""

    @property
    def people(self) -> tuple[Person, ...]:
        return (self.sender, *self.to, *self.cc)

    @property
    def body(self) -> str:
        return "\n\n".join(filter(None, [self.own_text, *self._format_quotations()]))

    @property
    def facts(self) -> frozenset[str]:
        """Keys of all facts in its own text and in the quotations."""
        return self.own_facts.union(*(letter.own_facts for letter in self._list_quoted_letters()))

    def _list_quoted_letters(self) -> list["Letter"]:
        found: list[Letter] = []
        room = _MAX_BODY - len(self.own_text)
        letter = self.quoted
        while letter is not None and len(found) < self.depth and (room := room - len(letter.own_text) - 250) > 0:
            found.append(letter)
            letter = letter.quoted
        return found

    def _format_quotations(self) -> list[str]:
        letters = self._list_quoted_letters()
        if self.sender.style.quotes_by_line and not self.forwarded:
            return [_quote_by_line(letters)]
        heads = ["---------- Forwarded message ---------"] if self.forwarded else []
        heads += ["-----Original Message-----"] * (len(letters) - len(heads))
        return [
            f"{head}\n{_format_headers(letter)}\n\n{letter.own_text}"
            for head, letter in zip(heads, letters, strict=True)
        ]


def _format_headers(letter: Letter) -> str:
    to = "; ".join(person.name for person in letter.to)
    return f"From: {letter.sender.name}\nSent: {letter.sent:%d %B %Y %H:%M}\nTo: {to}\nSubject: {letter.subject}"


def _quote_by_line(letters: list[Letter]) -> str:
    """Quote each letter one `>` deeper than its reply."""
    lines = []
    for level, letter in enumerate(letters):
        prefix = "> " * level
        if level:
            lines.append(prefix.rstrip())
        lines.append(f"{prefix}On {letter.sent:%a, %d %b %Y} at {letter.sent:%H:%M}, {letter.sender.name} wrote:")
        lines += [f"{prefix}> {line}".rstrip() for line in letter.own_text.split("\n")]
    return "\n".join(lines)


@dataclass(slots=True)
class LetterWriter:
    """Write letters between the people of one mailbox."""

    rng: Rng
    company: Company

    def write(
        self,
        sender: Person,
        to: Sequence[Person],
        cc: Sequence[Person],
        subject: str,
        text: Sequence[Paragraph],
        sent: datetime,
    ) -> Letter:
        """Return a new letter."""
        own, states = self._compose(sender, to, text, sent)
        return Letter(sent, sender, tuple(to), tuple(cc), subject, own, states)

    def reply(self, letter: Letter, sender: Person, text: Sequence[Paragraph], sent: datetime, *, depth: int) -> Letter:
        """Return a reply to all that quotes up to `depth` letters. 0 quotes nothing."""
        to = [letter.sender] if letter.sender is not sender else list(letter.to)
        cc = [person for person in dict.fromkeys((*letter.to, *letter.cc)) if person is not sender and person not in to]
        own, states = self._compose(sender, to, text, sent)
        reply = Letter(sent, sender, tuple(to), tuple(cc), _add_prefix("Re: ", letter.subject), own, states)
        return replace(reply, quoted=letter if depth else None, depth=depth)

    def forward(
        self, letter: Letter, sender: Person, to: Sequence[Person], text: Sequence[Paragraph], sent: datetime
    ) -> Letter:
        """Return a letter that forwards another one completely."""
        own, states = self._compose(sender, to, text, sent)
        subject = _add_prefix(self.rng.pick(["Fw: ", "FW: ", "Fwd: "]), letter.subject)
        return Letter(sent, sender, tuple(to), (), subject, own, states, quoted=letter, forwarded=True)

    def advance_time(self, moment: datetime, *, days: tuple[int, int] = (0, 0)) -> datetime:
        """Return a time in working hours some working days later. 0 days means the same day, if possible."""
        days_on = self.rng.between(*days)
        if days_on == 0:
            moment += timedelta(minutes=self.rng.between(4, 200))
        else:
            for _ in range(days_on):
                moment += timedelta(days=1)
                while not is_working_day(moment):
                    moment += timedelta(days=1)
            moment = moment.replace(hour=_OPENS, minute=0) + timedelta(minutes=self.rng.below((_CLOSES - _OPENS) * 60))
        if moment.hour >= _CLOSES or not is_working_day(moment):
            return self.advance_time(moment.replace(hour=_OPENS), days=(1, 1))
        return moment.replace(second=self.rng.below(60))

    def find_working_moment(self, day: datetime) -> datetime:
        """Return a time in working hours on that day or the next working day."""
        return self.advance_time(day - timedelta(days=1), days=(1, 1))

    def _compose(
        self, sender: Person, to: Sequence[Person], text: Sequence[Paragraph], sent: datetime
    ) -> tuple[str, frozenset[str]]:
        forms = load_text("letters")
        greeting = sender.style.greeting if len(to) == 1 else forms["group"][len(sender.name) % len(forms["group"])]
        values = {"friend": to[0].first, "me": sender.first, "day": "morning" if sent.hour < _NOON else "afternoon"}
        parts = [expand(greeting, self.rng, values)]
        parts += [paragraph.text for paragraph in text if not paragraph.postscript]
        parts.append(expand(sender.style.farewell, self.rng, values))
        parts += [paragraph.text for paragraph in text if paragraph.postscript]
        if sender.style.signs:
            parts.append(format_signature(sender, self.rng))
        states = frozenset().union(*(paragraph.facts for paragraph in text))
        return "\n\n".join(filter(None, parts)), states


def is_working_day(day: datetime) -> bool:
    """Return True from Monday to Friday, except on England's bank holidays."""
    if day.weekday() >= 5 or (day.month, day.day) in {(12, 25), (12, 26), (1, 1)}:
        return False
    if day.weekday() == 0 and ((day.month == 5 and not 7 < day.day < 25) or (day.month == 8 and day.day >= 25)):
        return False
    return day.date() - easter(day.year) not in (timedelta(-2), timedelta(1))


def _add_prefix(prefix: str, subject: str) -> str:
    return subject if subject.lower().startswith(prefix.strip().lower()) else prefix + subject
