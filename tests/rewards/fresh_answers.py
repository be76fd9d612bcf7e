"""Create 500 labelled answers by templates: `python -m tests.rewards.fresh_answers OUT [SEED] [first|second]`.

The templates were written before the rules of the judge were changed. Each kind has several forms, and a seed divides
the forms and the vocabulary into two halves: the first was used to develop the rules, the second only to measure them.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

SEED, COUNT = 20_480, 500
ASKED = "2012-03-14"
Thing = TypeVar("Thing")
Half = Literal["first", "second"]
_GIVEN = "Maud Piers Tomasz Ingrid Kofi Yasmin Hector Noor Blanca Otis Freya Dmitri Salma Jorge Wren Anselm".split()  # noqa: SIM905
_FAMILY = [
    "Oyelaran",
    "Whitlock",
    "Sandoval",
    "Brandt",
    "Kowalczyk",
    "Achterberg",
    "Fontaine",
    "Marchetti",
    "Ruddock",
    "Haddad",
    "Lindqvist",
    "Pell",
]
_CITIES = "Tulsa Omaha Portland Calgary Boise Tampa Ghent Lyon Bergen Malmo Denver Austin".split()  # noqa: SIM905
_THINGS = "pump turbine crane greenhouse ferry printer archive scanner kiln elevator trailer boiler".split()  # noqa: SIM905
_SHORT = {"Robert": "Bob", "William": "Bill", "Margaret": "Peggy", "Thomas": "Tom", "Katherine": "Kate"}
_SHORT |= {"Richard": "Rick", "James": "Jim", "Michael": "Mike", "Susan": "Sue", "Patricia": "Pat"}


@dataclass(frozen=True, slots=True)
class FreshAnswer:
    """A labelled answer in the format of `gumshoe judge calibrate`."""

    question: str
    reference: str
    query_date: str
    answer: str
    correct: bool
    kind: str


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask and answer, with placeholders in braces."""

    question: str
    reference: str
    answer: str
    correct: bool


def _forms(question: str, pairs: str) -> list[Form]:
    """Parse lines such as `reference == right answer` and `reference != wrong answer`."""
    found = []
    for line in filter(None, map(str.strip, pairs.splitlines())):
        sign = " == " if " == " in line else " != "
        reference, answer = line.split(sign)
        found.append(Form(question, reference, answer.replace("\\n", "\n"), sign == " == "))
    return found


