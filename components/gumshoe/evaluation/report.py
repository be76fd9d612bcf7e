"""Write `report.html`: an evaluation in one file that opens in any browser without network access.

Text of models and messages is data: it is embedded as JSON that cannot be parsed as HTML, shown as text, and the page's
Content-Security-Policy allows no other script than its own.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.base import DocumentSource
from gumshoe.environments.email import bare_id
from gumshoe.environments.registry import EnvFactory
from gumshoe.evaluation.evaluate import EvaluationRequest, EvaluationRun
from gumshoe.evaluation.metrics import describe_metric, format_value
from gumshoe.evaluation.predictions import Prediction
from gumshoe.evaluation.results import Comparison, EvaluationResult
from gumshoe.inference.policy_names import PolicyName, load_tokenizer
from gumshoe.rollouts.chat_format import NoCallError, UnusableCallError, parse_call
from gumshoe.rollouts.trajectory import Segment, Trajectory
from gumshoe.scenarios.scenario import Scenario, ScenarioSet

_ERROR = re.compile(r"(?:\A|<tool_response>\n)Error: ")
_HIT = re.compile(r"[^\n]*\n  [^\n]*\n  id: (\S+)")
_INERT = str.maketrans({each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"})
_STEPS = ("found", "read", "source_accuracy", "accuracy")
_ENDINGS = ("unusable", "out_of_turns", "context_full", "does_not_know")


def write_report(evaluated: EvaluationRun, settings: EvaluationRequest, path: Path) -> None:
    """Write the report, atomically.

    Raises:
        StorageError: if it cannot be written.
    """
    with explain_os_errors(path):
        write_atomically(path, io.BytesIO("".join(_page(evaluated, settings)).encode()))


def _page(evaluated: EvaluationRun, settings: EvaluationRequest) -> Iterator[str]:
    """Yield the page in parts, because it may be large."""
    folder = files("gumshoe.evaluation").joinpath("page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    template = environment.from_string(folder.joinpath("report.html.jinja").read_text(encoding="utf-8"))
    result = evaluated.result
    page = template.generate(
        result=result,
        version=version("gumshoe-agents"),
        rows=list(dict.fromkeys(name for each in result.policies for name in each.metrics)),
        describe_metric=describe_metric,
        format_value=format_value,
        headline=headline(result),
        verdict=verdict,
        steps=_STEPS,
        endings=_ENDINGS,
        kinds=list(dict.fromkeys(kind for each in result.policies for kind in each.kinds)),
        policy=_content_security_policy(style, script),
        style=Markup(style),  # noqa: S704 - our own
        script=Markup(script),  # noqa: S704 - our own
        data=_data_blocks(evaluated, settings),
    )
    yield from page


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


def _content_security_policy(style: str, script: str) -> str:
    """Return the page's Content-Security-Policy: only its own style and script, by their digests."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; base-uri 'none'"


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
        name: _common_prefix([each.segments[0].text for each in found if each.segments])
        for name, found in evaluated.trajectories.items()
    }
    yield "prompts", _json(prompts)
    yield (
        "episodes",
        _json(
            [
                _row(each, scenarios[each.scenario], gold[each.scenario], changed.get((each.policy, each.scenario)))
                | {"titles": _find_titles(env_factory, scenarios[each.scenario], each)}
                for each in evaluated.predictions
            ]
        ),
    )
    tokenizers = {each.name: _load_tokenizer(each.word, settings.rollout.tokenizer) for each in settings.policies}
    for number, (name, trajectory) in enumerate(flat):
        shown = list(_segments(trajectory, gold[trajectory.scenario], len(prompts[name]), tokenizers[name]))
        yield f"e{number}", _json(shown)


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


def _find_titles(env_factory: EnvFactory, scenario: Scenario, prediction: Prediction) -> dict[str, str]:
    """Return the titles, by id, of the documents that are correct or were given as sources."""
    found = (env_factory.find_source(scenario, each) for each in (*scenario.sources, *prediction.sources))
    return {each.id: each.title for each in found if isinstance(each, DocumentSource)}


def _segments(trajectory: Trajectory, gold: set[str], known: int, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the turns: sampled tokens with their probabilities, and injected results with correct sources marked.

    The first `known` characters of the prompt are left out, because all episodes have them.
    """
    opened: str | None = None
    for place, segment in enumerate(trajectory.segments):
        if segment.origin == "sampled":
            opened = _find_read_id(segment.text)
            tokens, logprobs = _tokens(segment, tokenizer), [round(each, 3) for each in segment.logprobs]
            yield {"origin": "sampled", "tokens": tokens, "logprobs": logprobs if len(logprobs) == len(tokens) else []}
        elif place == 0:
            yield {"origin": "prompt", "text": segment.text[known:]}
        else:
            yield {
                "origin": "injected",
                "parts": list(_mark_sources(segment.text, gold)),
                "what": "error" if _ERROR.search(segment.text) else "source" if opened else "results",
                "right": opened in gold,
            }


def _common_prefix(texts: Sequence[str]) -> str:
    """Return the common prefix of all texts."""
    first, last = min(texts, default=""), max(texts, default="")
    return first[: next((place for place, (one, other) in enumerate(zip(first, last)) if one != other), len(first))]  # noqa: B905


def _find_read_id(text: str) -> str | None:
    """Return the id of the message or document that a turn reads, or None."""
    try:
        call = parse_call(text)
    except (NoCallError, UnusableCallError):
        return None
    read = call.arguments.get("message_id", call.arguments.get("document_id"))
    return bare_id(read) if isinstance(read, str) else None


def _mark_sources(text: str, gold: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a result, with True for those that list a correct source."""
    end = 0
    for hit in _HIT.finditer(text):
        if bare_id(hit[1]) in gold:
            if hit.start() > end:
                yield text[end : hit.start()], False
            yield hit[0], True
            end = hit.end()
    if end < len(text):
        yield text[end:], False


def _load_tokenizer(word: str, place: str | None) -> Any:
    """Load a policy's tokenizer; None for a chat model, which has no token ids."""
    name = PolicyName.parse(word)
    if name.kind == "chat":
        return None
    return load_tokenizer((place if name.takes_tokenizer else None) or name.base)


def _tokens(segment: Segment, tokenizer: Any) -> list[str]:
    """Return the text of each token. If several tokens form a character, the last one has it."""
    if tokenizer is None or not segment.ids:
        return [segment.text]
    ids = list(segment.ids)
    found = [str(tokenizer.decode([each], skip_special_tokens=False)) for each in ids]
    if "".join(found) == str(tokenizer.decode(ids, skip_special_tokens=False)):
        return found
    ends = [str(tokenizer.decode(ids[:end], skip_special_tokens=False)) for end in range(len(ids) + 1)]
    whole = [*(text.rstrip("\N{REPLACEMENT CHARACTER}") for text in ends[:-1]), ends[-1]]
    return [after[len(before) :] for before, after in pairwise(whole)]


def _json(value: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return JSON that cannot close the script element or be parsed as markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_INERT)
    return Markup(text)  # noqa: S704 - nothing in it is markup
