"""Mail that is about no matter: newsletters, notices, and small talk."""

from dataclasses import dataclass
from datetime import datetime

from gumshoe.synthesis.dice import Dice
from gumshoe.synthesis.grammar import Value, expand, load_text, sentence
from gumshoe.synthesis.letters import Letter, Paragraph, Post
from gumshoe.synthesis.people import Cast, Manner, Person, small_talk_values

_NO_MANNER = Manner("", "", signs=False, quotes_by_line=False, chatty=0)


@dataclass(slots=True)
class Chatter:
    """Writes it, for one mailbox."""

    dice: Dice
    cast: Cast
    post: Post

    def some(self, moment: datetime, most: int) -> list[Letter]:
        """One bulletin, or one conversation of at most so many letters."""
        kind = self.dice.weighted({"newsletter": 0.25, "notice": 0.25, "talk": 0.5})
        return self._talk(moment)[:most] if kind == "talk" else [self._bulletin(kind, moment)]

    def _talk(self, moment: datetime) -> list[Letter]:
        talk = self.dice.pick(load_text("chatter")["talk"])
        owner, friend = self.cast.owner, self.dice.pick(self.cast.colleagues)
        sender, reader = (friend, owner) if self.dice.chance(0.75) else (owner, friend)
        subject = expand(self.dice.pick(talk["subject"]), self.dice, self._values(reader))
        letters = [self.post.write(sender, [reader], [], subject, self._said(talk["body"], reader), moment)]
        for _ in range(self.dice.pick([0, 0, 1, 1, 2])):
            sender, reader = reader, sender
            moment = self.post.later(moment, days=(0, 1))
            text = self._said(talk["reply"], reader)
            letters.append(self.post.reply(letters[-1], sender, text, moment, depth=self.dice.between(0, 1)))
        return letters

    def _said(self, texts: list[str], reader: Person) -> list[Paragraph]:
        return [Paragraph(sentence(self.dice.pick(texts), self.dice, self._values(reader)))]

    def _bulletin(self, kind: str, moment: datetime) -> Letter:
        described = self.dice.pick(load_text("bulletins")[kind])
        values = self._values(self.cast.owner)
        company = self.post.company
        publisher = described.get("publisher")
        domain = f"{publisher.lower().replace(' ', '')}.example" if publisher else company.domain
        sender = Person(
            described["title"],
            "",
            "",
            publisher or company.name,
            f"{described['address']}@{domain}",
            "",
            "",
            _NO_MANNER,
        )
        if kind == "newsletter":
            parts = [
                self.dice.pick(described["opening"]),
                *self.dice.sample(described["item"], self.dice.between(3, 5)),
            ]
            parts.append(self.dice.pick(described["closing"]))
        else:
            parts = [self.dice.pick(described["body"])]
        body = "\n\n".join(sentence(part, self.dice, values) for part in parts)
        subject = expand(self.dice.pick(described["subject"]), self.dice, values)
        return Letter(moment, sender, (self.cast.owner,), (), subject, body, frozenset())

    def _values(self, reader: Person) -> dict[str, Value]:
        return small_talk_values(self.dice, self.cast, self.post.company, reader)
