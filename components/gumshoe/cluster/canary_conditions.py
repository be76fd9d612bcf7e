"""Parse conditions about a canary, e.g. `success >= baseline - 2% and latency_p95 <= 1.2 * baseline`.

Grammar:

    condition  = conjunction {"or" conjunction}
    conjunction = atom {"and" atom}
    atom       = comparison | "(" condition ")"
    comparison = measure ("<=" | ">=" | "<" | ">") bound
    measure    = "success" | "corrections" | "errors" | "latency_p1" to "latency_p99"
    bound      = number | [number "*"] "baseline" ["*" number] [("+" | "-") number]
    number     = digits [unit], with the unit % of a rate, or ms, s or min of a latency
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gumshoe.errors import UsageError

Operator = Literal["<=", "<", ">=", ">"]
RATES = ("success", "corrections", "errors")
LATENCY = "latency"
NEVER = "never"
"""A condition that never holds."""
DEFAULT_CONDITION = (
    "success >= baseline and corrections <= baseline and errors <= baseline and latency_p95 <= 1.5 * baseline"
)
_MEASURES = "success, corrections, errors and latency_p1 to latency_p99, e.g. latency_p95"
_OPPOSITE: dict[Operator, Operator] = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}
_OPERATORS: dict[str, Operator] = {"<=": "<=", "<": "<", ">=": ">=", ">": ">"}
_TOLERANCES = {"success": 0.05, "corrections": 0.02, "errors": 0.02}
_LATENCY_TOLERANCE = 0.2
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|ms\b|s\b|min\b)?(?![\w.%])"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|<|>|[()*+-]))"
)
_QUANTILE = re.compile(r"latency_p([1-9]\d?)")
_MAX_DEPTH, _MAX_LENGTH = 20, 2000


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """Compare a measure of the canary with `factor` times that of the baseline, plus `offset`."""

    measure: str
    """`success`, `corrections`, `errors` or `latency`."""
    operator: Operator
    factor: float
    """0 if the bound is a number."""
    offset: float
    """A rate from -1 to 1, or seconds."""
    quantile: float | None = None
    """Quantile of the latency, e.g. 0.95; None for rates."""
    is_bare: bool = False
    """True if the bound is just `baseline`, so that a small difference does not matter for a promotion."""

    @property
    def is_upper(self) -> bool:
        """True if the measure must be small."""
        return self.operator in ("<=", "<")

    @property
    def name(self) -> str:
        """The measure as it is written, e.g. `latency_p95`."""
        return self.measure if self.quantile is None else f"{self.measure}_p{round(100 * self.quantile)}"

    def format_value(self, value: float) -> str:
        """Return a value of the measure with its unit."""
        return f"{100 * value:.4g}%" if self.quantile is None else f"{value:.4g}s"

    def __str__(self) -> str:
        if not self.factor:
            return f"{self.name} {self.operator} {self.format_value(self.offset)}"
        bound = "baseline" if self.factor == 1 else f"{self.factor:g} * baseline"
        if self.offset:
            bound += f" {'-' if self.offset < 0 else '+'} {self.format_value(abs(self.offset))}"
        elif self.factor == 1 and not self.is_bare:
            bound += f" + {self.format_value(0)}"
        return f"{self.name} {self.operator} {bound}"


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Conditions of which all (`and`) or at least one (`or`) must hold. An empty `or` never holds."""

    word: Literal["and", "or"]
    parts: "tuple[Condition, ...]"

    def __str__(self) -> str:
        if not self.parts:
            return NEVER
        return f" {self.word} ".join(
            f"({each})" if isinstance(each, ConditionGroup) else str(each) for each in self.parts
        )


Condition = MeasureComparison | ConditionGroup
NOTHING = ConditionGroup("or", ())
"""The condition `never`."""


def negate(condition: Condition) -> Condition:
    """Return the condition that holds exactly if this one does not. That of `never` is `never`: it decides nothing."""
    if isinstance(condition, MeasureComparison):
        return replace(condition, operator=_OPPOSITE[condition.operator])
    if not condition.parts:
        return condition
    return ConditionGroup("or" if condition.word == "and" else "and", tuple(map(negate, condition.parts)))