FORMS: dict[str, list[Form]] = {
    "currency": _forms(
        "What does the {thing} cost?",
        """
        ${n} == {n} dollars
        ${n} == USD {n}
        ${n} == US${n}
        £{n} == {n} pounds sterling
        €{n} == EUR {n}
        {n} yen == ¥{n}
        CA${n} == {n} Canadian dollars
        CHF {n} == {n} Swiss francs
        {n} rupees == ₹{n}
        ${n} != €{n}
        ${n} != A${n}
        £{n} != {n} euros
        {n} Norwegian kroner != {n} Swedish kronor
        ${n} != HK${n}
        €{n} != {n} zloty
        ${n} != {n} Mexican pesos
        ¥{n} != ₩{n}
        """,
    ),
    "sign": _forms(
        "What was the change in the margin of the {thing}?",
        """
        -{p}% == down {p}%
        -{p}% == a decline of {p} percent
        it fell by {p}% == it dropped {p}%
        it rose by {p}% == an increase of {p}%
        up {p}% == {p}% higher
        -{p}% != +{p}%
        up {p}% != down {p}%
        it grew by {p}% != it shrank by {p}%
        a gain of ${n} != a loss of ${n}
        a profit of ${n} != (${n})
        (${n}) == a loss of ${n}
        {p}% lower != {p}% higher
        it declined {p}% != {p}%
        {p}% != -{p}%
        """,
    ),
    "unit": _forms(
        "What is the rating of the {thing}?",
        """
        {p} kilometres == {p} km
        {p} MW == {p} megawatts
        {p} kg == {p} kilograms
        {p} pounds of steel == {p} lbs of steel
        {p} GB == {p} gigabytes
        {p} mph == {p} miles per hour
        {p} km == {p}000 metres
        {p} degrees Celsius == {p} °C
        {p} kWh == {p} kilowatt-hours
        {p} km != {p} miles
        {p} MW != {p} kW
        {p} kg != {p} pounds
        {p} gallons != {p} litres
        {p} °C != {p} °F
        {p} feet != {p} metres
        {p} GB != {p} MB
        {p} kWh != {p} kW
        {p} mph != {p} km/h
        {p} acres != {p} hectares
        {p} MMBtu != {p} MWh
        """,
    ),
    "version": _forms(
        "Which version of the {thing} firmware do we run?",
        """
        {d}.{p}0 != {d}.{p}
        {d}.{q}.1 != {d}.{q}.2
        {d}.{q}.0 == version {d}.{q}.0
        v{d}.{q} == {d}.{q}
        {d}.{q} != {d}.{q}.4
        release {d}.{q} == v{d}.{q}
        {d}.0{q} != {d}.{q}
        {d}.{q}.7 == We run {d}.{q}.7 at present.
        """,
    ),
    "code": _forms(
        "What is the access code of the {thing}?",
        """
        0{c} != {c}
        00{c} == 00{c}.
        0{c} == The code is 0{c}.
        {c}0 != {c}
        0{c} != 0{c}0
        {c} == it's {c}
        {c}7 != {c}
        0{c} == code 0{c}
        """,
    ),
    "grouping": _forms(
        "What was paid for the {thing}?",
        """
        ${m},{h} == ${m} {h}
        ${m}{h} == ${m},{h}
        €{m}.{h},50 == €{m},{h}.50
        CHF {m}'{h} == CHF {m},{h}
        ${d}.5 million == ${d},500,000
        ${d}.5bn == {d}.5 billion dollars
        ${m}k == ${m},000
        ${m},{h} != ${m}.{h}
        ${m},{h} != ${h},{m}
        ${d}.5 million != ${d}.5 thousand
        ${m}k != ${m} million
        €{m}.{h},50 != €{m},50
        {d},00,000 rupees == {d} lakh rupees
        """,
    ),
    "duration": _forms(
        "How long does the {thing} take to repair?",
        """
        120 minutes == 2 hours
        1.5 hours == 90 minutes
        3 weeks == 21 days
        48 hours == two days
        an hour and a half == 90 min
        half an hour == 30 minutes
        2 years == 24 months
        {q} weeks != {q} days
        {q} hours != {q} minutes
        2 hours != 100 minutes
        1 month != 20 days
        36 hours == a day and a half
        14 days == a fortnight
        3 days != 3 weeks
        """,
    ),
    "postal": _forms(
        "What is the postal address of {person}?",
        """
        {h} Birch Avenue, {city}, OK 74103 == {h} Birch Ave., {city}, Oklahoma 74103
        {h} Elm Street, {city}, CO 80{h} == {h} Elm St, {city}, Colorado 80{h}
        {h} Elm Street, {city}, CO 80{h} != {h} Elm Street, {city}, CO 81{h}
        {h} North Fir Road, {city} == {h} N. Fir Rd., {city}
        {h} Fir Road, {city} != {h}1 Fir Road, {city}
        Suite 200, {h} Fir Boulevard == {h} Fir Blvd, Ste. 200
        {h} Fir Drive, {city}, NE 68102 != {h} Fir Drive, {city}, NE 68120
        PO Box {h}, {city} == P.O. Box {h}, {city}
        """,
    ),
    "list": _forms(
        "Who inspects the {thing}?",
        """
        {person}, {person2} and {person3} == 1. {person}\\n2. {person2}\\n3. {person3}
        {person}, {person2} and {person3} == {person3}; {person2}; {person}
        {person} and {person2} == - {person2}\\n- {person}
        {person} and {person2} == {person} & {person2}
        {person}, {person2} and {person3} == 1) {person2}\\n2) {person3}\\n3) {person}
        {person} and {person2} != {person}
        {person} and {person2} != {person} and {person3}
        {person} != 1. {person}\\n2. {person2}\\n3. {person3}
        {person}, {person2} and {person3} != {person}, {person2}
        {person} != {person}; {person2}; {person3}
        """,
    ),
    "zone": _forms(
        "When does the {thing} call start?",
        """
        {t} pm EST == {t}:00 pm Eastern
        {t} PM Pacific == {t} p.m. Pacific time
        {t}:00 GMT == {t}:00 UTC
        {t} pm CST == {t}pm Central Standard Time
        1 pm EST == noon CST
        {t} pm EST != {t} pm PST
        {t} pm Central != {t} pm Eastern
        {t}:30 UTC != {t}:30 CET
        10:00 CET == 09:00 UTC
        2 pm EST != 2 pm UTC
        {t} pm MST == {t} PM
        {t} pm EDT == {t} pm ET
        """,
    ),
    "points": _forms(
        "By how much did the rate for the {thing} change?",
        """
        0.25% == 25 basis points
        75 bps == 0.75%
        1.5% == 150 bp
        {q} basis points != {q}%
        50 bps != 5%
        0.1% == ten basis points
        0.25% != 2.5 basis points
        2% == 200 basis points
        """,
    ),
    "fraction": _forms(
        "What share of the {thing} is ours?",
        """
        half == 50%
        one quarter == 25%
        1/4 == 25 percent
        2 1/2 percent == 2.5%
        three quarters == 75%
        4½% == 4.5%
        two and a half percent == 2.5%
        1/4 != 14%
        one third != 30%
        half != 40%
        2 1/2 percent != 21/2 percent
        three quarters != two thirds
        a fifth == 20%
        1/5 != 1/4
        """,
    ),
    "bound": _forms(
        "How many seats does the {thing} need?",
        """
        at least {q} == {q} or more
        at least {q} == a minimum of {q}
        at least {q} == no fewer than {q}
        at most {q} == up to {q}
        at most {q} == {q} or fewer
        more than {q} == over {q}
        between {q} and {q}0 == {q}-{q}0
        {q} to {q}0 == from {q} to {q}0
        {q}+ == at least {q}
        about {q} == {q}
        at least {q} != at most {q}
        at least {q} != fewer than {q}
        more than {q} != less than {q}
        {q} != at least {q}
        up to {q} != {q} or more
        {q} to {q}0 != {q} to {q}1
        at most {q} != over {q}
        """,
    ),
    "name": _forms(
        "Who signs for the {thing}?",
        """
        {short} {family} == {long} {family}
        {long} {family} == {short} {family}
        {long} {family} == {family}, {long}
        {person} == Mr. {person}
        {person} == {person}, the site manager
        {long} {family} == {long} J. {family}
        {long} {family} == {initial}. {family}
        {long} {family} != {long} {family2}
        {person} != {person2}
        {short} {family} != {other} {family}
        {long} {family} != {short} {family2}
        {person} != {person2} and not {person}
        {person} != It used to be {person}; now it is {person2}.
        """,
    ),
    "roles": _forms(
        "What does the note on the {thing} say?",
        """
        a train from {city} to {city2} == a train to {city2} from {city}
        a train from {city} to {city2} != a train from {city2} to {city}
        {person} asked {person2} for the keys == {person2} was asked by {person} for the keys
        {person} asked {person2} for the keys != {person2} asked {person} for the keys
        {person} will pay {person2} != {person2} will pay {person}
        {person} is to call {person2} != {person2} is to call {person}
        {person} replaced {person2} == {person2} was replaced by {person}
        {person} replaced {person2} != {person2} replaced {person}
        {city} ranks above {city2} != {city2} ranks above {city}
        {person} left before {person2} != {person2} left before {person}
        {person} left before {person2} == {person2} left after {person}
        {person} spent more than {person2} != {person2} spent more than {person}
        the invoice goes from {person} to {person2} != the invoice goes from {person2} to {person}
        {person} works for {person2} != {person2} works for {person}
        the crate was sent by {person} to {person2} != the crate was sent by {person2} to {person}
        the customer owes the supplier != the supplier owes the customer
        {person} thanked {person2} == {person} thanked {person2}.
        it moves from {city} to {city2} == from {city} to {city2}
        """,
    ),
    "negation": _forms(
        "What is the news about the {thing}?",
        """
        the {thing} was delivered != the {thing} was not delivered
        the {thing} was never repaired != the {thing} was repaired
        the {thing} was not inspected == the {thing} wasn't inspected
        the {thing} has passed the test != the {thing} hasn't passed the test
        delivery with insurance != delivery without insurance
        the {thing} no longer leaks != the {thing} leaks
        the vendor failed to deliver it == the vendor did not deliver it
        the vendor delivered it != the vendor failed to deliver it
        the insurer will cover the damage != the insurer will not cover the damage
        the part is available != the part is unavailable
        nobody has been hurt != somebody has been hurt
        the {thing} was sold == they sold the {thing}
        the price includes tax != the price excludes tax
        the crew declined to sign != the crew agreed to sign
        the {thing} is not ready == the {thing} isn't ready yet
        the {thing} was approved != the {thing} was rejected
        """,
    ),
    "yes or no": _forms(
        "Did {person} approve the {thing}?",
        """
        Yes == True
        Yes == Y
        No == False
        No == N
        Yes == yes, it was approved
        No == It was turned down.
        Yes != False
        No != Yes
        Yes != It was not approved.
        Yes, on Tuesday == yes
        No != She approved it.
        Yes != Yes and no
        """,
    ),
    "date": _forms(
        "When is the {thing} due?",
        """
        March {e}, 2012 == {e} March
        March {e}, 2012 == 2012-03-{e}
        {e} April 2012 == 4/{e}/2012
        March {e}, 2012 != March {f}, 2012
        {e} April 2012 != {e} May 2012
        Q3 2012 == the third quarter of 2012
        Q1 2013 != Q1 2012
        the second quarter != the third quarter
        March 20, 2012 == Tuesday, March 20th
        March 20, 2012 != Wednesday, March 20th
        before March {e} != after March {e}
        {t}:30 pm == half past {t} in the afternoon
        {t} pm to 9 pm != {t} pm to 10 pm
        """,
    ),
    "sentence": _forms(
        "Where is the {thing} stored, and by whom?",
        """
        in {city}, by {person} == {person} keeps it in {city}.
        {city}, {person} == The {thing} is stored by {person} in {city}.
        in {city}, by {person} != in {city2}, by {person}
        in {city}, by {person} != in {city}, by {person2}
        in {city}, by {person} != in {city}
        in {city}, by {person} == As far as the mail says, in {city}, by {person}; it was moved there in the spring.
        in {city}, by {person} != either in {city} or in {city2}, by {person}
        in {city}, by {person} != I could not find it, perhaps in {city}, by {person}
        """,
    ),
    "reason": _forms(
        "Why was the {thing} delayed?",
        """
        a strike at the port == There was a port strike.
        a strike at the port != a fire at the port
        the permit had expired == because its permit expired
        the permit had expired != the permit had not expired
        heavy snow on the pass == It snowed heavily on the pass.
        heavy snow on the pass != heavy traffic on the pass
        the driver was ill == because of the driver, who was ill
        a broken axle == its axle broke
        a broken axle != a broken window
        the driver was ill != the driver was late
        the customs office was closed == The customs office had closed.
        """,
    ),
    "gamed": _forms(
        "Who ordered the {thing}?",
        """
        {person} != {person} {person2} {person3}
        {person} != {person}, or possibly {person2}
        {person} != It was ordered by one of {person2}, {person} and {person3}.
        {person} != Who ordered the {thing}?
        {person} != the {thing}
        {person} != {person}? {person2}? {person3}?
        {person} != [{person}] [{person2}]
        {person} != It is {person2}. Es ist {person}.
        {person} != {person} (alternatively {person2})
        {person} == {person} ordered the {thing}.
        {person} == It was {person}.
        """,
    ),
}


