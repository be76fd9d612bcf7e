"""Compare who does what to whom, and from where to where: the same names and words in other roles say another thing."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gumshoe.rewards.heuristic.negation import are_opposites
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText, Word
from gumshoe.rewards.heuristic.value import Value

_PREPOSITION = re.compile(
    r"\b(from|to|into|by|than|before|after|over|under|above|below|for|against|behind|ahead of|via|until)\b", re.I
)
_CONTRARY = {"from": "to", "to": "from", "into": "from", "before": "after", "after": "before", "above": "below"}
_CONTRARY |= {"below": "above", "over": "under", "under": "over", "for": "against", "against": "for"}
_CONTRARY |= {"behind": "ahead of", "ahead of": "behind"}
_COMPARED = frozenset({"than", "before", "after", "over", "under", "above", "below", "behind", "ahead of"})
_BREAK = re.compile(r"[.;:!?,](?=\s|$)|\b(?:and|or|but|because|while|who|which|that)\b", re.I)
_PASSIVE = re.compile(r"\b(?:is|are|was|were|be|been|being|gets?|got)\b", re.I)
_BY = re.compile(r"\bby\b", re.I)
_MAX_ITEMS = 40  # of a reference; in a longer one, a name has several roles
_SMALL_GAP = 16  # characters between a preposition and its object: articles and titles


@dataclass(frozen=True, slots=True)
class Participant:
    """A name, a value or a word that may have a role."""

    items: tuple[Item, ...]

    @property
    def start(self) -> int:
        """Start in the text."""
        return self.items[0].start

    @property
    def end(self) -> int:
        """End in the text."""
        return self.items[-1].end

    @property
    def is_named(self) -> bool:
        """True for a name or a value, False for a common word."""
        return isinstance(self.items[0], Value) or self.items[0].is_name

    def is_same(self, other: "Participant") -> bool:
        """Return True if they share a name, value or word."""
        return any(
            one.agrees(two)  # type: ignore[arg-type] # both are of one kind
            for one in self.items
            for two in other.items
            if isinstance(one, Value) == isinstance(two, Value)
        )


@dataclass(frozen=True, slots=True)
class Conflict:
    """Participants in other roles."""

    what: str
    is_certain: bool
    """False for common words, whose roles may be worded in another way."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A verb with its subject and object, in the order of the text."""

    verb: Participant
    subject: Participant
    object: Participant
    is_passive: bool
    prepositions: tuple[str, ...]
    """Prepositions between verb and object."""

    @property
    def is_named(self) -> bool:
        """Return True if subject and object are names or values."""
        return self.subject.is_named and self.object.is_named

    def is_contrary(self, other: "Frame") -> bool:
        """Return True if the prepositions are contrary: "left before", "left after"."""
        return any(_CONTRARY.get(each) in other.prepositions for each in self.prepositions)


def find_conflict(reference: NormalizedText, answer: NormalizedText) -> Conflict | None:
    """Return the first conflict of roles between two texts; None without a conflict, or if the texts are long."""
    is_long = len(reference.items) > _MAX_ITEMS or len(answer.items) > 2 * _MAX_ITEMS
    if is_long or reference.text.rstrip(". ").casefold() in answer.text.casefold():
        return None
    own, theirs = _participants(answer), _participants(reference)
    return _find_other_object(reference, answer, theirs, own) or _find_swap(reference, answer, theirs, own)


def _participants(text: NormalizedText) -> list[Participant]:
    found: list[Participant] = []
    for item in text.items:
        previous = found[-1].items[-1] if found else None
        if (
            isinstance(item, Word)
            and item.is_name
            and isinstance(previous, Word)
            and previous.is_name
            and text.text[previous.end : item.start].strip(" -.&") in ("", "J", "I")
        ):
            found[-1] = Participant((*found[-1].items, item))
        else:
            found.append(Participant((item,)))
    return found


def _objects(text: NormalizedText, participants: list[Participant]) -> Iterator[tuple[str, Participant]]:
    """Yield each preposition with its object."""
    for match in _PREPOSITION.finditer(text.text):
        after = next((each for each in participants if each.start >= match.end()), None)
        if after is not None and after.start - match.end() <= _SMALL_GAP:
            between = text.text[match.end() : after.start]
            if not _PREPOSITION.search(between) and not _BREAK.search(between):
                yield match[1].casefold(), after


