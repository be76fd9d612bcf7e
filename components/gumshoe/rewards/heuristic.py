"""The judge that needs no model: values are compared as values, names as names, and the rest word by word.

The rules are asked in order, and the first that has something to say decides. They are strict where a policy could
learn to please a judge rather than answer: whoever names several candidates, does not commit, or quotes a whole message
is wrong, even where the right words are among them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise

from gumshoe.rewards.exact import is_exact
from gumshoe.rewards.judge import Asked, Verdict
from gumshoe.rewards.reading import Item, Text, Word
from gumshoe.rewards.values import Value, normalised

_COVERED = 0.7  # of a reference's words, so that an answer says what it says
_OVERLAP = 0.6  # token F1 that is enough as well
_ALL_VALUES = 0.75  # of a reference's values, where there are more than three
_MOST = 24  # content words that an answer may have beyond those of question and reference
_LONGEST = 800  # characters that an answer may have beyond the reference's
_RIVALS = 1  # other values beside the right one that are taken for context
_NEWS = 2  # content words that a sentence has which says something else
_PARTS = 2  # new short parts, or new names in a row, that make a list
_PART = 4  # words of a short part
_RESTATED = 0.5  # of a question's words, in an answer that says them again
_SHORT = 4  # content words of a reference that is a value or a name, and no sentence
_LISTED = 6  # of what is needed: whoever needs more is given a list anyway


def _pattern(*words: str) -> re.Pattern[str]:
    """Any of these words or phrases."""
    return re.compile(rf"\b(?:{'|'.join(words)})(?!\w)", re.I)


_UNKNOWN = _pattern(
    r"i (?:do not|don't) know|no (?:answer|information|evidence|idea|results?|mention|relevant \w+|matching \w+)",
    r"(?:not|cannot|could not|couldn't) (?:be )?(?:found|known|stated|specified|mentioned)|nothing (?:was )?found",
    r"unknown|(?:not|n't) (?:mention|say|state|specify)\w*",
)
_HEDGE = _pattern(
    r"either|1 of|guess\w*|hard to say|(?:most )?likely|apparently|seem\w* to|appears? to|my best bet",
    r"unverified|assum\w+|if i (?:recall|remember)",
    r"un(?:sure|certain|clear|confirmed)|not\b[^.;]{0,20} (?:sure|certain|clear)|if i had to",
    r"(?:cannot|can't|could not|couldn't|not able to|unable to|don't|do not|wasn't able to)\b[^.;]{0,20} "
    r"(?:confirm|verify|find|tell|say|let me say|settle)\w*",
    r"(?:any|with|for) (?:confidence|certainty|certain)|nothing that settles",
)
_MODAL = _pattern(r"maybe|perhaps|possibly|probably|presumably|might|(?:could|may) (?:well )?(?:be|have)")
_REFUSED = _pattern(
    r"refus\w+|declin\w+|reject\w+|den(?:y|ied|ies)|turn\w* (?:\w+ ){0,3}down|veto\w*|rul\w+ (?:\w+ )?out|said no",
    r"against it|disallow\w*|forbid\w*|forbade",
)
_AGREED = _pattern(
    r"agree(?:d|s|ing)?|approv\w+|accept\w*|allow\w*|permit\w*|permission|grant\w*|sign\w* (?:\w+ ){0,2}off",
    r"go-?ahead|green light|ok(?:ay)?(?:ed|'d)?|authori[sz]\w+|said yes|cleared|consent\w*|gave (?:a|the) nod",
)
_NEGATED = re.compile(r"(?:\b(?:not|never|no|nobody|without|nor|cannot)|n't)\s+(?:\w+\s+){0,3}$", re.I)
_SAYS_NOT = re.compile(r"(?:\b(?:not|never|cannot)|n't)\b", re.I)
_DENIED = re.compile(
    r"(?:\b(?:not|never|no longer|(?:anyone|anything|1) but|except|other than|instead of|rather than)|n't)\b", re.I
)
_NO_LONGER = re.compile(
    r"\W*(?:(?:is|was|are|were|has|does|did)(?:n't|\s+not|\s+no longer)|no longer)\b(?! only)", re.I
)
_PAST = re.compile(
    r"\b(?:from|instead of|rather than|replac\w+|not|no longer|previously|formerly|originally|until|used to be|was|"
    r"were|before|earlier|old|than|over from)\W+(?:\w+\W+){0,3}$",
    re.I,
)
_TURNED = re.compile(
    r"\b(?:instead of|rather than|replac(?:es|ed|ing)(?! by)|in place of|t(?:ook|akes?|aking) over\b.* from|succeed\w*|"
    r"previously|formerly|originally|until|used to|before|(?:up|down) from|no longer|not)\b",
    re.I,
)
_INSTEAD = re.compile(r"\b(?:instead of|rather than|over|not|than|and no|never)\W+(?:\w+\W+){0,2}$", re.I)
_PAST_WORDS = _pattern(r"previously|formerly|originally|used to|was|were|until")
_WAS = re.compile(
    r"\b(?:previously|formerly|originally|used to be|replac(?:ed|es|ing)(?! by)|besides?)\W+(?:\w+\W+){0,2}$",
    re.I,
)
_NOW = re.compile(r"\W*(?:(?:but|and|,)?\s*(?:it )?(?:is|are) now|until)\b", re.I)
_WRONG = _pattern(r"(?:is|was|are|were|be)\s+(?:wrong|incorrect|false|untrue|out of date|mistaken)")
_BOUND = re.compile(
    r"\b(?:at least|at most|more than|less than|fewer than|over|under|up to|between)\s+(?:the\s+)?$", re.I
)
_BOUNDED = re.compile(r"-|\b(?:least|most|than|over|under|up to|between|to|through|until|till)\b", re.I)
_RANGE = re.compile(r"\s?(?:-|to|through|until)\s?\d", re.I)
_LISTS = re.compile(r"[,;|\u2022\n]|\b(?:and|or|versus|vs)\b|(?<=[.!?])\s|\s-\s")
_POSTS = frozenset(
    "senior junior vice president manager director counsel officer head chief lead leader analyst associate engineer "  # noqa: SIM905
    "assistant coordinator partner chairman secretary managing general group chair".split()
)
_BEFORE = re.compile(r"^\W*(?:before(?:hand)?|previously|originally|formerly|at first|earlier)\b(?=\W*[,;.])", re.I)
_CHANGE = re.compile(r"from (.+?) to (.+)", re.I | re.S)
_YES_OR_NO = re.compile(r"(?:^|[.:;!?]\s+)\W*(yes|yeah|yep|correct|right|indeed|affirmative|no|nope)\b", re.I)
_BOTH = re.compile(
    r"\byes\b\W*(?:and|or|but)?\W*(?:actually |then )?\bno\b|\bno\b\W*(?:and|or|but)\W*\byes\b|\bif (?:yes|no)\b", re.I
)
_AGAIN = re.compile(r"\b(\w+)(?:\W+\1\b){5,}", re.I)
_IT_DID = re.compile(r"\W*\w+ (?:did|do|does|have|has)\b\W*(?:[.,!;]|$)", re.I)
_WHO = re.compile(r"\W*who(?:m|se)?\b(?!.*\band (?:where|when|what|which|how|why)\b)", re.I)
_QUOTED = re.compile(r"^>|^-+ ?(?:forwarded|original) message|^(?:from|sent|to|subject|date|cc): ", re.I | re.M)
_CLOSED = _pattern(
    r"(?:best wishes|(?:kind|best) regards|regards|many thanks|speak soon|sincerely|cheers|thanks),?\s+[A-Z]\w+"
)
_JOINING = re.compile(r"[^\w\s]|\b(?:and|or|also|the|both)\b", re.I)
_OR = re.compile(r"\b(?:or|and/or|versus|vs)\b|/", re.I)


@dataclass(frozen=True)
class Case:
    """One answer to judge."""

    question: Text
    reference: Text
    answer: Text
    as_written: str

    @cached_property
    def needed(self) -> list[Item]:
        """What the reference says beyond the question; all of it where that is nothing.

        Where it is asked who, the first names of the reference, and nothing that is said about them.
        """
        asked = [each for each in self.reference.items if not self.question.where(each)] or self.reference.items
        if not _WHO.match(self.question.text):
            return asked
        new = [each for each in asked if isinstance(each, Word)]
        first = next((each for each in new if each.is_name), None)
        names = first and self.reference.names_from(first)
        return [each for each in asked if each in names] if names else asked

    @cached_property
    def given(self) -> list[tuple[Item, list[Item]]]:
        """What is needed, each with the places of the answer that say it."""
        return [(each, self.answer.where(each)) for each in self.needed]

    @cached_property
    def place(self) -> tuple[int, int] | None:
        """From where to where the answer says what is needed, if it does."""
        places = [found[0] for _, found in self.given if found]
        return (min(each.start for each in places), max(each.end for each in places)) if places else None

    def stands_beside(self, start: int, end: int) -> bool:
        """Whether a part of the answer stands in one sentence with what is needed, and nothing new between them."""
        if self.place is None or not any(
            first <= start < last for first, last in [self.answer.sentence(self.place[0])]
        ):
            return False
        first, last = (end, self.place[0]) if end <= self.place[0] else (self.place[1], start)
        return not any(first <= each.start < last and self.is_new(each) for each in self.answer.items)

    def is_new(self, item: Item) -> bool:
        """Whether neither question nor reference says it."""
        return not self.question.where(item) and not self.reference.where(item)


def judged(question: str, reference: str, answer: str, asked: date | None = None) -> Verdict:
    """Whether an answer says what the reference says, and which rule says so."""
    if len(answer) > _LONGEST + len(reference):
        return Verdict(correct=False, why=f"dump: it has {len(answer):,} characters")
    asking, right, said = (Text(normalised(each), asked) for each in (question, reference, answer))
    case = Case(asking, right, said, answer)
    for rule in _RULES:
        verdict = rule(case)
        if verdict is not None:
            return Verdict(verdict[0], f"{rule.__name__.strip('_').replace('_', ' ')}: {verdict[1]}")
    raise AssertionError("the last rule always decides")


class HeuristicJudge:
    """Judges without a model, and is the same everywhere. See `judged`."""

    async def verdict(self, asked: Asked, answer: str) -> Verdict:
        """As `Judge.verdict`."""
        return judged(asked.question, asked.answer, answer, asked.query_date)

    async def aclose(self) -> None:
        """As `Judge.aclose`."""


_Decision = tuple[bool, str] | None
"""Whether the answer is right, and why; None where a rule has nothing to say."""


def _no_answer(case: Case) -> _Decision:
    if not case.answer.items and not _YES_OR_NO.search(case.answer.text):
        return False, "it says nothing"
    unknown = _UNKNOWN.search(case.answer.text)
    if unknown and not _UNKNOWN.search(case.reference.text):
        return False, f"it says that it does not know ({unknown[0]})"
    return None


def _hedge(case: Case) -> _Decision:
    """Whoever commits to nothing is wrong, unless the reference does not commit itself either."""
    text = case.answer.text
    first, last = case.answer.sentence(case.place[0]) if case.place else (0, len(text))
    for match in [*_HEDGE.finditer(text), *_MODAL.finditer(text, first, last)]:
        if not any(match[0].casefold() in text.text.casefold() for text in (case.reference, case.question)):
            return False, f"it does not commit itself ({match[0]})"
    return None


def _dump(case: Case) -> _Decision:
    if len(_QUOTED.findall(case.as_written)) > 1 + len(_QUOTED.findall(case.reference.text)) or (
        _CLOSED.search(case.answer.text) and not _CLOSED.search(case.reference.text)
    ):
        return False, "it quotes a message"
    if _AGAIN.search(case.answer.text) and not _AGAIN.search(case.reference.text):
        return False, "it says one word again and again"
    new = sum(map(case.is_new, case.answer.items))
    return (False, f"it says {new} things that were not asked") if new > _MOST else None


def _same_text(case: Case) -> _Decision:
    if not _YES_OR_NO.search(case.reference.text) and is_exact(case.answer.text, case.reference.text):
        return True, "it is the reference answer"
    return None


def _yes_or_no(case: Case) -> _Decision:
    """Where the reference begins with yes or no, only that has to agree."""
    wanted, said = _polarity(case.reference.text), _polarity(case.answer.text)
    if not _YES_OR_NO.match(case.reference.text) or wanted is None:
        return None
    beside = not any(case.question.where(each) or case.reference.where(each) for each in case.answer.words)
    if said is None and _restates(case):
        said = True
    if said is None or (beside and len(case.answer.words) > _SHORT):
        return False, "it says neither yes nor no to what was asked"
    other = _other_value(case)
    if said == wanted and other:
        return False, other
    return said == wanted, f"it says {'yes' if said else 'no'}"


def _change(case: Case) -> _Decision:
    """From one value to another: both are needed, and which came first."""
    parts = _CHANGE.fullmatch(case.reference.text.rstrip(". "))
    if parts is None:
        return None
    halves = [Case(case.question, Text(part, case.reference.asked), case.answer, "") for part in parts.groups()]
    for half in halves:
        missing = [each for each, found in half.given if not found]
        if missing:
            return False, f"{_shown(half.reference, missing[0])} is missing"
    old, new = (_compact(half) for half in halves)
    first, then = sorted((old, new))
    between, after = _BEFORE.sub("", case.answer.text[first[1] : then[0]]), case.answer.text[then[1] : then[1] + 30]
    turned = bool(_TURNED.search(between)) or (first == new and bool(_TURNED.match(after.lstrip(" ,(-"))))
    return ((first == new) == turned), "both, " + ("in order" if (first == new) == turned else "the wrong way round")


def _values(case: Case) -> _Decision:
    """Of the values that are needed, all must be there (nearly all where there are many), and no other instead."""
    other = _other_value(case)
    if other:
        return False, other
    for each, found in case.given:
        for place in found if isinstance(each, Value) else []:
            text = case.answer.text
            if _BOUND.search(text[: place.start]) and not _BOUNDED.search(case.reference.text):
                return False, f"it only bounds {_shown(case.reference, each)}"
            if _RANGE.match(text, place.end) and not _BOUNDED.search(case.reference.text):
                return False, f"it gives a range from {_shown(case.reference, each)}"
    wanted = [(each, found) for each, found in case.given if isinstance(each, Value) and each.kind != "ordinal"]
    missing = [each for each, found in wanted if not found]
    if missing and (len(wanted) <= 3 or len(missing) > (1 - _ALL_VALUES) * len(wanted)):
        return False, f"{_shown(case.reference, missing[0])} is missing"
    return None


def _other_value(case: Case) -> str | None:
    """A value in the place of one that the reference has."""
    for other in filter(case.is_new, case.answer.values):
        own = [each for each in case.reference.values if (each.kind, each.unit) == (other.kind, other.unit)]
        said = [each for each in case.answer.values if case.reference.where(each)]
        lost = [each for each in own if not case.answer.where(each)]
        if lost or sum(each.kind == other.kind for each in said) < len(own):
            return f"{_shown(case.answer, other)} is not {_shown(case.reference, (lost or own)[0])}"
    return None


def _denied(case: Case) -> _Decision:
    """What the answer says not to be so, or to have been so, is not what it answers."""
    if case.place is None or _SAYS_NOT.search(case.reference.text):
        return None
    text, (first, last) = case.answer.text, case.place
    if (_WAS.search(text[:first]) or _NOW.match(text, last)) and not _PAST_WORDS.search(case.reference.text):
        return False, "it says that it was so"
    if _WRONG.search(text, last, case.answer.sentence(last)[1]) and not _WRONG.search(case.reference.text):
        return False, "it says that it is wrong"
    denials = _DENIED.finditer(text, 0, first)
    if any(case.stands_beside(*match.span()) for match in denials) or _NO_LONGER.match(text, last):
        return False, "it says that it is not so"
    return None


def _alternatives(case: Case) -> _Decision:
    """This or that is no answer."""
    for match in [] if _OR.search(case.reference.text) else _OR.finditer(case.answer.text):
        inside = any(each.start <= match.start() < each.end for each in case.answer.values)
        if not inside and case.stands_beside(*match.span()) and _parts_choices(case, match):
            return False, "it says what else it may be"
    return _other_choice(case)


def _parts_choices(case: Case, match: re.Match[str]) -> bool:
    """Whether "or" or a slash parts what is right from something else; a slash may be a "per", or part of a name."""
    if match[0] != "/" or case.answer.text[match.start() - 1 : match.end() + 1] == " / ":
        return True
    return any(abs(match.end() - start) <= 1 or abs(match.start() - end) <= 1 for start, end in _rivals(case))


def _other_choice(case: Case) -> _Decision:
    """Where the question lets one choose, the other choice is a rival too."""
    for match in _OR.finditer(case.question.text):
        before = [each for each in case.question.items if each.end <= match.start()][-1:]
        after = [each for each in case.question.items if each.start >= match.end()][:1]
        for choice in (*before, *after):
            others = [] if case.reference.where(choice) else case.answer.where(choice)
            if case.place and any(not _INSTEAD.search(case.answer.text[: each.start]) for each in others):
                return False, f"it says {_shown(case.question, choice)} as well"
    return None


def _candidates(case: Case) -> _Decision:
    """Other values of the kind, or other names, beside the right one: in a list with it, or said of the same."""
    if case.place is None or len(case.needed) > _LISTED:
        return None
    listed = _listed(case)
    if listed:
        return False, listed
    rivals = list(_rivals(case))
    for start, end in rivals:
        sentence = case.answer.sentence(start)
        new = [each for each in case.answer.words if sentence[0] <= each.start < sentence[1] and case.is_new(each)]
        said = [each for each in new if not start <= each.start < end]
        if _PAST.search(case.answer.text[sentence[0] : start]):
            continue
        if _is_listed(case, start, end) or len(said) < _NEWS:
            return False, f"it names {case.answer.text[start:end]} as well"
    return (False, f"it names {len(rivals)} others as well") if len(rivals) > _RIVALS else None


def _words(case: Case) -> _Decision:
    """The reference's words, or enough that is the same on both sides."""
    needed = [(each, found) for each, found in case.given if isinstance(each, Word) and not _is_unit(case, each)]
    if not needed:
        if not any(isinstance(each, Value) and found for each, found in case.given):
            return False, "it is not the reference answer, which has no word to look for"
        return True, "the values are those of the reference"
    there = sum(bool(found) for _, found in needed)
    names = [each for each, found in needed if each.is_name and not found]
    if names and len(needed) <= _SHORT:
        return False, f"{_shown(case.reference, names[0])} is missing"
    covered = there / len(needed)
    said = sum(not case.question.where(each) for each in case.answer.words)
    overlap = 2 * there / (len(needed) + said) if said else 0
    if covered >= _COVERED or overlap >= _OVERLAP:
        return True, f"{there} of {len(needed)} words"
    return False, f"only {there} of {len(needed)} words"