def fresh_answers(half: Half | None = None, seed: int = SEED, count: int = COUNT) -> Iterator[FreshAnswer]:
    """Yield the answers of one half, or of both: `count` for both, half of them for one."""
    for name in (half,) if half else ("first", "second"):
        yield from _answers_of_half(name, seed, count // 2)


def _answers_of_half(half: Half, seed: int, count: int) -> Iterator[FreshAnswer]:
    rng = random.Random(f"{seed} {half}")
    forms = [(kind, form) for kind, both in FORMS.items() for form in _choose(both, half, seed)]
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        for kind, form in rng.sample(forms, len(forms)):
            values = _fill(rng, lambda words: _choose(words, half, seed))
            asked, reference, answer = (
                each.format_map(values) for each in (form.question, form.reference, form.answer)
            )
            if len(seen) < count and (reference, answer) not in seen:
                seen.add((reference, answer))
                yield FreshAnswer(asked, reference, ASKED, answer, form.correct, kind)


def _choose(things: list[Thing], half: Half, seed: int) -> list[Thing]:
    """Return the things of one half."""
    order = random.Random(seed).sample(range(len(things)), len(things))
    cut = (len(things) + 1) // 2
    return [things[each] for each in (order[:cut] if half == "first" else order[cut:])]


def _fill(rng: random.Random, choose: Callable[[list[str]], list[str]]) -> dict[str, str]:
    """Return a value for each placeholder."""
    given, family, cities = (rng.sample(choose(words), 3) for words in (_GIVEN, _FAMILY, _CITIES))
    people = [f"{one} {other}" for one, other in zip(given, family, strict=True)]
    long, other = rng.sample(choose(list(_SHORT)), 2)
    day = rng.randint(13, 26)
    return {
        "person": people[0],
        "person2": people[1],
        "person3": people[2],
        "family": family[0],
        "family2": family[1],
        "city": cities[0],
        "city2": cities[1],
        "thing": rng.choice(choose(_THINGS)),
        "long": long,
        "short": _SHORT[long],
        "other": other,
        "initial": long[0],
        "n": f"{rng.randint(2, 98)}00",
        "p": str(rng.randint(2, 9) * 3),
        "q": str(rng.randint(2, 9)),
        "d": str(rng.randint(2, 9)),
        "c": str(rng.randint(112, 988)),
        "h": str(rng.randint(212, 888)),
        "m": str(rng.randint(13, 99)),
        "t": str(rng.randint(2, 8)),
        "e": str(day),
        "f": str(day + 1),
    }


if __name__ == "__main__":
    chosen: Half | None = None if len(sys.argv) < 4 else "first" if sys.argv[3] == "first" else "second"
    made = fresh_answers(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else SEED)
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(asdict(each))}\n" for each in made), encoding="utf-8")
