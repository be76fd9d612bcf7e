"""Compare the polarity of words: "was not cancelled" denies what "was cancelled" says, as "unpaid" denies "paid"."""

import re
from functools import lru_cache

from gumshoe.rewards.heuristic.normalized_text import NormalizedText, Word, stem_of

NEGATOR = re.compile(
    r"(?:\b(?:not|never|no longer|nobody|no one|nothing|none(?: of)?|neither|nor|without|cannot|hardly|rarely|seldom|"
    r"(?:fail|refus|declin|neglect|omit)\w* to|yet to|unable to|unwilling to|lack(?:s|ed|ing)?|"
    r"stopped|stop(?:s|ping)?(?=\s\w+ing\b)|ceas\w+ to|"
    r"(?:free|devoid|instead|short) of|rather than|except(?: for)?|exclud\w+|excluding|minus)|n't)\b"
    r"|\bno\b(?! (?:later|earlier|more than|less than|fewer than)\b)(?=\s[^\W\d])",
    re.I,
)
"""Denies the words after it, up to the end of the clause."""
_NEGATING_WORDS = frozenset(
    "not never no nobody nothing none neither nor without cannot hardly rarely seldom longer except don doesn didn isn "  # noqa: SIM905
    "aren wasn weren won wouldn couldn hasn haven hadn shouldn yet".split()
)
_CLAUSE = re.compile(
    r"[,;:.!?](?=\s|$)|\s-\s|\b(?:but|because|since|so|although|though|while|until|unless|who|which|when|if|as|and)\b",
    re.I,
)
_PREFIX = re.compile(r"(?:un|in|im|il|ir|dis|non|mis)-?(?=\w{4})")
_OPPOSITES = (
    "accept/reject accept/refuse accept/decline approve/reject approve/refuse approve/veto agree/disagree "
    "agree/refuse agree/decline allow/forbid allow/prohibit allow/ban permit/forbid confirm/deny admit/deny "
    "include/exclude increase/decrease increase/reduce rise/fall rose/fell grow/shrink grew/shrank gain/lose "
    "gain/loss win/lose won/lost profit/loss raise/lower raise/cut up/down higher/lower more/less more/fewer "
    "most/least above/below over/under open/close open/closed open/shut start/stop start/end begin/end began/ended "
    "first/last early/late earlier/later hire/fire hire/dismiss join/leave arrive/leave arrive/depart enter/exit "
    "pass/fail succeed/fail success/failure true/false right/wrong correct/incorrect right/left north/south "
    "east/west top/bottom upper/lower inside/outside internal/external indoor/outdoor import/export upload/download "
    "attach/detach connect/disconnect enable/disable lock/unlock keep/discard keep/remove add/remove insert/delete "
    "maximum/minimum maximize/minimize long/short tall/short large/small big/small wide/narrow thick/thin "
    "heavy/light fast/slow hot/cold warm/cool wet/dry full/empty high/low deep/shallow strong/weak hard/soft "
    "good/bad better/worse best/worst safe/dangerous cheap/expensive rich/poor new/old young/old old/new "
    "public/private optional/mandatory optional/required temporary/permanent morning/evening morning/afternoon "
    "day/night daily/weekly weekly/monthly monthly/yearly before/after front/back male/female man/woman "
    "present/absent alive/dead online/offline somebody/nobody someone/nobody everybody/nobody everyone/nobody "
    "something/nothing everything/nothing all/none always/never with/without support/oppose favour/oppose "
    "recommend/oppose strengthen/weaken extend/shorten expand/contract upgrade/downgrade promote/demote "
    "increase/decline advance/postpone encourage/discourage active/inactive positive/negative credit/debit "
    "asset/liability taller/shorter longer/shorter older/younger larger/smaller faster/slower odd/even "
    "single/double free/paid paid/owed buyer/seller lender/borrower tenant/landlord employer/employee large/tiny "
    "inbound/outbound incoming/outgoing sender/recipient deposit/withdrawal arrival/departure husband/wife "
    "brother/sister father/mother noon/midnight debtor/creditor "
)


def _read_opposites() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for pair in _OPPOSITES.split():
        one, other = map(stem_of, pair.split("/"))
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return {word: frozenset(others) for word, others in found.items()}


