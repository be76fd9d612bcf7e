"""Find searches that list the sources of an answer, among those that a person would try, by running them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from functools import cached_property
from itertools import combinations
from types import MappingProxyType

from gumshoe.environments.base import Environment, MessageSource, Source
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import Call, ToolError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.rng import Rng
from gumshoe.training.sft.gold_words import (
    RARE_COST,
    Filters,
    Keyword,
    find_filters,
    find_keywords,
    find_source_keywords,
)
from gumshoe.training.sft.scripted_expert import MAIL, SearchHit, ToolNames, parse_hits

MAX_KEYWORDS = 4
_NUMBER_COST = (math.inf, 1.7, 1.2, 1.7, 2.6)  # by number of keywords: two are better than one
_NAME_GAIN = 0.4  # of a single keyword that is a name, for each of its first two words
_FILTER_COST = 0.5  # of each argument
_SEEN_COST, _UNSEEN_COST = 1.0, 2.0  # of a word of the source that an earlier result shows, or that nothing shows
_FULL_COST = 1.0  # of a result without room for more hits, if the source is not the first
_RANK_COST, _HIT_COST = 0.3, 0.03  # of each hit before the source, and of each hit
_USUAL_COSTS = {
    4: 0.0,
    3: 0.1,
    2: 0.2,
}  # of a search for this number of the likeliest keywords, whatever the source has
_COVERAGE = 0.7  # gain for each further source that is listed, if all are needed
_LIKELY_COST = 0.3  # of a keyword that a person may try first
_MAX_EXTRA_COST = 1.5  # of another search for the same sources, compared with the best one
_MAX_HITS = 10  # unless the environment has a setting `hits`
_MAX_TRIES = 250  # searches for the same sources
_MAX_SOURCE_WORDS, _PAIRED_WORDS, _QUESTION_WORDS = 40, 4, 3  # words of a source; in pairs; and of the question
_QUERY_WORDS, _SHORTER_COST = (8, 6, 4, 3, 2), 0.5  # numbers of words of a query for documents, and of the next number


@dataclass(frozen=True, slots=True)
class Search:
    """A search, and how good it is."""

    call: Call
    keywords: tuple[Keyword, ...]
    cost: float
    """How unlikely a person is to make it, and how much there is left to choose among its hits."""
    result: str = ""
    rank: int = 0
    """Rank of the first source that it lists, from 1; 0 if it lists none."""
    found: frozenset[str] = frozenset()
    """Sources that it lists, by their ids in the scenario."""

    @property
    def is_from_question(self) -> bool:
        return all(each.places for each in self.keywords)

    @property
    def is_seen(self) -> bool:
        """True if every keyword is from the question, or from the result of an earlier search."""
        return all(each.is_seen for each in self.keywords)


@dataclass
class SearchFinder:
    """Find searches for one scenario in its environment."""

    env: EnvFactory
    scenario: Scenario
    max_turns: int
    tools: ToolNames
    sources: Mapping[str, Source]
    """The sources that can be read, by their ids in the scenario."""
    _tried: dict[str, Search] = field(default_factory=dict)

    def new_environment(self) -> Environment:
        """Return a new environment of the scenario."""
        return self.env.new_environment(self.scenario, self.max_turns)

    def find(self, wanted: frozenset[str], count: int) -> list[Search]:
        """Return up to `count` searches with words of the question that list a source in `wanted`, the best first."""
        return self._try_all(self._candidates(wanted), wanted, count)

    def find_below_first(self, wanted: frozenset[str], best: Search) -> Search | None:
        """Return the best search with words of the question whose first source is not its first hit.

        A person is about as likely to make it as `best`. Return None if no search is like that.
        """
        likely = [each for each in self._candidates(wanted) if each.cost <= best.cost + _MAX_EXTRA_COST]
        return next(iter(self._try_all(likely, wanted, 1, least_rank=2)), None)

    def find_with_source_words(self, wanted: frozenset[str], shown: str) -> list[Search]:
        """Return the best search that lists a source in `wanted` with words of the sources themselves, if there is one.

        Words that stand in `shown`, the results of earlier searches, are preferred.
        """
        return self._try_all(self._with_source_words(wanted, shown), wanted, 1)

    def first_try(self) -> Search | None:
        """Return the search that a person would make first, if the question has keywords."""
        ranked = sorted(self._keywords, key=lambda each: each.cost)[:2]
        chosen = [each for each in ranked if each is ranked[0] or not _overlap(each, ranked[0])]
        return self._measure(self._search(chosen)) if chosen else None

    def find_failing(self, good: Search, rng: Rng) -> Search | None:
        """Return a random search for words of the question that lists no source, or None if every one lists one.

        It is too narrow, with one keyword more than a good search, or for one or two words that are too common.
        """
        others = [each for each in self._keywords if not _overlap(each, *good.keywords)]
        narrow = [[*good.keywords, each] for each in others if len(good.keywords) < MAX_KEYWORDS]
        likely = [each for each in self._keywords if each.cost <= _LIKELY_COST]
        wide = [[each] for each in likely] + [[*each] for each in combinations(likely, 2) if not _overlap(*each)]
        for tries in rng.shuffled([narrow, wide]):
            for keywords in rng.shuffled(tries):
                found = self._measure(self._search(sorted(keywords, key=lambda each: each.places.start)))
                if not found.found:
                    return found
        return None

    def find_gold_hits(self, calls: list[Call]) -> list[SearchHit]:
        """Return the hits of the last of some calls, a search, that are sources and were not read before.

        Reading the hits tells which are sources, because the ids that are shown may be handles of this episode.
        """
        environment = self.new_environment()
        results = [environment.toolbox.run(call) for call in calls]
        found = list[SearchHit]()
        for hit in parse_hits(results[-1]):
            before = len(environment.record.read)
            with suppress(ToolError):
                environment.toolbox.run(self.tools.read_call(hit.source))
            found += [hit] * (len(environment.record.read) > before)
        return found

    @cached_property
    def _keywords(self) -> list[Keyword]:
        return find_keywords(self.scenario.question)

    @cached_property
    def _filters(self) -> list[Filters]:
        """No filter, each of those that the question names, and two of different kinds."""
        about = self.scenario
        named = find_filters(about.question, about.inbox_address, about.query_date) if about.inbox_address else []
        pairs = [one + other for one, other in combinations(named, 2) if not one.names & other.names]
        return [Filters(), *named, *pairs]

    def _matching(self, source: str) -> list[Keyword]:
        """Return the keywords of the question that a source has, so that a search for all of them may list it."""
        found = self.sources[source]
        if not isinstance(found, MessageSource) or found.sent is None:
            return self._keywords
        day = found.sent.astimezone(UTC).date()
        limits = {"sender": found.sender, "sent_after": str(day), "sent_before": str(day + timedelta(1))}
        return [each for each in self._keywords if source in self._measure(self._search([each], limits)).found]

    def _usual(self) -> list[Search]:
        """Return searches for the likeliest keywords of the question. A policy can make them without a look at hits."""
        chosen = list[Keyword]()
        for each in sorted(self._keywords, key=lambda each: each.cost):
            if each.cost < RARE_COST and not _overlap(each, *chosen):
                chosen.append(each)
        return [
            replace(self._search(sorted(chosen[:count], key=lambda each: each.places.start)), cost=cost)
            for count, cost in _USUAL_COSTS.items()
            if count <= len(chosen)
        ]

    def _candidates(self, wanted: frozenset[str]) -> list[Search]:
        """Return searches with words of the question, before they are run.

        In a mailbox, they are the usual ones, and those for up to four keywords that one of the sources has.
        """
        if self.tools is not MAIL:
            return self._queries()
        chosen = dict[tuple[Keyword, ...], None]()
        for keywords in map(self._matching, sorted(wanted)):
            for count in range(1, MAX_KEYWORDS + 1):
                chosen |= dict.fromkeys(each for each in combinations(keywords, count) if not _overlap(*each))
        return self._usual() + [
            self._search(each, dict(filters.arguments))
            for filters in self._filters
            for each in chosen
            if filters.places.isdisjoint(place for keyword in each for place in keyword.places)
        ]

    def _queries(self) -> list[Search]:
        """Return searches of documents for the words of the question: fewer and fewer, in its order."""
        words = [each for each in self._keywords if len(each.places) == 1]
        ranked = sorted(words, key=lambda each: each.cost)
        chosen = (sorted(ranked[:count], key=lambda each: each.places.start) for count in _QUERY_WORDS)
        unique = {tuple(each): None for each in chosen if each}
        calls = [self.tools.search_call([keyword.text for keyword in each]) for each in unique]
        costs = (_SHORTER_COST * number for number in range(len(calls)))
        return list(map(Search, calls, unique, costs))

    def _with_source_words(self, wanted: frozenset[str], shown: str) -> Iterator[Search]:
        """Yield searches for a word or two of one of the sources, also with a keyword of the question."""
        seen = set(map(str.casefold, find_source_keywords(shown)))
        for source in sorted(wanted):
            words = list[Keyword]()
            for number, word in enumerate(self._read_words(source)[:_MAX_SOURCE_WORDS]):
                is_seen = word.casefold() in seen
                cost = (_SEEN_COST if is_seen else _UNSEEN_COST) + number / 100
                words.append(Keyword(word, range(0), cost, is_seen))
            best = sorted(self._matching(source), key=lambda each: each.cost)[:_QUESTION_WORDS]
            pairs = combinations(sorted(words, key=lambda each: each.cost)[:_PAIRED_WORDS], 2)
            for more in (*((each,) for each in words), *pairs):
                yield from (self._search([*kept, *more]) for kept in ([], *([each] for each in best)))

    def _read_words(self, source: str) -> list[str]:
        """Return the words of a source that are worth a search, those of its subject first."""
        if not self.env.reads_sources:
            return []
        found = self.env.read_source(self.scenario, source)
        title = getattr(self.sources[source], "subject", "") or getattr(self.sources[source], "title", "")
        return find_source_keywords(f"{title}\n{found.text if found else ''}")

    def _search(self, keywords: Sequence[Keyword], filters: Mapping[str, str] = MappingProxyType({})) -> Search:
        """Return a search, before it is run."""
        call = self.tools.search_call([each.text for each in keywords])
        cost = _NUMBER_COST[len(keywords)] + sum(each.cost for each in keywords) + _FILTER_COST * len(filters)
        if len(keywords) == 1 and not keywords[0].cost:
            cost -= _NAME_GAIN * min(2, len(keywords[0].places))
        return Search(Call(call.name, {**call.arguments, **filters}), tuple(keywords), cost)

    def _try_all(
        self, candidates: Iterable[Search], wanted: frozenset[str], count: int, least_rank: int = 1
    ) -> list[Search]:
        """Run searches, the most likely ones first, and return up to `count` of the best that list a wanted source.

        Their first source has at least `least_rank`.
        """
        found = list[Search]()
        gain = _COVERAGE * (len(wanted) - 1) if self.scenario.needs_all else 0.0
        for each in sorted(candidates, key=lambda each: each.cost)[:_MAX_TRIES]:
            if len(found) >= count and each.cost - gain >= found[count - 1].cost:
                break
            tried = self._measure(each)
            if (listed := len(tried.found & wanted)) and tried.rank >= least_rank:
                more = _COVERAGE * (listed - 1) if self.scenario.needs_all else 0.0
                found = sorted([*found, replace(tried, cost=tried.cost - more)], key=lambda each: each.cost)
        return [each for each in found if each.cost <= found[0].cost + _MAX_EXTRA_COST][:count]

    def _measure(self, search: Search) -> Search:
        """Run a search in a new environment, and return it with what it lists; nothing if it is invalid."""
        key = repr(search.call)
        if key not in self._tried:
            environment = self.new_environment()
            try:
                result = environment.toolbox.run(search.call)
            except ToolError:
                result = ""
            found, rank = frozenset(environment.record.found), environment.record.best_rank or 0
            hits = len(parse_hits(result))
            is_full = self.tools is MAIL and rank != 1 and hits >= int(self.env.arguments.get("hits", _MAX_HITS))
            extra = _FULL_COST * is_full + _RANK_COST * max(0, rank - 1) + _HIT_COST * hits
            self._tried[key] = replace(search, result=result, rank=rank, found=found, cost=extra)
        known = self._tried[key]
        return replace(known, call=search.call, keywords=search.keywords, cost=search.cost + known.cost)


def _overlap(*keywords: Keyword) -> bool:
    """Return True if two of some keywords share a word of the question."""
    places = [place for each in keywords for place in each.places]
    return len(places) > len(set(places))
