"""Mail that is about no matter: newsletters, notices, and small talk."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from gumshoe.synthesis.calendar import in_season
from gumshoe.synthesis.grammar import Value, expand, load_text, sentence
from gumshoe.synthesis.letters import Letter, Paragraph, Post
from gumshoe.synthesis.people import Cast, Manner, Person, domain_of, small_talk_values
from gumshoe.synthesis.rng import Rng

_NO_MANNER = Manner("", "", signs=False, quotes_by_line=False, chatty=0)


@dataclass(slots=True)
class SmallTalk:
    """Writes it, for one mailbox."""

    dice: Rng
    cast: Cast
    post: Post

    def some(self, moment: datetime, most: int) -> list[Letter]:
        """One bulletin, or one conversation of at most so many letters."""
        kind = self.dice.weighted({"newsletter": 0.25, "notice": 0.25, "talk": 0.5})
        return self._talk(moment)[:most] if kind == "talk" else [self._bulletin(kind, moment)]

    def _talk(self, moment: datetime) -> list[Letter]:
        talk = self.dice.pick(in_season(load_text("chatter")["talk"], moment))
        owner, friend = self.cast.owner, self.dice.pick(self.cast.colleagues)
        sender, reader = (friend, owner) if self.dice.chance(0.75) else (owner, friend)
        values = self._values(moment, sender, reader)
        subject, (body,) = self._filled(self.dice.pick(talk["subject"]), [talk["body"]], values)
        letter = self.post.write(sender, [reader], [], subject, [Paragraph(body)], moment)
        if self.dice.chance(0.4):
            return [letter]
        answer = sentence(self.dice.pick(talk["reply"]), self.dice, {**values, "friend": sender.first})
        later, depth = self.post.later(moment, days=(0, 1)), self.dice.between(0, 1)
        return [letter, self.post.reply(letter, reader, [Paragraph(answer)], later, depth=depth)]

    def _bulletin(self, kind: str, moment: datetime) -> Letter:
        described = self.dice.pick(load_text("bulletins")[kind])
        company, owner = self.post.company, self.cast.owner
        publisher = described.get("publisher")
        domain = domain_of(publisher) if publisher else company.domain
        address, firm = f"{described['address']}@{domain}", publisher or company.name
        sender = Person(described["title"], "", "", firm, address, "", "", _NO_MANNER)
        if kind == "newsletter":
            items = self.dice.sample(in_season(described["item"], moment), self.dice.between(3, 5))
            texts = [item if isinstance(item, str) else item["text"] for item in items]
            parts = [self.dice.pick(described["opening"]), *texts, self.dice.pick(described["closing"])]
        else:
            parts = [self.dice.pick(described["body"])]
        subject, texts = self._filled(self.dice.pick(described["subject"]), parts, self._values(moment, owner, owner))
        return Letter(moment, sender, (owner,), (), subject, "\n\n".join(texts), frozenset())

    def _filled(self, subject: str, parts: Sequence[str], values: dict[str, Value]) -> tuple[str, list[str]]:
        """A subject and a text. What the subject names, the text names first; then it has other examples."""
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        named: dict[str, str] = {}

        def in_subject(name: str) -> str:
            named[name] = self.dice.pick(lists[name])
            return named[name]

        def in_text(name: str) -> str:
            return named.pop(name, "") or self.dice.pick(lists[name])

        title = expand(subject, self.dice, {**values, **{name: partial(in_subject, name) for name in lists}})
        examples = {**values, **{name: partial(in_text, name) for name in lists}}
        return title, [sentence(part, self.dice, examples) for part in parts]

    def _values(self, moment: datetime, sender: Person, reader: Person) -> dict[str, Value]:
        """The slots of one conversation: the same day, month, floor and people all through it."""
        values = small_talk_values(self.dice, self.cast, self.post.company, sender, reader, moment)
        return {**values, "weekday": self.dice.pick(load_text("letters")["weekday"]), "month": f"{moment:%B}"}