_COMPARATIVES = frozenset(
    "more less fewer before after above below over under higher lower earlier later longer shorter taller older "  # noqa: SIM905
    "younger larger smaller bigger faster slower better worse cheaper".split()
)
_OPPOSITES_OF = _read_opposites()


def is_negator(text: NormalizedText, word: Word) -> bool:
    """Return True if a word of a text only denies others ("failed to pay"), and is no content of its own."""
    return word.key in _NEGATING_WORDS or NEGATOR.match(text.text, word.start) is not None


def are_opposites(one: Word, other: Word) -> bool:
    """Return True if two words are opposites, such as "include" and "exclude", or "paid" and "unpaid"."""
    return _are_opposites(one.key, other.key)


@lru_cache(maxsize=65536)
def _are_opposites(one: str, other: str) -> bool:
    first, second = stem_of(one), stem_of(other)
    if second in _OPPOSITES_OF.get(first, ()):
        return True
    return any(
        longer.startswith(("un", "in", "im", "il", "ir", "dis", "non", "mis"))
        and stem_of(_PREFIX.sub("", longer, count=1)) == shorter
        for longer, shorter in ((one, second), (other, first))
        if len(longer) > len(shorter)
    )


def find_denied(reference: NormalizedText, answer: NormalizedText, words: list[Word]) -> tuple[Word, Word] | None:
    """Return a word of the reference and that of the answer with the opposite polarity; None without such a pair.

    A word that either text has in both polarities is no contradiction. Neither is an opposite that compares two names,
    such as "before" and "after", which depends on their roles.
    """
    is_compared = sum(any(own.agrees(each) for own in answer.words) for each in reference.words if each.is_name) > 1
    for word in words:
        if is_negator(reference, word):
            continue
        polarities = {is_denied(reference, each) for each in reference.words if each.agrees(word)}
        if len(polarities) > 1:
            continue
        was_denied = is_denied(reference, word)
        contrary: Word | None = None
        for own in answer.words:
            same = own.agrees(word)
            if not same and (not are_opposites(own, word) or (is_compared and own.key in _COMPARATIVES)):
                continue
            if (is_denied(answer, own) != was_denied) == same:
                contrary = contrary or own
            else:
                break
        else:
            if contrary is not None:
                return word, contrary
    return None


def is_negating_verb(text: NormalizedText, word: Word) -> bool:
    """Return True if a word denies others, but can be asked for itself, e.g. "excluded" or "stopped"."""
    return word.key not in _NEGATING_WORDS and is_negator(text, word)


def is_denied(text: NormalizedText, word: Word, ignored: frozenset[str] = frozenset()) -> bool:
    """Return True if an odd number of negations before the word, in the same clause, deny it.

    `ignored` are the stems of negations that do not count.
    """
    found = NEGATOR.finditer(text.text, find_clause(text.text, word.start, word.end)[0])
    return sum(match.end() <= word.start and stem_of_negation(match) not in ignored for match in found) % 2 == 1


def stem_of_negation(match: re.Match[str]) -> str:
    """Return the stem of the first word of a match of `NEGATOR`."""
    return stem_of(match[0].split()[0].casefold())


def differ_by_place(one: NormalizedText, word: Word, other: NormalizedText, own: Word) -> bool:
    """Return True if two words are denied alike without the verbs that both of their clauses have.

    Then one of these verbs stands before its word, and the other one after it: "they exclude VAT", "VAT was excluded".
    """
    shared = _stems_of_clause(one, word) & _stems_of_clause(other, own)
    return bool(shared) and is_denied(one, word, shared) == is_denied(other, own, shared)


def _stems_of_clause(text: NormalizedText, word: Word) -> frozenset[str]:
    """Return the stems of the words in the clause of a word, without those such as "not"."""
    start, end = find_clause(text.text, word.start, word.end)
    words = [each.key for each in text.words if start <= each.start < end]
    return frozenset(stem_of(each) for each in words if each not in _NEGATING_WORDS)


def find_clause(text: str, start: int, end: int) -> tuple[int, int]:
    """Return start and end of the clause with a part of a text."""
    first = max((match.end() for match in _CLAUSE.finditer(text, 0, start)), default=0)
    following = _CLAUSE.search(text, end)
    return first, following.start() if following else len(text)


def find_clauses(text: str) -> list[tuple[int, int]]:
    """Return start and end of each clause of a text."""
    cuts = [match.span() for match in _CLAUSE.finditer(text)]
    return list(zip([0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)], strict=True))