def list_comparisons(condition: Condition) -> Iterator[MeasureComparison]:
    """Yield the comparisons of a condition from left to right."""
    if isinstance(condition, MeasureComparison):
        yield condition
    else:
        for each in condition.parts:
            yield from list_comparisons(each)


def count_alternatives(condition: Condition) -> int:
    """Return how many comparisons can each make the condition hold wrongly, so that they share the error.

    If all parts must hold, only one of those that are false has to hold wrongly; if one is enough, any of them.
    """
    if isinstance(condition, MeasureComparison):
        return 1
    counts = [count_alternatives(each) for each in condition.parts]
    return (sum(counts) if condition.word == "or" else max(counts)) if counts else 0


def parse_condition(text: str) -> Condition:
    """Parse a condition; `never` for one that never holds.

    Raises:
        UsageError: if it is not one; the message names the place.
    """
    if len(text) > _MAX_LENGTH:
        raise _fault(text[:40] + "…", f"it has {len(text):,} characters, at most {_MAX_LENGTH:,} are allowed")
    if text.strip() == NEVER:
        return NOTHING
    return _Parser(text).parse()


def default_rollback(condition: Condition) -> Condition:
    """Return when to roll back unless told otherwise: if the opposite of the condition for a promotion holds.

    Measures that the condition does not mention must not be worse than the baseline either.
    """
    named = {each.measure for each in list_comparisons(condition)}
    others = [each for each in list_comparisons(parse_condition(DEFAULT_CONDITION)) if each.measure not in named]
    opposite = negate(condition)
    parts = opposite.parts if isinstance(opposite, ConditionGroup) and opposite.word == "or" else (opposite,)
    return ConditionGroup("or", (*parts, *map(negate, others)))


def without_measure(condition: Condition, measure: str) -> Condition:
    """Return a condition without the comparisons of a measure that cannot be measured; `never` if none is left."""
    if isinstance(condition, MeasureComparison):
        return NOTHING if condition.measure == measure else condition
    kept = tuple(each for each in (without_measure(part, measure) for part in condition.parts) if each != NOTHING)
    return ConditionGroup(condition.word, kept) if kept else NOTHING


def allow_tolerance(condition: Condition) -> Condition:
    """Return the condition with a tolerance in each comparison with the bare `baseline`.

    No number of questions shows that a canary is at least as good as the baseline if both are equally good, but that it
    is not worse by more than a difference that matters little: 5 % for success, 2 % for corrections and errors, and a
    fifth of the latency.
    """
    if isinstance(condition, ConditionGroup):
        return ConditionGroup(condition.word, tuple(map(allow_tolerance, condition.parts)))
    if not condition.is_bare:
        return condition
    sign = 1 if condition.is_upper else -1
    if condition.quantile is not None:
        return replace(condition, factor=1 + sign * _LATENCY_TOLERANCE, is_bare=False)
    return replace(condition, offset=sign * _TOLERANCES[condition.measure], is_bare=False)


