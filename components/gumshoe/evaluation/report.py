"""Write `report.html`: an evaluation in one file that opens in any browser without network access.

Text of models and messages is data: it is embedded as JSON and shown as text.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.base import DocumentSource
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.search import HIT, bare_id
from gumshoe.environments.tools import Call
from gumshoe.evaluation.attacks.attack_rows import list_attack_rows
from gumshoe.evaluation.evaluate import EvaluationRun
from gumshoe.evaluation.evaluation_request import EvaluationRequest
from gumshoe.evaluation.metrics import Estimate, describe_metric, format_value
from gumshoe.evaluation.predictions import Prediction
from gumshoe.evaluation.proof.proof_models import PROOF, Proof, read_proof
from gumshoe.evaluation.proof.proof_page import list_claims
from gumshoe.evaluation.results import Comparison, EvaluationResult
from gumshoe.inference.policy_names import KEYWORDS, PolicyName, load_tokenizer
from gumshoe.pages.render import embed_json, render_page
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario, ScenarioSet

_ERROR = re.compile(r"(?:\A|<tool_response>\n)Error: ")
_STEPS = ("found", "read", "source_accuracy", "accuracy")
_ENDINGS = ("unusable", "truncated", "out_of_turns", "context_full", "does_not_know")


@dataclass(frozen=True, slots=True)
class _ChartRow:
    label: str
    estimates: list[tuple[int, Estimate]]
    """The number of each policy, and its share of questions."""


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    rows: list[_ChartRow]

    @property
    def is_zero(self) -> bool:
        return not any(estimate.value for row in self.rows for _, estimate in row.estimates)


def write_report(evaluated: EvaluationRun, settings: EvaluationRequest, path: Path) -> None:
    """Write the report, atomically.

    Raises:
        StorageError: if it cannot be written.
    """
    with explain_os_errors(path):
        proof = read_proof(path.parent) if (path.parent / PROOF).exists() else None
        write_atomically(path, io.BytesIO("".join(_page(evaluated, settings, proof)).encode()))


def _page(evaluated: EvaluationRun, settings: EvaluationRequest, proof: Proof | None) -> Iterator[str]:
    """Yield the page in parts, because it may be large."""
    result = evaluated.result
    kinds = list(dict.fromkeys(kind for each in result.policies for kind in each.kinds))
    yield from render_page(
        "gumshoe.evaluation",
        "report",
        {
            "result": result,
            "rows": list(dict.fromkeys(name for each in result.policies for name in each.metrics)),
            "describe_metric": describe_metric,
            "format_value": format_value,
            "headline": headline(result),
            "verdict": verdict,
            "charts": list(_charts(result, kinds)),
            "kinds": kinds,
            "claims": list(list_claims(proof)) if proof else [],
            "attacked": [each.attacks for each in result.policies if each.attacks],
            "attack_rows": list(list_attack_rows([each.attacks for each in result.policies])),
            "data": _data_blocks(evaluated, settings),
        },
    )


def _charts(result: EvaluationResult, kinds: Sequence[str]) -> Iterator[_Chart]:
    """Yield the charts of the breakdown, each with a row for every metric or kind of question."""

    def rows(names: Sequence[str], estimates: Sequence[Mapping[str, Estimate]]) -> Iterator[_ChartRow]:
        for name in names:
            found = [(number, each[name]) for number, each in enumerate(estimates) if name in each]
            if found:
                yield _ChartRow(name if names is kinds else describe_metric(name)[0], found)

    metrics = [each.metrics for each in result.policies]
    yield _Chart("From search to answer: share of questions", list(rows(_STEPS, metrics)))
    yield _Chart("Episodes without an answer: share of questions", list(rows(_ENDINGS, metrics)))
    if kinds:
        by_kind = [each.kinds for each in result.policies]
        yield _Chart("Correct, by kind of question", list(rows(kinds, by_kind)))


def headline(result: EvaluationResult) -> str:
    """Return the result in one sentence."""
    if not result.comparisons:
        (only,) = result.policies
        share = format_value("accuracy", only.metrics["accuracy"].value)
        return f"{only.name} answers {share} of {len(result.scenarios.ids):,} questions correctly"
    best = max(result.comparisons, key=lambda each: each.accuracy.candidate)
    gain = best.accuracy
    return (
        f"{best.candidate} answers {gain.candidate:.1%} of {best.questions:,} questions correctly, {best.baseline} "
        f"{gain.baseline:.1%}"
    )


def verdict(comparison: Comparison) -> tuple[str, str]:
    """Return "better", "worse" or "not significant", and the statistics in one sentence."""
    gain = comparison.accuracy
    is_significant = comparison.p_value <= 1 - comparison.level
    word = "not significant"
    if is_significant and gain.low > 0:
        word = "better"
    elif is_significant and gain.high < 0:
        word = "worse"
    return word, (
        f"{gain.difference:+.1%} correct, {comparison.level:.0%} interval {gain.low:+.1%} to {gain.high:+.1%}; "
        f"McNemar's exact test: p = {comparison.p_value:.2g}"
    )


def _data_blocks(evaluated: EvaluationRun, settings: EvaluationRequest) -> Iterator[tuple[str, Any]]:
    """Yield the id and the JSON of each data block: prompts, list of episodes, and each episode, parsed on demand."""
    env_factory = evaluated.env_factory
    gold = _find_correct_ids(env_factory, evaluated.scenarios)
    scenarios = {each.id: each for each in evaluated.scenarios}
    changed = {
        (comparison.candidate, scenario): change
        for comparison in evaluated.result.comparisons
        for change, ids in (("gained", comparison.gained), ("lost", comparison.lost))
        for scenario in ids
    }
    flat = [(name, trajectory) for name, trajectories in evaluated.trajectories.items() for trajectory in trajectories]
    prompts = {
        name: _common_prefix([each.spans[0].text for each in found if each.spans])
        for name, found in evaluated.trajectories.items()
    }
    yield "prompts", embed_json(prompts)
    yield (
        "episodes",
        embed_json(
            [
                _row(each, scenarios[each.scenario], gold[each.scenario], changed.get((each.policy, each.scenario)))
                | {"titles": _find_titles(env_factory, scenarios[each.scenario], each)}
                for each in evaluated.predictions
            ]
        ),
    )
    tokenizers = {each.name: _load_tokenizer(each.word, settings.rollout.tokenizer) for each in settings.policies}
    for number, (name, trajectory) in enumerate(flat):
        correct = _add_handles(gold[trajectory.scenario], trajectory)
        shown = list(_spans(trajectory, correct, len(prompts[name]), tokenizers[name]))
        yield f"e{number}", embed_json(shown)


def _row(each: Prediction, scenario: Scenario, gold: set[str], change: str | None) -> dict[str, Any]:
    """Return the data of an episode in the list, i.e. all but its turns."""
    return {
        **each.model_dump(mode="json"),
        "change": change,
        "inbox": scenario.inbox_address,
        "asked_on": str(scenario.query_date) if scenario.query_date else None,
        "gold": sorted(gold),
    }


def _find_correct_ids(env_factory: EnvFactory, scenarios: ScenarioSet) -> dict[str, set[str]]:
    """Return the ids of each question's correct sources, including those under which searches list them."""
    found: dict[str, set[str]] = {}
    for scenario in scenarios:
        listed = (env_factory.find_source(scenario, source) for source in scenario.sources)
        found[scenario.id] = {bare_id(each) for each in scenario.sources} | {
            bare_id(each.id) for each in listed if each is not None
        }
    return found