_RULES: tuple[Callable[[Case], _Decision], ...] = (
    _no_answer,
    _same_text,
    _hedge,
    _dump,
    _yes_or_no,
    _alternatives,
    _change,
    _values,
    _denied,
    _candidates,
    _words,
)


def _rivals(case: Case) -> Iterator[tuple[int, int]]:
    """Where the answer has other values of a kind that is needed, or other names."""
    wanted = [each for each in case.needed if isinstance(each, Value) and each.kind != "ordinal"]
    for value in case.answer.values:
        if case.is_new(value) and any(map(value.could_be, wanted)):
            yield value.start, value.end
    if all(isinstance(each, Word) and each.is_name for each in case.needed):
        for name in case.answer.names():
            if all(map(case.is_new, name)) and not all(word.key in _POSTS for word in name):
                yield name[0].start, name[-1].end


def _listed(case: Case) -> str | None:
    """What is wrong with an answer that is a list of short parts, or of names in a row, most of them new."""
    news = 0
    for first, last in _parts(case):
        new = any(case.is_new(each) for each in case.answer.items if first <= each.start < last)
        news += new and len(case.answer.text[first:last].split()) <= _PART
    if news > _PARTS:
        return f"it lists {news} other things"
    for name in case.answer.names():
        others = [word for word in name if case.is_new(word) and word.key not in _POSTS]
        if _PARTS <= len(others) < len(name) and case.place and name[0].start <= case.place[0] < name[-1].end:
            return f"it names {case.answer.text[others[0].start : others[-1].end]} as well"
    return None