def _find_other_object(
    reference: NormalizedText, answer: NormalizedText, theirs: list[Participant], own: list[Participant]
) -> Conflict | None:
    """Return a participant that has the contrary preposition, or the preposition of another participant."""
    wanted, given = list(_objects(reference, theirs)), list(_objects(answer, own))
    if not wanted or not given:
        return None
    for preposition, each in given:
        contrary = _CONTRARY.get(preposition)
        if any(one == contrary and other.is_same(each) for one, other in wanted) and not (
            _has(wanted, preposition, each) or (contrary and _has(given, contrary, each))
        ):
            return Conflict(f"{preposition} {_words(answer, each)}", each.is_named)
    inverse = _is_inverse(theirs, own)
    for preposition, each in given:
        expected = [other for one, other in wanted if one == preposition]
        if not expected or (inverse and preposition in _COMPARED) or any(other.is_same(each) for other in expected):
            continue
        lost = [other for other in expected if not _has(given, preposition, other)]
        if any(other.is_same(each) for other in theirs) and any(
            other.is_same(one) for other in lost for one in own if one.is_named == other.is_named
        ):
            certain = each.is_named and all(other.is_named for other in lost)
            return Conflict(f"{preposition} {_words(answer, each)}", certain)
    return None


def _has(objects: list[tuple[str, Participant]], preposition: str, wanted: Participant) -> bool:
    return any(one == preposition and other.is_same(wanted) for one, other in objects)


def _find_swap(
    reference: NormalizedText, answer: NormalizedText, theirs: list[Participant], own: list[Participant]
) -> Conflict | None:
    """Return a verb whose subject and object are exchanged, in the same voice, or kept, in the other voice.

    A verb that stands in the answer with the roles of the reference as well is no conflict.
    """
    is_inverse = _is_inverse(theirs, own)
    contrary: dict[object, Conflict | None] = {}
    for wanted in _frames(reference, theirs):
        for given in _frames(answer, own):
            if not given.verb.is_same(wanted.verb):
                continue
            is_kept = given.subject.is_same(wanted.subject) and given.object.is_same(wanted.object)
            is_swapped = given.subject.is_same(wanted.object) and given.object.is_same(wanted.subject)
            if is_kept == is_swapped:
                continue
            turned = (wanted.is_passive != given.is_passive) ^ (wanted.is_contrary(given) or is_inverse)
            key = wanted.verb.items[0].key if isinstance(wanted.verb.items[0], Word) else wanted.verb
            if is_swapped == turned:
                contrary[key] = None
            else:
                what = f"{_words(answer, given.subject)} and {_words(answer, given.object)} are exchanged"
                contrary.setdefault(key, Conflict(what, wanted.is_named and given.is_named))
    return next((each for each in contrary.values() if each is not None), None)


def _frames(text: NormalizedText, participants: list[Participant]) -> list[Frame]:
    """Return the words that may be verbs, each with its subject and object."""
    found = [_frame(text, participants, each) for each in participants if not each.is_named]
    return [each for each in found if each is not None]


def _frame(text: NormalizedText, participants: list[Participant], verb: Participant) -> Frame | None:
    """Return the participants before and after a verb in its clause: the nearest names, or else the nearest words."""
    first = max((each.end() for each in _BREAK.finditer(text.text, 0, verb.start)), default=0)
    stop = _BREAK.search(text.text, verb.end)
    last = stop.start() if stop else len(text.text)
    before = [each for each in participants if first <= each.start and each.end <= verb.start]
    after = [each for each in participants if verb.end <= each.start and each.end <= last]
    if not before or not after:
        return None
    one = next((each for each in reversed(before) if each.is_named), before[-1])
    other = next((each for each in after if each.is_named), after[0])
    is_passive = _PASSIVE.search(text.text, one.end, verb.start) and _BY.search(text.text, verb.end, other.start)
    prepositions = _PREPOSITION.findall(text.text, verb.end, other.start)
    return Frame(verb, one, other, bool(is_passive), tuple(each.casefold() for each in prepositions))


def _is_inverse(theirs: list[Participant], own: list[Participant]) -> bool:
    """Return True if one text compares with "more" and the other with "less", or with other opposites."""
    wanted, given = _common_words(theirs), _common_words(own)
    return any(
        are_opposites(one, other)
        for one in wanted
        for other in given
        if not any(each.agrees(one) for each in given) and not any(each.agrees(other) for each in wanted)
    )


def _common_words(participants: list[Participant]) -> list[Word]:
    return [one for each in participants for one in each.items if isinstance(one, Word) and not one.is_name]


def _words(text: NormalizedText, participant: Participant) -> str:
    return repr(text.text[participant.start : participant.end])
