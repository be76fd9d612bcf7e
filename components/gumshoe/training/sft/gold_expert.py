"""An expert that answers a scenario whose sources are known, with searches that find them.

It plays real episodes: each call is run in the scenario's environment, which shows it what a policy would see.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gumshoe.environments.base import Environment, Source
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import Call, ToolError
from gumshoe.errors import UsageError
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.unknown_answer import UNKNOWN
from gumshoe.synthesis.rng import Rng
from gumshoe.training.settings_sections import DIFFICULTIES, GOLD, Difficulty, GoldSettings
from gumshoe.training.sft.gold_answers import share_of_answer, shorten_answer
from gumshoe.training.sft.gold_search import Search, SearchFinder
from gumshoe.training.sft.scripted_expert import DOCUMENTS, MAIL, SearchHit, ToolNames, parse_hits

_EASY_RANK = 2  # of the source among the hits
_MAY_ANSWER = 0.5  # share of the words of the answer in a text that may be another source
_PAGE, _MAX_PAGES = "page", 50
_HERMES = find_form("hermes")
_Reads = Literal["source", "other", "in-order", "all"]
"""Hits that an episode reads: the sources, another one before them, those from the first to the last source, or all."""


class NoEpisodeError(Exception):
    """Report why the expert cannot play a scenario."""


@dataclass(frozen=True, slots=True)
class GoldEpisode:
    """An episode of the expert."""

    trajectory: Trajectory
    difficulty: Difficulty
    is_from_question: bool
    """True if all keywords of the searches that find a source are from the question."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The searches of an episode."""

    searches: tuple[Search, ...]
    """Each lists a source that the ones before it do not."""
    first: Search | None = None
    """A search before them that lists none."""

    @property
    def is_from_question(self) -> bool:
        return all(each.is_from_question for each in self.searches)

    @property
    def difficulty(self) -> Difficulty:
        """easy: one search lists the source near the top; hard: a search is for words that the policy has not seen."""
        if not all(each.is_seen for each in self.searches):
            return "hard"
        is_direct = len(self.searches) == 1 and self.searches[0].rank <= _EASY_RANK
        return "easy" if is_direct and self.is_from_question else "normal"


@dataclass(slots=True)
class _Recording:
    """An episode while it is played."""

    environment: Environment
    calls: list[Call] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    untrained: list[int] = field(default_factory=list)
    """Numbers of the turns that are not trained on, from 1."""

    def run(self, call: Call, *, is_trained: bool = True) -> str:
        """Run a call as the next turn, and return its result."""
        self.calls.append(call)
        self.results.append(self.environment.toolbox.run(call))
        if not is_trained:
            self.untrained.append(len(self.calls))
        return self.results[-1]

    def to_trajectory(self, sample: int, settings: dict[str, Any]) -> Trajectory:
        """Return the episode as one of a chat model: with texts, and without token ids."""
        environment = self.environment
        spans = [Span("prompt", f"{environment.system_prompt()}\n\n{environment.user_prompt()}")]
        for call, result in zip(self.calls, self.results, strict=True):
            spans += [Span("sampled", _HERMES.write([call]), calls=(call,)), Span("injected", result)]
        turns = len(self.calls)
        return Trajectory(
            environment.scenario.id,
            sample,
            GOLD,
            "answer",
            "",
            spans[:-1],  # the final answer has no result
            environment.record,
            turns,
            policy_seconds=0.0,
            tool_seconds=0.0,
            deeds=[1] * turns,
            untrained=self.untrained,
            settings=settings,
        )


def find_tools(environment: Environment) -> ToolNames:
    """Return the names of an environment's tools.

    Raises:
        UsageError: the expert does not know the environment.
    """
    names = {tool.__name__ for tool in environment.toolbox.tools}
    for known in (MAIL, DOCUMENTS):
        if {known.search, known.read} <= names:
            return known
    raise UsageError(
        "training.gold-environment",
        f"demonstrations can only be made with the tools for mail or documents; this environment has "
        f"{', '.join(sorted(names))}; record episodes with `gumshoe rollout` instead",
    )