def _parts(case: Case) -> Iterator[tuple[int, int]]:
    """The parts of the sentence that says what is needed, as of a list; and the other sentences."""
    for first, last in case.answer.sentences:
        if case.place and first <= case.place[0] < last:
            cuts = [match.span() for match in _LISTS.finditer(case.answer.text, first, last)]
            outside = [
                cut for cut in cuts if not any(each.start < cut[1] and cut[0] < each.end for each in case.answer.values)
            ]
            yield from pairwise([first, *(cut[1] for cut in outside), last])
        else:
            yield first, last


def _restates(case: Case) -> bool:
    """Whether the answer says again what was asked, as a fact."""
    asked = [each for each in case.question.words if each.key not in ("yes", "no")]
    said = sum(bool(case.answer.where(each)) for each in asked)
    return bool(asked) and said > _RESTATED * len(asked)


def _is_listed(case: Case, start: int, end: int) -> bool:
    """Whether a rival stands in a list with what is right: between them is little but a comma, "and" or "or"."""
    first, last = case.place or (start, end)
    if case.answer.sentence(first) != case.answer.sentence(start):
        return False
    between = case.answer.text[last:start] if start >= last else case.answer.text[end:first]
    return len(_JOINING.sub("", between).split()) <= 1 or bool(_OR.search(between))


