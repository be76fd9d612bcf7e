"""Messages as people write them: greeting, text, farewell, signature, and what they quote."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dateutil.easter import easter

from gumshoe.synthesis.grammar import expand, load_text
from gumshoe.synthesis.people import Company, Person, signature
from gumshoe.synthesis.rng import Rng

_LONGEST = 4500  # characters of a body; an index leaves out bodies over 5,000
_OPENS, _NOON, _CLOSES = 8, 12, 18  # hours of the working day


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Part of a message, with the facts that it states."""

    text: str
    states: frozenset[str] = frozenset()
    postscript: bool = False
    """It stands below the name."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One message. What it quotes is an earlier letter, which need not be in the same mailbox."""

    sent: datetime
    sender: Person
    to: tuple[Person, ...]
    cc: tuple[Person, ...]
    subject: str
    own: str
    """Its own text, from the greeting to the signature."""
    own_states: frozenset[str]
    quoted: "Letter | None" = None
    forwarded: bool = False
    depth: int = 1
    """How many letters below it are quoted, the one it answers first."""

    @property
    def people(self) -> tuple[Person, ...]:
        return (self.sender, *self.to, *self.cc)

    @property
    def body(self) -> str:
        return "\n\n".join(filter(None, [self.own, *self._quotations()]))

    @property
    def states(self) -> frozenset[str]:
        """All facts that its body states, in its own text and in what it quotes."""
        return self.own_states.union(*(letter.own_states for letter in self._quoted_letters()))

    def _quoted_letters(self) -> list["Letter"]:
        found: list[Letter] = []
        room = _LONGEST - len(self.own)
        letter = self.quoted
        while letter is not None and len(found) < self.depth and (room := room - len(letter.own) - 250) > 0:
            found.append(letter)
            letter = letter.quoted
        return found

    def _quotations(self) -> list[str]:
        letters = self._quoted_letters()
        if self.sender.manner.quotes_by_line and not self.forwarded:
            return [_quoted_by_line(letters)]
        heads = ["---------- Forwarded message ---------"] if self.forwarded else []
        heads += ["-----Original Message-----"] * (len(letters) - len(heads))
        return [f"{head}\n{_headers(letter)}\n\n{letter.own}" for head, letter in zip(heads, letters, strict=True)]


def _headers(letter: Letter) -> str:
    to = "; ".join(person.name for person in letter.to)
    return f"From: {letter.sender.name}\nSent: {letter.sent:%d %B %Y %H:%M}\nTo: {to}\nSubject: {letter.subject}"


def _quoted_by_line(letters: list[Letter]) -> str:
    """Each letter one `>` deeper than the one that answered it."""
    lines = []
    for level, letter in enumerate(letters):
        prefix = "> " * level
        if level:
            lines.append(prefix.rstrip())
        lines.append(f"{prefix}On {letter.sent:%a, %d %b %Y} at {letter.sent:%H:%M}, {letter.sender.name} wrote:")
        lines += [f"{prefix}> {line}".rstrip() for line in letter.own.split("\n")]
    return "\n".join(lines)


@dataclass(slots=True)
class Post:
    """Writes letters among the people of one mailbox."""

    dice: Rng
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
        """A new letter."""
        own, states = self._compose(sender, to, text, sent)
        return Letter(sent, sender, tuple(to), tuple(cc), subject, own, states)

    def reply(self, letter: Letter, sender: Person, text: Sequence[Paragraph], sent: datetime, *, depth: int) -> Letter:
        """An answer to all, quoting as deep as `depth`; 0 quotes nothing."""
        to = [letter.sender] if letter.sender is not sender else list(letter.to)
        cc = [person for person in dict.fromkeys((*letter.to, *letter.cc)) if person is not sender and person not in to]
        own, states = self._compose(sender, to, text, sent)
        answer = Letter(sent, sender, tuple(to), tuple(cc), _prefixed("Re: ", letter.subject), own, states)
        return replace(answer, quoted=letter if depth else None, depth=depth)

    def forward(
        self, letter: Letter, sender: Person, to: Sequence[Person], text: Sequence[Paragraph], sent: datetime
    ) -> Letter:
        """A letter passed on whole."""
        own, states = self._compose(sender, to, text, sent)
        subject = _prefixed(self.dice.pick(["Fw: ", "FW: ", "Fwd: "]), letter.subject)
        return Letter(sent, sender, tuple(to), (), subject, own, states, quoted=letter, forwarded=True)

    def later(self, moment: datetime, *, days: tuple[int, int] = (0, 0)) -> datetime:
        """A working moment some working days on; within hours where that is 0 days."""
        days_on = self.dice.between(*days)
        if days_on == 0:
            moment += timedelta(minutes=self.dice.between(4, 200))
        else:
            for _ in range(days_on):
                moment += timedelta(days=1)
                while not is_working_day(moment):
                    moment += timedelta(days=1)
            moment = moment.replace(hour=_OPENS, minute=0) + timedelta(minutes=self.dice.below((_CLOSES - _OPENS) * 60))
        if moment.hour >= _CLOSES or not is_working_day(moment):
            return self.later(moment.replace(hour=_OPENS), days=(1, 1))
        return moment.replace(second=self.dice.below(60))

    def clock(self, day: datetime) -> datetime:
        """A working moment on that day or the next working day."""
        return self.later(day - timedelta(days=1), days=(1, 1))

    def _compose(
        self, sender: Person, to: Sequence[Person], text: Sequence[Paragraph], sent: datetime
    ) -> tuple[str, frozenset[str]]:
        forms = load_text("letters")
        greeting = sender.manner.greeting if len(to) == 1 else forms["group"][len(sender.name) % len(forms["group"])]
        values = {"friend": to[0].first, "me": sender.first, "day": "morning" if sent.hour < _NOON else "afternoon"}
        parts = [expand(greeting, self.dice, values)]
        parts += [paragraph.text for paragraph in text if not paragraph.postscript]
        parts.append(expand(sender.manner.farewell, self.dice, values))
        parts += [paragraph.text for paragraph in text if paragraph.postscript]
        if sender.manner.signs:
            parts.append(signature(sender, self.dice))
        states = frozenset().union(*(paragraph.states for paragraph in text))
        return "\n\n".join(filter(None, parts)), states


def is_working_day(day: datetime) -> bool:
    """Monday to Friday, and none of England's bank holidays."""
    if day.weekday() >= 5 or (day.month, day.day) in {(12, 25), (12, 26), (1, 1)}:
        return False
    if day.weekday() == 0 and ((day.month == 5 and not 7 < day.day < 25) or (day.month == 8 and day.day >= 25)):
        return False
    return day.date() - easter(day.year) not in (timedelta(-2), timedelta(1))


def _prefixed(prefix: str, subject: str) -> str:
    return subject if subject.lower().startswith(prefix.strip().lower()) else prefix + subject
