"""How a matter is written about, from the first enquiry to the last change."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import Value, load_text, sentence
from gumshoe.synthesis.letters import Letter, Paragraph, Post
from gumshoe.synthesis.people import Cast, Person, small_talk_values
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.topics import Inventor, Topic, TopicFact

_UNDER_WAY = 5  # days at most until a letter that is thought of is sent: two working days, and a long weekend


@dataclass(slots=True)
class Story:
    """A matter and all that was written about it, in order."""

    matter: Topic
    letters: list[Letter] = field(default_factory=list)
    """Those in the mailbox: the owner wrote or received each."""


@dataclass(slots=True)
class Teller:
    """Tells the story of one matter after another, to one mailbox."""

    dice: Rng
    cast: Cast
    post: Post
    inventor: Inventor
    difficulty: Difficulty
    said: Counter[str] = field(default_factory=Counter)
    """How often the mailbox has had each of the templates that stand out when they are repeated."""

    def tell(self, matter: Topic) -> Story:
        """All letters about a matter."""
        return _Telling(self, matter).story()


class _Telling:
    """The story of one matter while it is told."""

    def __init__(self, teller: Teller, matter: Topic) -> None:
        self._dice, self._cast, self._post = teller.dice, teller.cast, teller.post
        self._inventor, self._difficulty = teller.inventor, teller.difficulty
        self._matter = matter
        self._story = Story(matter)
        self._now = self._post.clock(matter.start)
        self._forms = load_text("letters")
        self._filler = load_text("filler")
        self._said = teller.said

    def story(self) -> Story:
        """Open questions first, then the facts, in one form or another, then what becomes of them."""
        for _ in range(self._dice.between(0, self._difficulty.open_questions)):
            self._open_question()
        facts = list(self._matter.facts)
        tabled = self._dice.between(2, 3) if self._dice.chance(self._difficulty.tables) else 0
        if tabled:
            self._table(facts[:tabled])
        for fact in facts[tabled:]:
            if self._has_come(self._matter.over):
                break
            self._dice.weighted(self._ways(fact))(fact)
            if self._dice.chance(self._difficulty.echoes):
                self._remark(self._forms["echo_who" if fact.kind.says_who else "echo"], fact, noun=fact.kind.noun)
        self._matter.facts = [fact for fact in facts if fact.versions]
        later = {self._change: self._difficulty.changes, self._approval: self._difficulty.approvals}
        for tell_on in self._dice.shuffled(list(later)):
            if self._dice.chance(later[tell_on]):
                tell_on()
        return self._story

    def _ways(self, fact: TopicFact) -> dict[Callable[[TopicFact], None], float]:
        """How the fact may be told, each as often as its number says."""
        passed_on = self._difficulty.passed_on if fact.kind.outside else 0
        return {self._plainly: 1, self._asked: self._difficulty.asked, self._from_outside: passed_on}

    # The parts of a story. Each moves on in time and adds the letters that reach the mailbox.

    def _open_question(self) -> None:
        sender = self._insider()
        text = self._line(self._filler["pending"][self._matter.kind.id], sender, self._cast.owner)
        self._send(sender, [Paragraph(text)], asking=True)

    def _plainly(self, fact: TopicFact) -> None:
        self._pass(fact)
        self._send(self._insider(fact), [Paragraph(self._statement(fact), self._keys(fact))], avoid=_named(fact))
        if self._dice.chance(0.25):
            self._acknowledge()

    def _table(self, facts: Sequence[TopicFact]) -> None:
        self._pass(*facts)
        values = self._matter.values()
        rows = [(fact.kind.label, self._tabled(fact)) for fact in facts]
        width = max(len(label) for label, _ in rows) + 4
        sides = self._dice.pick(["padded", "colon", "dash"])
        lines = [
            f"{label:<{width}}{value}"
            if sides == "padded"
            else f"{label}: {value}"
            if sides == "colon"
            else f"- {label}: {value}"
            for label, value in rows
        ]
        intro = sentence(self._fresh(self._forms["table"]), self._dice, values)
        keys = frozenset().union(*(self._keys(fact) for fact in facts))
        text = [Paragraph(intro), Paragraph("\n".join(lines), keys)]
        self._send(self._insider(*facts), text, avoid=_named(*facts))

    def _asked(self, fact: TopicFact) -> None:
        """Somebody asks, somebody who knows answers; one of the two is the owner."""
        self._move_on((1, 6))
        self._inventor.settle(self._matter, fact, self._now + timedelta(days=2))
        asks, knows = self._cast.owner, self._insider(fact, colleague=True)
        if self._matter.kind.id != "trip" and self._dice.chance(0.25):
            asks, knows = knows, asks
        thread = self._thread(asks, knows)
        question = sentence(self._dice.pick(fact.kind.ask), self._dice, self._called(thread))
        asked = self._go_on(thread, asks, [Paragraph(question)], knows, asking=True)
        self._move_on((0, 1))
        answer = self._fill(fact, fact.kind.reply)
        self._reply(asked, knows, [Paragraph(answer, self._keys(fact))])

    def _from_outside(self, fact: TopicFact) -> None:
        """The firm outside writes to a colleague, who passes it on."""
        self._pass(fact)
        colleague, owner = self._insider(fact, colleague=True), self._cast.owner
        intro = sentence(self._fresh(self._forms["from_outside"]), self._dice, self._matter.values())
        text = [Paragraph(intro), Paragraph(self._fill(fact, fact.kind.outside), self._keys(fact))]
        letter = self._post.write(self._matter.outsider, [colleague], [], self._subject(), text, self._now)
        self._move_on((0, 1))
        comments = self._forms["passed_on"] if self._dice.chance(0.5) else self._filler["life"]["comment"]
        comment = Paragraph(self._line(comments, colleague, owner))
        self._add(self._post.forward(letter, colleague, [owner], [comment], self._now))

    def _remark(self, texts: list[str], fact: TopicFact | None = None, **slots: str) -> None:
        """Somebody talks about a thing in a line or two without saying what it is."""
        self._move_on((0, 3))
        sender = self._insider(*([fact] if fact else []), colleague=True)
        text = self._line(texts, sender, self._cast.owner, **slots)
        self._send(sender, [Paragraph(text)], short=True)

    def _change(self) -> None:
        """One of the facts becomes another, if one can: a day only before it has come."""
        self._move_on((4, 12))
        texts = load_text("facts")["change"]
        can = [
            fact
            for fact in self._matter.facts
            if fact.kind.changes_as in texts and not self._has_come(fact.versions[0].day)
        ]
        if not can or self._has_come(self._matter.over):
            return
        fact = self._dice.pick(can)
        self._inventor.change(self._matter, fact, self._now)
        change = fact.change
        assert change is not None  # noqa: S101 - the line above made it
        old, new = fact.versions
        knows = self._insider(fact, avoid=[change.decider])
        avoid = [change.decider, *(version.person for version in fact.versions if version.person)]
        thread = self._thread(knows, self._cast.owner, avoid)
        values: dict[str, Value] = {
            **self._called(thread),
            "noun": fact.kind.noun,
            "old": old.value,
            "value": new.value,
            "reason": change.reason,
            "decider": change.decider.name,
        }
        forms = texts[fact.kind.changes_as]
        forms = [form for form in forms if "change" in form.casefold()] if self._own_words() else forms
        text = sentence(self._fresh(forms), self._dice, values)
        keys = frozenset([change.key, new.key])
        self._go_on(thread, knows, [Paragraph(text, keys)], self._cast.owner, avoid=avoid)
        if self._dice.chance(self._difficulty.echoes):
            noun = fact.kind.noun
            self._remark(
                self._forms["echo_change"], fact, change=f"change {'of' if fact.kind.says_who else 'to the'} {noun}"
            )

    def _has_come(self, day: date | None) -> bool:
        """Whether a day has come, or is too near for plans."""
        return day is not None and day <= self._now.date() + timedelta(days=_UNDER_WAY)

    def _approval(self) -> None:
        self._move_on((2, 9))
        if self._has_come(self._matter.over):
            return
        self._matter.approval = approval = self._inventor.approval(self._matter)
        texts = load_text("facts")["approval"]
        values = {**self._matter.values(), "request": approval.request, "decider": approval.decider.name}
        verdict = "yes" if approval.granted else "no"
        approval.evidence = sentence(self._dice.pick(texts[verdict]), self._dice, values)
        because = f"{self._fresh(texts[f'because_{verdict}'])}."
        core = [Paragraph(f"{approval.evidence} {because}", frozenset([approval.key]))]
        if self._dice.chance(self._difficulty.echoes):
            self._remark(texts["open"], request=approval.request)
            self._move_on((0, 4))
        knows = self._insider(colleague=True, avoid=[approval.decider])
        if not self._dice.chance(self._difficulty.asked):
            self._send(knows, core)
            return
        question = Paragraph(sentence(self._dice.pick(texts["ask"]), self._dice, values))
        asks = self._send(self._cast.owner, [question], to=[knows], asking=True)
        self._move_on((0, 3))
        self._reply(asks, knows, core)

    def _acknowledge(self) -> None:
        """A short answer to the last letter."""
        last = self._story.letters[-1]
        sender = self._cast.owner if last.sender is not self._cast.owner else last.to[0]
        self._move_on((0, 1))
        text = self._line(self._filler["life"]["thanks"], sender, last.sender)
        self._reply(last, sender, [Paragraph(text)])

    # What they are made of.

    def _pass(self, *facts: TopicFact) -> None:
        """Time goes by until facts are settled."""
        self._move_on((1, 7))
        for fact in facts:
            self._inventor.settle(self._matter, fact, self._now)

    def _move_on(self, days: tuple[int, int]) -> None:
        self._now = self._post.later(self._now, days=days)

    def _keys(self, fact: TopicFact) -> frozenset[str]:
        return fact.versions[-1].states

    def _statement(self, fact: TopicFact) -> str:
        texts = fact.kind.with_value_last() if self._difficulty.value_last else fact.kind.say
        return self._fill(fact, fact.kind.in_own_words(texts) if self._own_words() else texts)

    def _own_words(self) -> bool:
        return self._dice.chance(self._difficulty.own_words)

    def _fill(self, fact: TopicFact, templates: list[str]) -> str:
        version = fact.versions[-1]
        person = version.person.name if version.person else ""
        values = {**self._matter.values(), "value": version.value, "person": person}
        return sentence(self._dice.pick(templates), self._dice, values)

    def _tabled(self, fact: TopicFact) -> str:
        version = fact.versions[-1]
        return (
            f"{version.person.name}, {version.value}"
            if fact.kind.type == "contact" and version.person
            else version.value
        )

    def _insider(self, *facts: TopicFact, colleague: bool = False, avoid: Sequence[Person] = ()) -> Person:
        """Somebody who can write about facts without speaking of themselves in the third person."""
        named = _named(*facts)
        team = [person for person in self._matter.team if person not in named and person not in avoid]
        if not colleague and self._matter.kind.id != "trip" and self._dice.chance(0.2):
            return self._cast.owner
        return self._dice.pick(team or [person for person in self._cast.colleagues if person not in (*named, *avoid)])

    def _subject(self, *, asking: bool = False, remark: bool = False) -> str:
        """One that suits the letter: what announces or states a thing has another than what asks for it."""
        others = self._forms["subject"]
        forms = others["asks"] if asking else others["remarks"] if remark else self._matter.kind.subject
        return sentence(self._dice.pick(forms), self._dice, self._matter.values())

    def _send(
        self,
        sender: Person,
        core: list[Paragraph],
        *,
        to: Sequence[Person] | None = None,
        short: bool = False,
        asking: bool = False,
        avoid: Sequence[Person] = (),
    ) -> Letter:
        """A new letter with what people write round the matter itself; nothing, where it is to be short.

        Without `to` it goes to the owner, or from the owner to somebody of the team whom it does not talk about.
        """
        self._move_on((0, 2))
        owner = self._cast.owner
        if to is None:
            others = [person for person in self._matter.team if person not in avoid]
            others = others or [person for person in self._cast.colleagues if person not in avoid]
            to = [owner] if sender is not owner else self._dice.sample(others, 1)
        others = [person for person in self._matter.team if person is not sender and person not in to]
        cc = self._dice.sample(others, self._dice.between(0, 2)) if self._dice.chance(0.4) else []
        text = core if short else self._surrounded(core, sender, to[0], asking)
        subject = self._subject(asking=asking, remark=short)
        return self._add(self._post.write(sender, to, cc, subject, text, self._now))

    def _thread(self, sender: Person, to: Person, avoid: Sequence[Person] = ()) -> Letter | None:
        """The last letter, where these two are in it (and none of `avoid`) and go on from there."""
        last = self._story.letters[-1] if self._story.letters else None
        people = set(last.people) if last else set()
        fits = {sender, to} <= people and people.isdisjoint(avoid)
        return last if fits and self._dice.chance(self._difficulty.continues) else None

    def _called(self, thread: Letter | None) -> dict[str, Value]:
        """The matter's slots; within a thread people need not call it by its whole name again."""
        values = self._matter.values()
        if thread and self._dice.chance(self._difficulty.short_names):
            values["it"] = f"{self._dice.pick(['this', 'the'])} {self._matter.short}"
        return values

    def _go_on(
        self,
        thread: Letter | None,
        sender: Person,
        core: list[Paragraph],
        to: Person,
        *,
        asking: bool = False,
        avoid: Sequence[Person] = (),
    ) -> Letter:
        """An answer in the thread, or a new letter."""
        if thread:
            return self._reply(thread, sender, core)
        return self._send(sender, core, to=[to] if to is not sender else None, asking=asking, avoid=avoid)

    def _reply(self, letter: Letter, sender: Person, core: list[Paragraph]) -> Letter:
        depth = self._dice.between(0, self._difficulty.depth)
        return self._add(self._post.reply(letter, sender, core, self._now, depth=depth))

    def _add(self, letter: Letter) -> Letter:
        self._story.letters.append(letter)
        return letter

    def _surrounded(self, core: list[Paragraph], sender: Person, reader: Person, asking: bool) -> list[Paragraph]:
        """The core with openings, closings and other sentences about the matter."""
        life = self._filler["life"]
        around = [self._line(kind, sender, reader) for kind in self._fillers(asking)]
        cut = self._dice.between(0, len(around))
        before, after = [Paragraph(text) for text in around[:cut]], [Paragraph(text) for text in around[cut:]]
        if before and len(core) == 1 and self._dice.chance(0.4):
            joined = f"{before.pop().text} {core[0].text}"
            core = [Paragraph(joined, core[0].states)]
        if not asking and self._dice.chance(0.25):  # some say that no answer is needed
            before.insert(0, Paragraph(self._line(life["opening"], sender, reader)))
        elif not asking and self._dice.chance(0.3):
            after.append(Paragraph(self._line(life["closing"], sender, reader)))
        if self._dice.chance(sender.manner.chatty):
            aside = self._line(life["aside"], sender, reader)
            after.append(Paragraph(aside, postscript=aside.startswith("PS ")))
        return [*before, *core, *after]

    def _fillers(self, asking: bool) -> list[list[str]]:
        """Sentences about the matter; one that asks would go unanswered where another question is answered."""
        count = self._dice.between(*self._difficulty.filler)
        own, general = (
            [text for text in self._filler["filler"][kind] if not (asking and "?" in text)]
            for kind in (self._matter.kind.id, "general")
        )
        return [own if self._dice.chance(0.85) else general for _ in range(count)]

    def _line(self, templates: list[str], sender: Person, reader: Person, **slots: str) -> str:
        """One of the sentences of small talk, filled."""
        template = self._fresh(templates)
        values = small_talk_values(self._dice, self._cast, self._post.company, sender, reader, self._now)
        return sentence(template, self._dice, {**values, **self._matter.values(), **slots})

    def _fresh(self, templates: list[str]) -> str:
        """One of those that the mailbox has had least often."""
        fewest = min(self._said[template] for template in templates)
        template = self._dice.pick([each for each in templates if self._said[each] == fewest])
        self._said[template] += 1
        return template


def _named(*facts: TopicFact) -> list[Person]:
    """Those whom facts are about."""
    return [version.person for fact in facts for version in fact.versions if version.person]