def _polarity(text: str) -> bool | None:
    """Whether a text says yes or no; None where it says neither, or both."""
    if _BOTH.search(text):
        return None
    plainly = {not match[1].casefold().startswith("n") for match in _YES_OR_NO.finditer(text)}
    told = {not _NEGATED.search(text[: match.start()]) for match in _AGREED.finditer(text)}
    told |= {bool(_NEGATED.search(text[: match.start()])) for match in _REFUSED.finditer(text)}
    if len(plainly) == 1 and told != {True not in plainly}:
        return plainly.pop()
    if plainly:
        return None
    if not told and _SAYS_NOT.search(text):
        return False
    if not told and _IT_DID.match(text):
        return True
    return told.pop() if len(told) == 1 else None


def _compact(half: Case) -> tuple[int, int]:
    """Where the words of one half stand closest together."""
    places = [found for _, found in half.given]
    anchor = max(places, key=lambda found: -len(found))[0]
    near = [min(found, key=lambda each: abs(each.start - anchor.start)) for found in places]
    return min(each.start for each in near), max(each.end for each in near)


def _is_unit(case: Case, word: Word) -> bool:
    """Whether a word only says what is counted."""
    return not word.is_name and any(
        each.kind == "number" and case.reference.text[each.end : word.start].strip() == "" and each.end < word.start
        for each in case.reference.values
    )


def _shown(text: Text, item: Item) -> str:
    return repr(text.text[item.start : item.end])