def _add_handles(gold: set[str], trajectory: Trajectory) -> set[str]:
    """Return the ids of correct sources, with the handles under which the tools of an episode showed them."""
    return gold | {handle for handle, source in trajectory.record.handles.items() if bare_id(source) in gold}


def _find_titles(env_factory: EnvFactory, scenario: Scenario, prediction: Prediction) -> dict[str, str]:
    """Return the titles, by id, of the documents that are correct or were given as sources."""
    found = (env_factory.find_source(scenario, each) for each in (*scenario.sources, *prediction.sources))
    return {each.id: each.title for each in found if isinstance(each, DocumentSource)}


def _spans(trajectory: Trajectory, gold: set[str], known: int, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the turns: sampled tokens with their probabilities, and injected results with correct sources marked.

    The first `known` characters of the prompt are left out, because all episodes have them.
    """
    for prompt in trajectory.spans[:1]:  # it is missing if it filled the context
        yield {"origin": "prompt", "text": prompt.text[known:]}
    calls, is_inside = tuple[Call, ...](), False
    for origin, part in groupby(trajectory.spans[1:], lambda span: span.origin):
        spans = list(part)
        if origin == "sampled":
            calls = spans[-1].calls
            for span in spans:
                tokens, logprobs = split_tokens(span, tokenizer), [round(each, 3) for each in span.logprobs]
                logprobs = logprobs if len(logprobs) == len(tokens) else []
                yield {"origin": "sampled", "tokens": tokens, "logprobs": logprobs, "more": is_inside}
                is_inside = span.is_continued
        elif is_inside:
            yield {"origin": "injected", "parts": [(span.text, False) for span in spans], "what": "end", "right": False}
        else:
            for place, span in enumerate(spans):
                yield _injected(span, calls if len(spans) == 1 else calls[place : place + 1], gold)


def _injected(span: Span, calls: Sequence[Call], gold: set[str]) -> dict[str, Any]:
    """Return the data of the results of calls."""
    read = [found for call in calls if (found := _find_read_id(call))]
    what = "several" if len(calls) > 1 else "error" if _ERROR.search(span.text) else "source" if read else "results"
    parts = list(_mark_sources(span.text, gold))
    return {"origin": "injected", "parts": parts, "what": what, "right": any(each in gold for each in read)}


def _common_prefix(texts: Sequence[str]) -> str:
    """Return the common prefix of all texts."""
    first, last = min(texts, default=""), max(texts, default="")
    return first[: next((place for place, (one, other) in enumerate(zip(first, last)) if one != other), len(first))]  # noqa: B905


def _find_read_id(call: Call) -> str | None:
    """Return the id of the source that a call reads: its only argument, besides a page, if that is an id; or None."""
    match [(name, value) for name, value in call.arguments.items() if name != "page"]:
        case [(name, str(read))] if name.endswith("_id"):
            return bare_id(read)
    return None


def _mark_sources(text: str, gold: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a result, with True for those that list a correct source."""
    end = 0
    for hit in HIT.finditer(text):
        if bare_id(hit[3]) in gold:
            if hit.start() > end:
                yield text[end : hit.start()], False
            yield hit[0], True
            end = hit.end()
    if end < len(text):
        yield text[end:], False


def _load_tokenizer(word: str, place: str | None) -> Any:
    """Load a policy's tokenizer; None for a policy without token ids."""
    name = PolicyName.parse(word)
    if name.kind in ("chat", KEYWORDS):
        return None
    return load_tokenizer((place if name.takes_tokenizer else None) or name.base)


def split_tokens(span: Span, tokenizer: Any) -> list[str]:
    """Return the text of each token. If several tokens form a character, the last one has it."""
    if tokenizer is None or not span.ids:
        return [span.text]
    ids = list(span.ids)

    def decode(start: int, end: int) -> str:
        return str(tokenizer.decode(ids[start:end], skip_special_tokens=False))

    found = [decode(at, at + 1) for at in range(len(ids))]
    if "".join(found) == decode(0, len(ids)):
        return found
    # The text of a token depends on the token before it, e.g. whether it begins with a space.
    found, before, done = [], 0, 0
    for end in range(1, len(ids) + 1):
        known, text = decode(before, done), decode(before, end)
        if text.endswith("\N{REPLACEMENT CHARACTER}") and end < len(ids):  # the rest of the character follows
            found.append("")
        else:
            found.append(text[len(known) :])
            before, done = done, end
    return found
