"""Write the letters about a topic, from the first question to the last change."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from gumshoe.synthesis.difficulty import Difficulty
from gumshoe.synthesis.grammar import Value, expand_sentence, load_text
from gumshoe.synthesis.letters import Letter, LetterWriter, Paragraph
from gumshoe.synthesis.people import Cast, Person, make_small_talk_values
from gumshoe.synthesis.rng import Rng
from gumshoe.synthesis.topics import Topic, TopicFact, TopicInventor

_MAX_DAYS_TO_SEND = 5  # two working days and a long weekend


@dataclass(slots=True)
class Story:
    """A topic and all letters about it, in order."""

    topic: Topic
    letters: list[Letter] = field(default_factory=list)
    """Letters in the mailbox, sent or received by the owner."""


@dataclass(slots=True)
class StoryWriter:
    """Write the stories of one mailbox."""

    rng: Rng
    cast: Cast
    post: LetterWriter
    inventor: TopicInventor
    difficulty: Difficulty
    use_counts: Counter[str] = field(default_factory=Counter)
    """Uses in the mailbox of each template that is noticeable when repeated."""

    def write(self, topic: Topic) -> Story:
        """Write all letters about a topic."""
        return _StoryBuilder(self, topic).build()


class _StoryBuilder:
    """Build the story of one topic."""

    def __init__(self, teller: StoryWriter, topic: Topic) -> None:
        self._rng, self._cast, self._post = teller.rng, teller.cast, teller.post
        self._inventor, self._difficulty = teller.inventor, teller.difficulty
        self._topic = topic
        self._story = Story(topic)
        self._now = self._post.find_working_moment(topic.start)
        self._forms = load_text("letters")
        self._filler = load_text("filler")
        self._said = teller.use_counts

    def build(self) -> Story:
        """Write open questions first, then the facts in various forms, then changes and approvals."""
        for _ in range(self._rng.between(0, self._difficulty.open_questions)):
            self._send_open_question()
        facts = list(self._topic.facts)
        tabled = self._rng.between(2, 3) if self._rng.chance(self._difficulty.tables) else 0
        if tabled:
            self._send_table(facts[:tabled])
        for fact in facts[tabled:]:
            if self._is_too_late_for(self._topic.end_day):
                break
            self._rng.pick_weighted(self._weigh_forms(fact))(fact)
            if self._rng.chance(self._difficulty.echoes):
                self._send_remark(
                    self._forms["echo_who" if fact.kind.is_about_person else "echo"], fact, noun=fact.kind.noun
                )
        self._topic.facts = [fact for fact in facts if fact.versions]
        later = {self._change_fact: self._difficulty.changes, self._decide_request: self._difficulty.approvals}
        for tell_on in self._rng.shuffled(list(later)):
            if self._rng.chance(later[tell_on]):
                tell_on()
        return self._story

    def _weigh_forms(self, fact: TopicFact) -> dict[Callable[[TopicFact], None], float]:
        """Return the possible forms of stating a fact, with their weights."""
        passed_on = self._difficulty.passed_on if fact.kind.outside else 0
        return {
            self._state_plainly: 1,
            self._ask_and_answer: self._difficulty.asked,
            self._forward_from_outside: passed_on,
        }

    # Parts of a story. Each advances the time and adds letters to the mailbox.

    def _send_open_question(self) -> None:
        sender = self._choose_insider()
        text = self._write_line(self._filler["pending"][self._topic.kind.id], sender, self._cast.owner)
        self._send(sender, [Paragraph(text)], asking=True)

    def _state_plainly(self, fact: TopicFact) -> None:
        self._settle_later(fact)
        self._send(
            self._choose_insider(fact),
            [Paragraph(self._make_statement(fact), self._get_keys(fact))],
            avoid=_list_people(fact),
        )
        if self._rng.chance(0.25):
            self._acknowledge()

    def _send_table(self, facts: Sequence[TopicFact]) -> None:
        self._settle_later(*facts)
        values = self._topic.values()
        rows = [(fact.kind.label, self._format_cell(fact)) for fact in facts]
        width = max(len(label) for label, _ in rows) + 4
        sides = self._rng.pick(["padded", "colon", "dash"])
        lines = [
            f"{label:<{width}}{value}"
            if sides == "padded"
            else f"{label}: {value}"
            if sides == "colon"
            else f"- {label}: {value}"
            for label, value in rows
        ]
        intro = expand_sentence(self._pick_least_used(self._forms["table"]), self._rng, values)
        keys = frozenset().union(*(self._get_keys(fact) for fact in facts))
        text = [Paragraph(intro), Paragraph("\n".join(lines), keys)]
        self._send(self._choose_insider(*facts), text, avoid=_list_people(*facts))

    def _ask_and_answer(self, fact: TopicFact) -> None:
        """Let somebody ask and somebody else answer. One of the two is the owner."""
        self._move_on((1, 6))
        self._inventor.settle(self._topic, fact, self._now + timedelta(days=2))
        asks, knows = self._cast.owner, self._choose_insider(fact, colleague=True)
        if self._topic.kind.id != "trip" and self._rng.chance(0.25):
            asks, knows = knows, asks
        thread = self._find_thread(asks, knows)
        question = expand_sentence(self._rng.pick(fact.kind.ask), self._rng, self._make_topic_values(thread))
        asked = self._continue_thread(thread, asks, [Paragraph(question)], knows, asking=True)
        self._move_on((0, 1))
        answer = self._fill(fact, fact.kind.reply)
        self._reply(asked, knows, [Paragraph(answer, self._get_keys(fact))])

    def _forward_from_outside(self, fact: TopicFact) -> None:
        """Let the outside firm write to a colleague, who forwards the letter."""
        self._settle_later(fact)
        colleague, owner = self._choose_insider(fact, colleague=True), self._cast.owner
        intro = expand_sentence(self._pick_least_used(self._forms["from_outside"]), self._rng, self._topic.values())
        text = [Paragraph(intro), Paragraph(self._fill(fact, fact.kind.outside), self._get_keys(fact))]
        letter = self._post.write(self._topic.outsider, [colleague], [], self._make_subject(), text, self._now)
        self._move_on((0, 1))
        comments = self._forms["passed_on"] if self._rng.chance(0.5) else self._filler["life"]["comment"]
        comment = Paragraph(self._write_line(comments, colleague, owner))
        self._add(self._post.forward(letter, colleague, [owner], [comment], self._now))

    def _send_remark(self, texts: list[str], fact: TopicFact | None = None, **slots: str) -> None:
        """Let somebody mention a fact in a line or two without stating it."""
        self._move_on((0, 3))
        sender = self._choose_insider(*([fact] if fact else []), colleague=True)
        text = self._write_line(texts, sender, self._cast.owner, **slots)
        self._send(sender, [Paragraph(text)], short=True)

    def _change_fact(self) -> None:
        """Change one of the facts, if possible. A date changes only before that day."""
        self._move_on((4, 12))
        texts = load_text("facts")["change"]
        can = [
            fact
            for fact in self._topic.facts
            if fact.kind.change_category in texts and not self._is_too_late_for(fact.versions[0].day)
        ]
        if not can or self._is_too_late_for(self._topic.end_day):
            return
        fact = self._rng.pick(can)
        self._inventor.change(self._topic, fact, self._now)
        change = fact.change
        assert change is not None  # noqa: S101 - the line above made it
        old, new = fact.versions
        knows = self._choose_insider(fact, avoid=[change.decider])
        avoid = [change.decider, *(version.person for version in fact.versions if version.person)]
        thread = self._find_thread(knows, self._cast.owner, avoid)
        values: dict[str, Value] = {
            **self._make_topic_values(thread),
            "noun": fact.kind.noun,
            "old": old.value,
            "value": new.value,
            "reason": change.reason,
            "decider": change.decider.name,
        }
        forms = texts[fact.kind.change_category]
        forms = [form for form in forms if "change" in form.casefold()] if self._uses_own_words() else forms
        text = expand_sentence(self._pick_least_used(forms), self._rng, values)
        keys = frozenset([change.key, new.key])
        self._continue_thread(thread, knows, [Paragraph(text, keys)], self._cast.owner, avoid=avoid)
        if self._rng.chance(self._difficulty.echoes):
            noun = fact.kind.noun
            self._send_remark(
                self._forms["echo_change"],
                fact,
                change=f"change {'of' if fact.kind.is_about_person else 'to the'} {noun}",
            )

    def _is_too_late_for(self, day: date | None) -> bool:
        """Return True if a day has passed, or is too close for plans."""
        return day is not None and day <= self._now.date() + timedelta(days=_MAX_DAYS_TO_SEND)

    def _decide_request(self) -> None:
        self._move_on((2, 9))
        if self._is_too_late_for(self._topic.end_day):
            return
        self._topic.approval = approval = self._inventor.invent_approval(self._topic)
        texts = load_text("facts")["approval"]
        values = {**self._topic.values(), "request": approval.request, "decider": approval.decider.name}
        verdict = "yes" if approval.granted else "no"
        approval.evidence = expand_sentence(self._rng.pick(texts[verdict]), self._rng, values)
        because = f"{self._pick_least_used(texts[f'because_{verdict}'])}."
        core = [Paragraph(f"{approval.evidence} {because}", frozenset([approval.key]))]
        if self._rng.chance(self._difficulty.echoes):
            self._send_remark(texts["open"], request=approval.request)
            self._move_on((0, 4))
        knows = self._choose_insider(colleague=True, avoid=[approval.decider])
        if not self._rng.chance(self._difficulty.asked):
            self._send(knows, core)
            return
        question = Paragraph(expand_sentence(self._rng.pick(texts["ask"]), self._rng, values))
        asks = self._send(self._cast.owner, [question], to=[knows], asking=True)
        self._move_on((0, 3))
        self._reply(asks, knows, core)

    def _acknowledge(self) -> None:
        """Send a short reply to the last letter."""
        last = self._story.letters[-1]
        sender = self._cast.owner if last.sender is not self._cast.owner else last.to[0]
        self._move_on((0, 1))
        text = self._write_line(self._filler["life"]["thanks"], sender, last.sender)
        self._reply(last, sender, [Paragraph(text)])

    # Building blocks of these parts.

    def _settle_later(self, *facts: TopicFact) -> None:
        """Advance the time and settle facts."""
        self._move_on((1, 7))
        for fact in facts:
            self._inventor.settle(self._topic, fact, self._now)

    def _move_on(self, days: tuple[int, int]) -> None:
        self._now = self._post.advance_time(self._now, days=days)

    def _get_keys(self, fact: TopicFact) -> frozenset[str]:
        return fact.versions[-1].states

    def _make_statement(self, fact: TopicFact) -> str:
        texts = fact.kind.select_value_last() if self._difficulty.value_last else fact.kind.say
        return self._fill(fact, fact.kind.select_own_words(texts) if self._uses_own_words() else texts)

    def _uses_own_words(self) -> bool:
        return self._rng.chance(self._difficulty.own_words)

    def _fill(self, fact: TopicFact, templates: list[str]) -> str:
        version = fact.versions[-1]
        person = version.person.name if version.person else ""
        values = {**self._topic.values(), "value": version.value, "person": person}
        return expand_sentence(self._rng.pick(templates), self._rng, values)

    def _format_cell(self, fact: TopicFact) -> str:
        version = fact.versions[-1]
        return (
            f"{version.person.name}, {version.value}"
            if fact.kind.type == "contact" and version.person
            else version.value
        )

    def _choose_insider(self, *facts: TopicFact, colleague: bool = False, avoid: Sequence[Person] = ()) -> Person:
        """Return a person who can write about facts without mentioning themselves in the third person."""
        named = _list_people(*facts)
        team = [person for person in self._topic.team if person not in named and person not in avoid]
        if not colleague and self._topic.kind.id != "trip" and self._rng.chance(0.2):
            return self._cast.owner
        return self._rng.pick(team or [person for person in self._cast.colleagues if person not in (*named, *avoid)])

    def _make_subject(self, *, asking: bool = False, remark: bool = False) -> str:
        """Return a subject line that suits the letter: statements and questions have different ones."""
        others = self._forms["subject"]
        forms = others["asks"] if asking else others["remarks"] if remark else self._topic.kind.subject
        return expand_sentence(self._rng.pick(forms), self._rng, self._topic.values())

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
        """Send a new letter, with surrounding text unless it is short.

        Without `to`, it goes to the owner, or from the owner to a team member whom it does not mention.
        """
        self._move_on((0, 2))
        owner = self._cast.owner
        if to is None:
            others = [person for person in self._topic.team if person not in avoid]
            others = others or [person for person in self._cast.colleagues if person not in avoid]
            to = [owner] if sender is not owner else self._rng.sample(others, 1)
        others = [person for person in self._topic.team if person is not sender and person not in to]
        cc = self._rng.sample(others, self._rng.between(0, 2)) if self._rng.chance(0.4) else []
        text = core if short else self._surround(core, sender, to[0], asking)
        subject = self._make_subject(asking=asking, remark=short)
        return self._add(self._post.write(sender, to, cc, subject, text, self._now))

    def _find_thread(self, sender: Person, to: Person, avoid: Sequence[Person] = ()) -> Letter | None:
        """Return the last letter if both people (and none of `avoid`) are in it and they continue that thread."""
        last = self._story.letters[-1] if self._story.letters else None
        people = set(last.people) if last else set()
        fits = {sender, to} <= people and people.isdisjoint(avoid)
        return last if fits and self._rng.chance(self._difficulty.continues) else None

    def _make_topic_values(self, thread: Letter | None) -> dict[str, Value]:
        """Return the topic's slot values. Within a thread, people may use its short name."""
        values = self._topic.values()
        if thread and self._rng.chance(self._difficulty.short_names):
            values["it"] = f"{self._rng.pick(['this', 'the'])} {self._topic.short}"
        return values

    def _continue_thread(
        self,
        thread: Letter | None,
        sender: Person,
        core: list[Paragraph],
        to: Person,
        *,
        asking: bool = False,
        avoid: Sequence[Person] = (),
    ) -> Letter:
        """Reply in the thread, or send a new letter."""
        if thread:
            return self._reply(thread, sender, core)
        return self._send(sender, core, to=[to] if to is not sender else None, asking=asking, avoid=avoid)

    def _reply(self, letter: Letter, sender: Person, core: list[Paragraph]) -> Letter:
        depth = self._rng.between(0, self._difficulty.depth)
        return self._add(self._post.reply(letter, sender, core, self._now, depth=depth))

    def _add(self, letter: Letter) -> Letter:
        self._story.letters.append(letter)
        return letter

    def _surround(self, core: list[Paragraph], sender: Person, reader: Person, asking: bool) -> list[Paragraph]:
        """Add openings, closings and other sentences about the topic."""
        life = self._filler["life"]
        around = [self._write_line(kind, sender, reader) for kind in self._choose_fillers(asking)]
        cut = self._rng.between(0, len(around))
        before, after = [Paragraph(text) for text in around[:cut]], [Paragraph(text) for text in around[cut:]]
        if before and len(core) == 1 and self._rng.chance(0.4):
            joined = f"{before.pop().text} {core[0].text}"
            core = [Paragraph(joined, core[0].facts)]
        if not asking and self._rng.chance(0.25):  # some openings say that no answer is needed
            before.insert(0, Paragraph(self._write_line(life["opening"], sender, reader)))
        elif not asking and self._rng.chance(0.3):
            after.append(Paragraph(self._write_line(life["closing"], sender, reader)))
        if self._rng.chance(sender.style.chatty):
            aside = self._write_line(life["aside"], sender, reader)
            after.append(Paragraph(aside, postscript=aside.startswith("PS ")))
        return [*before, *core, *after]

    def _choose_fillers(self, asking: bool) -> list[list[str]]:
        """Return templates of sentences about the topic.

        A question contains no other questions, which would stay unanswered.
        """
        count = self._rng.between(*self._difficulty.filler)
        own, general = (
            [text for text in self._filler["filler"][kind] if not (asking and "?" in text)]
            for kind in (self._topic.kind.id, "general")
        )
        return [own if self._rng.chance(0.85) else general for _ in range(count)]

    def _write_line(self, templates: list[str], sender: Person, reader: Person, **slots: str) -> str:
        """Return one of the sentences of small talk, expanded."""
        template = self._pick_least_used(templates)
        values = make_small_talk_values(self._rng, self._cast, self._post.company, sender, reader, self._now)
        return expand_sentence(template, self._rng, {**values, **self._topic.values(), **slots})

    def _pick_least_used(self, templates: list[str]) -> str:
        """Return one of the templates that the mailbox has used least often."""
        fewest = min(self._said[template] for template in templates)
        template = self._rng.pick([each for each in templates if self._said[each] == fewest])
        self._said[template] += 1
        return template


def _list_people(*facts: TopicFact) -> list[Person]:
    """Return the people whom facts are about."""
    return [version.person for fact in facts for version in fact.versions if version.person]
