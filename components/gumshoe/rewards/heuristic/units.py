"""Units of numbers: currencies (from CLDR, by Babel), percent, lengths of time, and physical units (converted by Pint).

A physical unit is looked up by its English names and symbols, since Pint reads many words as units that are none here
("in", "at", "a", "men"). Pint converts it; it is loaded when the first one occurs.
"""

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from babel import Locale

_ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a number."""

    name: str
    """Currency, %, a unit of time, or the dimension."""
    scale: Decimal = _ONE
    """Base units of the dimension in one unit."""
    offset: Decimal = Decimal(0)
    is_exact: bool = True


_TIMES = {
    "second": Unit("time"),
    "minute": Unit("time", Decimal(60)),
    "hour": Unit("time", Decimal(3600)),
    "day": Unit("time", Decimal(86400)),
    "week": Unit("time", Decimal(604800)),
    "fortnight": Unit("time", Decimal(1209600)),
    "month": Unit("months"),
    "quarter": Unit("months", Decimal(3)),
    "year": Unit("months", Decimal(12)),
    "decade": Unit("months", Decimal(120)),
    "night": Unit("nights"),
    "working day": Unit("working days"),
}
TIMES = frozenset(each.name for each in _TIMES.values())
"""Names of the units of time."""
_TIME_WORDS = {"sec": "second", "min": "minute", "hr": "hour", "wk": "week", "mo": "month", "yr": "year", "h": "hour"}
_TIME_WORDS |= {"business day": "working day", "weekday": "working day", "annum": "year", "calendar day": "day"}
_PERCENT = {"%": _ONE, "percent": _ONE, "per cent": _ONE, "pct": _ONE, "percentage point": _ONE}
_PERCENT |= {each: Decimal("0.01") for each in ("basis point", "bp", "bps", "bip")}
_SYMBOLS = {"$": "USD", "US$": "USD", "C$": "CAD", "S$": "SGD", "AU$": "AUD", "¥": "JPY", "₽": "RUB", "zł": "PLN"}
_SYMBOLS |= {"Fr.": "CHF", "SFr.": "CHF", "Rs": "INR", "Rs.": "INR", "₺": "TRY", "₴": "UAH", "฿": "THB"}
_CURRENCY_WORDS = {"dollar": "USD", "buck": "USD", "pound": "GBP", "quid": "GBP", "pound sterling": "GBP"}
_CURRENCY_WORDS |= {"sterling": "GBP", "euro": "EUR", "yen": "JPY", "yuan": "CNY", "rmb": "CNY", "renminbi": "CNY"}
_CURRENCY_WORDS |= {"franc": "CHF", "rupee": "INR", "zloty": "PLN", "rouble": "RUB", "ruble": "RUB", "rand": "ZAR"}
_CURRENCY_WORDS |= {"won": "KRW", "baht": "THB", "shekel": "ILS", "peso": "MXN", "real": "BRL", "lira": "TRY"}
_CURRENCY_WORDS |= {"stg": "GBP", "pounds sterling": "GBP", "forint": "HUF", "ringgit": "MYR", "hryvnia": "UAH"}
_CENTS = {"cent": "USD", "penny": "GBP", "pence": "GBP", "p": "GBP", "¢": "USD", "eurocent": "EUR"}
_POUND = "lb"
_PHYSICAL = {
    "millimetre": "mm millimeter",
    "centimetre": "cm centimeter",
    "metre": "meter",
    "kilometre": "km kilometer kms k.m.",
    "inch": 'inches " in.',
    "foot": "ft feet ft. '",
    "yard": "yd",
    "mile": "mi statute_mile",
    "nautical_mile": "nm nmi",
    "milligram": "mg",
    "gram": "g gramme gm",
    "kilogram": "kg kilo kilogramme kgs",
    "tonne": "metric_ton metric_tons mt",
    "ton": "short_ton",
    "ounce": "oz",
    _POUND: "lbs lb pound_of pounds_of",
    "stone": "",
    "millilitre": "ml milliliter",
    "litre": "l liter ltr",
    "gallon": "gal gallons us_gallon",
    "pint": "",
    "quart": "",
    "oil_barrel": "bbl barrel barrel_of_oil bbls",
    "cubic_foot": "cf cubic_feet cu_ft ft3 scf",
    "1e3*cubic_foot": "mcf",
    "1e6*cubic_foot": "mmcf",
    "1e9*cubic_foot": "bcf",
    "1e12*cubic_foot": "tcf",
    "meter^3": "m3 cubic_meter cubic_metre cbm",
    "square_foot": "sq_ft square_feet sqft sq._ft. ft2 sf",
    "meter^2": "m2 square_meter square_metre sq_m sqm",
    "square_mile": "sq_mi",
    "kilometer^2": "km2 square_kilometer square_kilometre sq_km",
    "acre": "",
    "hectare": "ha",
    "watt": "w",
    "kilowatt": "kw",
    "megawatt": "mw",
    "gigawatt": "gw",
    "terawatt": "tw",
    "horsepower": "hp",
    "watt_hour": "wh",
    "kilowatt_hour": "kwh",
    "megawatt_hour": "mwh",
    "gigawatt_hour": "gwh",
    "terawatt_hour": "twh",
    "Btu": "btu",
    "1e6*Btu": "mmbtu mmbtus dth dekatherm decatherm",
    "1e9*Btu": "bbtu bbtus",
    "joule": "j",
    "kilojoule": "kj",
    "megajoule": "mj",
    "gigajoule": "gj",
    "kilocalorie": "kcal",
    "degree_Celsius": "celsius °c degrees_c degree_c degrees_celsius degree_celsius deg_c centigrade",
    "degree_Fahrenheit": "fahrenheit °f degrees_f degree_f degrees_fahrenheit degree_fahrenheit deg_f",
    "kelvin": "",
    "mile/hour": "mph miles_per_hour mile_per_hour miles_an_hour",
    "kilometer/hour": "km/h kph kmh km_per_hour kilometres_per_hour kilometers_per_hour kilometres_an_hour",
    "meter/second": "m/s metres_per_second meters_per_second",
    "knot": "kt kts",
    "psi": "",
    "bar": "",
    "kilopascal": "kpa",
    "volt": "v",
    "kilovolt": "kv",
    "ampere": "amp",
    "hertz": "hz",
    "kilohertz": "khz",
    "megahertz": "mhz",
    "gigahertz": "ghz",
    "bit/second": "bps_",
    "kilobit/second": "kbps kbit/s",
    "megabit/second": "mbps mbit/s",
    "gigabit/second": "gbps gbit/s",
    "byte": "",
    "kilobyte": "kb",
    "megabyte": "mb meg",
    "gigabyte": "gb gig",
    "terabyte": "tb",
}
_CASE_SENSITIVE = {"C": "degree_Celsius", "F": "degree_Fahrenheit"}


def find_unit(words: str) -> Unit | None:
    """Return the unit of these words (without an amount), e.g. "dollars", "kWh", "Swiss francs" or "basis points"."""
    known = _CASE_SENSITIVE.get(words)
    if known:
        return _convert(known)
    return _find_unit(words if words in _SYMBOLS else words.casefold())


def is_pound(words: str) -> bool:
    """Return True if the words may be pounds of money or of weight."""
    return words.casefold() in ("pound", "pounds")


@lru_cache(maxsize=4096)
def _find_unit(words: str) -> Unit | None:
    if words in _SYMBOLS:
        return Unit(_SYMBOLS[words])
    table = _table()
    for each in _singulars(words):
        if each in table:
            found = table[each]
            return _convert(found) if isinstance(found, str) else found
    return None


def _singulars(words: str) -> list[str]:
    """Return the words as written, and without the ending of a plural."""
    found = [words, words.replace("-", " ")]
    if words.endswith("s") and len(words) > 2:
        found += [words[:-1], words[:-1].replace("-", " "), words.removesuffix("es")]
    return found


@lru_cache(maxsize=1)
def _table() -> dict[str, Unit | str]:
    """Return units by their names in lower case; a physical unit is its name in Pint."""
    table: dict[str, Unit | str] = {}
    for name, others in _PHYSICAL.items():
        for each in (name, *others.split()):
            table[each.replace("_", " ").casefold()] = name
    for code, symbol in _currencies().items():
        names = {code, symbol, *_names_of_currency(code)}
        table.update({each.casefold(): Unit(code) for each in names if each != "¤"})
    table.update({name: Unit(code) for name, code in _CURRENCY_WORDS.items()})
    table.update({symbol.casefold(): Unit(code) for symbol, code in _SYMBOLS.items()})
    table.update({name: Unit(code, Decimal("0.01")) for name, code in _CENTS.items()})
    table.update({name: Unit("%", scale) for name, scale in _PERCENT.items()})
    table.update(_TIMES)
    table.update({name: _TIMES[full] for name, full in _TIME_WORDS.items()})
    for word in ("all", "top", "try", "mad", "cup", "gel", "ron", "sos", "lak", "bam", "pen", "ant", "mop", "std"):
        table.pop(word, None)  # codes of currencies that are English words, or more common in other senses
    return table


def currency_marks() -> list[str]:
    """Return the symbols and codes of currencies that stand before an amount, the longest first."""
    marks = {*_SYMBOLS, *_currencies().values(), *_currencies()} - {"¤", "p", "TOP", "ALL", "TRY", "MAD", "CUP"}
    return sorted((each for each in marks if each), key=lambda each: (-len(each), each))


@lru_cache(maxsize=1)
def _currencies() -> dict[str, str]:
    """Return the symbols of currencies in use by code. Old ones, such as those before the euro, are left out."""
    return {str(code): str(symbol) for code, symbol in Locale("en").currency_symbols.items()}


def _names_of_currency(code: str) -> set[str]:
    data: Any = Locale("en")._data  # Babel has no function for all plural forms
    return {str(each) for each in data["currency_names_plural"].get(code, {}).values()} | {
        str(Locale("en").currencies.get(code, code))
    }


@lru_cache(maxsize=256)
def _convert(name: str) -> Unit:
    """Return a physical unit, with its scale in base units."""
    registry = _registry()
    factor, _, unit = name.rpartition("*")
    one, zero = (registry.Quantity(amount, unit).to_base_units() for amount in (1, 0))
    offset = Decimal(repr(float(zero.magnitude)))
    scale = Decimal(repr(float(one.magnitude))) - offset
    return Unit(str(one.dimensionality), scale * Decimal(factor or "1"), offset, is_exact=False)


@lru_cache(maxsize=1)
def _registry() -> Any:
    """Return Pint's registry. It is made when needed, since that takes about half a second."""
    from pint import UnitRegistry

    return UnitRegistry()