def _fault(text: str, problem: str) -> UsageError:
    return UsageError(
        "deploy.invalid-condition",
        f"{text!r} is not a condition: {problem}; write e.g. 'corrections <= baseline + 2% and latency_p95 <= 20s'",
    )


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`number`, `name`, `sign` or `end`."""
    text: str
    unit: str
    place: int
    """Number of the first character, from 1."""

    @property
    def shown(self) -> str:
        return f"{self.text}{self.unit}" if self.kind != "end" else "the end"


class _Parser:
    """Parse a condition by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._next = text, list(self._split(text)), 0

    def parse(self) -> Condition:
        found = self._parse_group(0)
        if self._token.kind != "end":
            raise self._expected("and, or, or the end")
        return found

    def _split(self, text: str) -> Iterator[_Token]:
        place, end = 0, len(text.rstrip())
        while place < end:
            found = _TOKEN.match(text, place)
            if found is None or found.lastgroup is None:
                wrong = text[place:].split()[0]
                raise _fault(text, f"{wrong!r} is not understood")
            kind = "number" if found["number"] else "name" if found["name"] else "sign"
            begins = found.start(kind)
            yield _Token(kind, found[kind], found["unit"] or "", begins + 1)
            place = found.end()
        yield _Token("end", "", "", end + 1)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """Take the next token if it is one of these, and return its text."""
        if self._token.kind in ("name", "sign") and self._token.text in texts:
            self._next += 1
            return self._tokens[self._next - 1].text
        return None

    def _expected(self, what: str) -> UsageError:
        return _fault(self._text, f"expected {what} at character {self._token.place}, got {self._token.shown}")

    def _parse_group(self, depth: int, word: Literal["and", "or"] = "or") -> Condition:
        if depth > _MAX_DEPTH:
            raise _fault(self._text, f"parentheses are nested more than {_MAX_DEPTH} deep")

        def parse_part() -> Condition:
            return self._parse_group(depth, "and") if word == "or" else self._parse_atom(depth)

        parts = [parse_part()]
        while self._take(word):
            parts.append(parse_part())
        return parts[0] if len(parts) == 1 else ConditionGroup(word, tuple(parts))

    def _parse_atom(self, depth: int) -> Condition:
        if self._take("("):
            found = self._parse_group(depth + 1)
            if not self._take(")"):
                raise self._expected("a closing parenthesis")
            return found
        return self._parse_comparison()

    def _parse_comparison(self) -> MeasureComparison:
        token = self._token
        quantile = _QUANTILE.fullmatch(token.text)
        if token.kind != "name" or not (quantile or token.text in RATES):
            raise self._expected(f"a measure ({_MEASURES})")
        self._next += 1
        operator = self._take(*_OPERATORS)
        if operator is None:
            raise self._expected("<=, >=, < or >")
        made = MeasureComparison(
            LATENCY if quantile else token.text,
            _OPERATORS[operator],
            0,
            0,
            int(quantile[1]) / 100 if quantile else None,
        )
        return self._parse_bound(made)

    def _parse_bound(self, made: MeasureComparison) -> MeasureComparison:
        if self._token.kind == "number" and self._tokens[self._next + 1].text != "*":
            return replace(made, offset=self._parse_value(made, is_whole=True))
        factor = 1.0
        if self._token.kind == "number":
            factor = self._parse_factor()
            self._take("*")
        if not self._take("baseline"):
            raise self._expected("a number or `baseline`")
        if self._take("*"):
            factor *= self._parse_factor()
        if not 0 < factor <= 1000:
            raise _fault(self._text, f"the factor of baseline must be above 0 and at most 1000, got {factor:g}")
        sign = self._take("+", "-")
        offset = self._parse_value(made, is_whole=False) * (-1 if sign == "-" else 1) if sign else 0.0
        return replace(made, factor=factor, offset=offset, is_bare=factor == 1 and sign is None)

    def _parse_factor(self) -> float:
        token = self._token
        if token.kind != "number" or token.unit:
            raise self._expected("a factor without a unit")
        self._next += 1
        return float(token.text)

    def _parse_value(self, made: MeasureComparison, *, is_whole: bool) -> float:
        """Parse a rate or a duration. The whole bound of a latency, or an offset, needs a unit of time."""
        token, value = self._token, 0.0
        if token.kind != "number":
            raise self._expected("a number")
        self._next += 1
        value = float(token.text)
        if made.quantile is not None:
            if token.unit not in _SECONDS:
                raise _fault(self._text, f"{made.name} needs a unit of time, got {token.shown}; write {token.text}s")
            return value * _SECONDS[token.unit]
        if token.unit in _SECONDS:
            raise _fault(self._text, f"{made.name} is a rate, but {token.shown} is a time; write e.g. 2%")
        value = value / 100 if token.unit else value
        if value > 1:
            raise _fault(self._text, f"{made.name} is a rate of at most 1, got {token.shown}; write e.g. {token.text}%")
        if is_whole and made.operator in ("<", ">") and value == (0 if made.operator == "<" else 1):
            raise _fault(self._text, f"{made} never holds")
        return value
