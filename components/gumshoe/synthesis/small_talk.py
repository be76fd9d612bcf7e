"""Write mail that is about no topic: newsletters, notices and small talk."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from gumshoe.synthesis.calendar import select_in_season
from gumshoe.synthesis.grammar import Value, expand, expand_sentence, load_text
from gumshoe.synthesis.letters import Letter, LetterWriter, Paragraph
from gumshoe.synthesis.people import Cast, Person, WritingStyle, make_domain, make_small_talk_values
from gumshoe.synthesis.rng import Rng

_NO_STYLE = WritingStyle("", "", signs=False, quotes_by_line=False, chatty=0)


@dataclass(slots=True)
class SmallTalkWriter:
    """Write small talk, newsletters and notices for one mailbox."""

    rng: Rng
    cast: Cast
    post: LetterWriter

    def write(self, moment: datetime, most: int) -> list[Letter]:
        """Return one bulletin, or one conversation of at most `most` letters."""
        kind = self.rng.pick_weighted({"newsletter": 0.25, "notice": 0.25, "talk": 0.5})
        return self._write_conversation(moment)[:most] if kind == "talk" else [self._write_bulletin(kind, moment)]

    def _write_conversation(self, moment: datetime) -> list[Letter]:
        talk = self.rng.pick(select_in_season(load_text("chatter")["talk"], moment))
        owner, friend = self.cast.owner, self.rng.pick(self.cast.colleagues)
        sender, reader = (friend, owner) if self.rng.chance(0.75) else (owner, friend)
        values = self._make_values(moment, sender, reader)
        subject, (body,) = self._fill(self.rng.pick(talk["subject"]), [talk["body"]], values)
        letter = self.post.write(sender, [reader], [], subject, [Paragraph(body)], moment)
        if self.rng.chance(0.4):
            return [letter]
        answer = expand_sentence(self.rng.pick(talk["reply"]), self.rng, {**values, "friend": sender.first})
        later, depth = self.post.advance_time(moment, days=(0, 1)), self.rng.between(0, 1)
        return [letter, self.post.reply(letter, reader, [Paragraph(answer)], later, depth=depth)]

    def _write_bulletin(self, kind: str, moment: datetime) -> Letter:
        described = self.rng.pick(load_text("bulletins")[kind])
        company, owner = self.post.company, self.cast.owner
        publisher = described.get("publisher")
        domain = make_domain(publisher) if publisher else company.domain
        address, firm = f"{described['address']}@{domain}", publisher or company.name
        sender = Person(described["title"], "", "", firm, address, "", "", _NO_STYLE)
        if kind == "newsletter":
            items = self.rng.sample(select_in_season(described["item"], moment), self.rng.between(3, 5))
            texts = [item if isinstance(item, str) else item["text"] for item in items]
            parts = [self.rng.pick(described["opening"]), *texts, self.rng.pick(described["closing"])]
        else:
            parts = [self.rng.pick(described["body"])]
        subject, texts = self._fill(self.rng.pick(described["subject"]), parts, self._make_values(moment, owner, owner))
        return Letter(moment, sender, (owner,), (), subject, "\n\n".join(texts), frozenset())

    def _fill(self, subject: str, parts: Sequence[str], values: dict[str, Value]) -> tuple[str, list[str]]:
        """Expand a subject and its text. The text first repeats the examples of the subject, then uses others."""
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        named: dict[str, str] = {}

        def in_subject(name: str) -> str:
            named[name] = self.rng.pick(lists[name])
            return named[name]

        def in_text(name: str) -> str:
            return named.pop(name, "") or self.rng.pick(lists[name])

        title = expand(subject, self.rng, {**values, **{name: partial(in_subject, name) for name in lists}})
        examples = {**values, **{name: partial(in_text, name) for name in lists}}
        return title, [expand_sentence(part, self.rng, examples) for part in parts]

    def _make_values(self, moment: datetime, sender: Person, reader: Person) -> dict[str, Value]:
        """Return the slots of one conversation, with the same day, month, floor and people throughout."""
        values = make_small_talk_values(self.rng, self.cast, self.post.company, sender, reader, moment)
        return {**values, "weekday": self.rng.pick(load_text("letters")["weekday"]), "month": f"{moment:%B}"}