class GoldExpert:
    """Play episodes of one scenario."""

    def __init__(self, env: EnvFactory, scenario: Scenario, settings: GoldSettings, max_turns: int, seed: int) -> None:
        self._scenario, self._settings = scenario, settings
        self._max_turns, self._seed = max_turns, seed
        environment = env.new_environment(scenario, max_turns)
        self._tools = find_tools(environment)
        self._has_pages = _has_pages(environment, self._tools)
        found = {source: env.find_source(scenario, source) for source in scenario.sources}
        self._missing = sum(each is None for each in found.values())
        by_id = {each.id: source for source, each in found.items() if each}  # one id of each message
        self._sources: dict[str, Source] = {source: each for source in by_id.values() if (each := found[source])}
        self._finder = SearchFinder(env, scenario, max_turns, self._tools, self._sources)

    def play(self) -> list[GoldEpisode]:
        """Return episodes with different searches, up to as many as the settings say.

        Raises:
            NoEpisodeError: no episode is possible, or the settings exclude it.
        """
        if not self._sources:
            return [self._play_unknown()]
        if self._scenario.needs_all and self._missing:
            raise NoEpisodeError("not all sources are in the index")
        episodes, reason = list[GoldEpisode](), "no search lists a source"
        for sample, plan in enumerate(self._plans()):
            if DIFFICULTIES.index(plan.difficulty) > DIFFICULTIES.index(self._settings.difficulty):
                reason = "too difficult"
                continue
            try:
                episode = self._play_plan(plan, Rng(self._seed, "gold", self._scenario.id, sample))
            except NoEpisodeError as error:
                reason = str(error)
                continue
            trajectory = episode.to_trajectory(len(episodes), self._recorded(plan.difficulty))
            episodes.append(GoldEpisode(trajectory, plan.difficulty, plan.is_from_question))
        if not episodes:
            raise NoEpisodeError(reason)
        return episodes

    def _recorded(self, difficulty: Difficulty) -> dict[str, Any]:
        given = {"seed": self._seed, "max_turns": self._max_turns, "difficulty": difficulty}
        return {**given, "gold": self._settings.model_dump()}

    def _plans(self) -> Iterator[_Plan]:
        """Yield plans that differ in the first search that lists a source."""
        wanted = frozenset(self._sources)
        starts = [_Plan((each,)) for each in self._first_searches(wanted)]
        for start in starts or self._plan_with_source_words(wanted):
            plan = self._complete(start) if self._scenario.needs_all else start
            if plan:
                yield plan

    def _first_searches(self, wanted: frozenset[str]) -> list[Search]:
        """Return different searches that list a source. A share of the first ones lists it below the first hit."""
        found = self._finder.find(wanted, self._settings.episodes)
        rng = Rng(self._seed, "gold", self._scenario.id, "rank")
        if not found or found[0].rank > 1 or not rng.chance(self._settings.later_hits):
            return found
        below = self._finder.find_below_first(wanted, found[0])
        others = (each for each in found if below is None or each.call != below.call)
        return [*filter(None, [below]), *others][: self._settings.episodes]

    def _complete(self, plan: _Plan) -> _Plan | None:
        """Add searches to a plan until all sources are listed; return None if that is impossible."""
        while left := frozenset(self._sources).difference(*(each.found for each in plan.searches)):
            following = self._finder.find(left, 1) or self._finder.find_with_source_words(left, _shown(plan.searches))
            if not following:
                return None
            plan = _Plan((*plan.searches, following[0]), plan.first)
        return plan

    def _plan_with_source_words(self, wanted: frozenset[str]) -> list[_Plan]:
        """Return the plan that begins with a search for words of the question, which lists no source."""
        first = self._finder.first_try()
        shown = _shown([first] if first else [])
        return [_Plan((each,), first) for each in self._finder.find_with_source_words(wanted, shown)]

    def _play_plan(self, plan: _Plan, rng: Rng) -> _Recording:
        """Play a plan, with detours as the settings say if there are enough turns.

        Raises:
            NoEpisodeError: there are too few turns even without detours, or no source can be read.
        """
        fails, reads_other = rng.chance(self._settings.failed_searches), rng.chance(self._settings.other_reads)
        reads: _Reads = "other" if reads_other and self._settings.reads == "source" else self._settings.reads
        for with_failure, how in dict.fromkeys(((fails, reads), (False, reads), (False, "source"))):
            episode = self._play_searches(plan, rng, with_failure, how)
            if len(episode.calls) <= self._max_turns:
                return episode
        raise NoEpisodeError("too many turns")

    def _play_searches(self, plan: _Plan, rng: Rng, fails: bool, reads: _Reads) -> _Recording:
        """Play a plan, with the detours that are wanted and possible.

        Raises:
            NoEpisodeError: a search lists no source that can be read.
        """
        episode = _Recording(self._finder.new_environment())
        first = plan.first
        if first is None and fails:
            first = self._finder.find_failing(plan.searches[0], rng)
        if first is not None:
            episode.run(first.call, is_trained=False)
        texts, cited = list[str](), list[str]()
        for search in plan.searches:
            hits = parse_hits(episode.run(search.call, is_trained=search.is_seen))
            gold = self._finder.find_gold_hits(episode.calls)
            if not gold:
                raise NoEpisodeError("no listed source can be read")
            wanted = gold if self._scenario.needs_all else gold[:1]
            others = _others(hits, gold)
            if reads == "other" and others and not cited:
                episode.run(self._tools.read_call(rng.pick(others).source), is_trained=False)
            for hit in _hits_to_read(hits, wanted, reads):
                if hit in wanted:
                    texts += self._read(episode, hit)
                    cited.append(hit.source)
                elif (call := self._tools.read_call(hit.source)) not in episode.calls:
                    episode.run(call)
        answer = self._scenario.answer
        if self._settings.answers == "span":
            answer = shorten_answer(self._scenario, "\n".join(texts))
        episode.run(self._tools.answer_call(answer, *cited))
        return episode

    def _read(self, episode: _Recording, hit: SearchHit) -> list[str]:
        """Read a hit, page after page to the one that has most of the answer, and return the texts."""
        call = self._tools.read_call(hit.source)
        if not self._has_pages:
            return [episode.run(call)]
        environment = self._replay(episode)
        shares = list[float]()
        while len(shares) < _MAX_PAGES and (not shares or max(shares) < 1):
            try:
                text = environment.toolbox.run(_turn_to(call, len(shares) + 1))
            except ToolError:  # there are no more pages
                break
            shares.append(share_of_answer(self._scenario.answer, text))
        return [episode.run(_turn_to(call, page)) for page in range(1, shares.index(max(shares)) + 2)]

    def _play_unknown(self) -> GoldEpisode:
        """Return an episode that searches, reads what looks best, and ends with "I don't know".

        Raises:
            NoEpisodeError: the settings exclude it, a hit may have the answer after all, or it needs too many turns.
        """
        rng = Rng(self._seed, "gold", self._scenario.id)
        first = self._finder.first_try()
        if first is None or not rng.chance(self._settings.unknown):
            raise NoEpisodeError("no source in the index")
        both = [*filter(None, (first, self._finder.find_failing(first, rng)))]
        ways = [(both, 1)] if self._settings.reads == "source" else [(both, None), ([first], None), (both, 1)]
        for searches, reads in ways:
            episode = self._search_in_vain(searches, reads)
            if len(episode.calls) <= self._max_turns:
                return GoldEpisode(episode.to_trajectory(0, self._recorded("normal")), "normal", is_from_question=True)
        raise NoEpisodeError("too many turns")

    def _search_in_vain(self, searches: list[Search], reads: int | None) -> _Recording:
        """Play some searches, read this number of hits of each (all if None), and end with "I don't know".

        Raises:
            NoEpisodeError: a hit may have the answer after all.
        """
        episode = _Recording(self._finder.new_environment())
        for search in searches:
            hits = parse_hits(episode.run(search.call))
            if not self._scenario.unanswerable and any(self._may_answer(episode, hit) for hit in hits):
                raise NoEpisodeError("no source in the index")
            for hit in hits[:reads]:
                if (call := self._tools.read_call(hit.source)) not in episode.calls:
                    episode.run(call)
        episode.run(self._tools.answer_call(UNKNOWN))
        return episode

    def _may_answer(self, episode: _Recording, hit: SearchHit) -> bool:
        text = self._replay(episode).toolbox.run(self._tools.read_call(hit.source))
        return share_of_answer(self._scenario.answer, text) > _MAY_ANSWER

    def _replay(self, episode: _Recording) -> Environment:
        """Return another environment in the state of an episode's."""
        environment = self._finder.new_environment()
        for call in episode.calls:
            environment.toolbox.run(call)
        return environment


def _has_pages(environment: Environment, tools: ToolNames) -> bool:
    """Return True if the tool that reads shows long texts in pages."""
    functions = (each["function"] for each in environment.toolbox.schemas())
    return any(each["name"] == tools.read and _PAGE in each["parameters"]["properties"] for each in functions)


def _turn_to(call: Call, page: int) -> Call:
    """Return a call that reads one page of a text."""
    return call if page == 1 else Call(call.name, {**call.arguments, _PAGE: page})


def _hits_to_read(hits: list[SearchHit], wanted: list[SearchHit], reads: _Reads) -> list[SearchHit]:
    """Return the hits to read, in this order; other reads than those of sources are the caller's."""
    if reads == "in-order" and wanted:
        return hits[: hits.index(wanted[-1]) + 1]
    return hits if reads == "all" else wanted


def _others(hits: list[SearchHit], gold: list[SearchHit]) -> list[SearchHit]:
    """Return the hits that are no sources: those before the first source, or else those after it."""
    first = hits.index(gold[0])
    return hits[:first] or [each for each in hits[first:] if each not in gold]


def _shown(searches: Iterable[Search]) -> str:
    """Return the hits of some searches as text."""
    return "\n".join(str(hit) for each in searches for hit in parse_hits(each.result))
