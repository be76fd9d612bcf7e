"""The tiny policy that comes with Gumshoe: size, tool use, accuracy, and equal behavior on both engines."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gumshoe.embeddings.embedder import OFFLINE_MODEL
from gumshoe.inference import policy_names
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.exact_match import is_exact
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import RolloutOptions, RolloutReport, read_trajectories, run_to_file
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.terminal import progress
from gumshoe.tiny.episode_generator import MailboxAsDocuments
from tests.conftest import CommandResult
from tests.doc_pages import DOCS
from tests.errors import raises
from tests.integration.inputs import make_mail
from tests.shared_server import SharedServer

HELD_OUT = 7  # a seed that training does not use
UNUSABLE = {"unparseable call", "no call", "unknown tool", "bad arguments"}


@dataclass(frozen=True)
class Mailboxes:
    """Synthetic mail that the policy has not seen."""

    index: Path
    scenarios: Path

    def share_correct(self, found: list[Trajectory]) -> float:
        """Return the share of correct answers."""
        answers = {scenario.id: scenario.answer for scenario in load_scenarios(str(self.scenarios))}
        return sum(is_exact(each.record.answer, answers[each.scenario]) for each in found) / len(found)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Mailboxes:
    directory = make_mail(tmp_path_factory.mktemp("held-out"), HELD_OUT, 12, 3600)
    return Mailboxes(directory / "index", directory / "scenarios.jsonl")


def roll_out(settings: RolloutOptions, out: Path) -> RolloutReport:
    with progress("Episodes") as advance:
        return asyncio.run(run_to_file(settings, out, advance))


def test_it_is_small_and_has_a_report() -> None:
    from safetensors import safe_open

    assert sum(each.stat().st_size for each in TINY.iterdir()) < 10e6
    made = json.loads((TINY / "made.json").read_text())
    with safe_open(TINY / "model.safetensors", framework="pt") as weights:
        sizes = [weights.get_tensor(name).numel() for name in weights.keys()]  # noqa: SIM118 - not a mapping
    assert sum(sizes) == made["parameters"] < 5e6
    page = (DOCS / "explain" / "tiny-policy.md").read_text()
    assert f"gumshoe tiny build --out DIR --seed {made['seed']}\n" in page


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("temperature", "samples"), [(0.0, 1), (1.0, 3)])
def test_its_accuracy_on_new_mailboxes(
    temperature: float, samples: int, vllm: SharedServer, held_out: Mailboxes, tmp_path: Path
) -> None:
    """About 24 % of its answers are correct, and 2.5 % of its episodes end unusable; with sampling, 22.5 % and 3.7 %.

    The standard deviations are half a point over three samples of each question.
    """
    settings = RolloutOptions(
        index=held_out.index,
        scenarios=str(held_out.scenarios),
        policy=vllm.policy,
        tokenizer=str(TINY),
        limit=400,
        samples=samples,
        sampling=Sampling(temperature, max_tokens=160),
    )
    report = roll_out(settings, tmp_path / "t.jsonl")
    assert (report.done, report.dropped) == (400 * samples, 0)
    found = list(read_trajectories(tmp_path / "t.jsonl"))
    assert 0.2 <= held_out.share_correct(found) <= 0.45
    assert sum(each.ending in UNUSABLE for each in found) / len(found) < 0.05


@pytest.mark.nightly
def test_it_answers_from_documents(vllm: SharedServer, held_out: Mailboxes) -> None:
    """Mailboxes serve as documents. The policy has only the tools of documents."""
    index = MailIndex(held_out.index)
    asked = load_scenarios(str(held_out.scenarios)).scenarios[:400]
    name, limits = PolicyName.parse(vllm.policy), EpisodeLimits()

    async def answer() -> list[Trajectory]:
        async with (
            open_policy(name, TINY, Sampling(0, max_tokens=160), limits) as run,
            ToolThreads() as threads,
        ):

            async def episode(scenario: Scenario) -> Trajectory:
                documents = MailboxAsDocuments.environment(index, scenario)
                return await run(EpisodeStart(documents, scenario.id, limits, threads))

            return await asyncio.gather(*map(episode, asked))

    found = asyncio.run(answer())
    assert sum(each.ending in UNUSABLE for each in found) / len(found) < 0.05
    texts = [[part.text for part in each.spans if part.origin == "sampled"] for each in found]
    for tool, least in (("search_documents", 0.95), ("read_document", 0.4), ("return_final_answer", 0.9)):
        assert sum(f'"name": "{tool}"' in "".join(each) for each in texts) > least * len(found), tool
    answers = [
        each.spans[-1].calls[0].arguments["answer"] if each.ending == "answer" else None
        for each, turns in zip(found, texts, strict=True)
    ]
    right = sum(is_exact(answer, each.answer) for answer, each in zip(answers, asked, strict=True))
    assert 0.1 * len(found) <= right <= 0.6 * len(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "questions"),
    [
        pytest.param("vllm", "synthetic", marks=pytest.mark.ci),
        pytest.param("transformers", "synthetic", marks=pytest.mark.nightly),
        pytest.param("vllm", "real", marks=pytest.mark.nightly),
        pytest.param("transformers", "real", marks=pytest.mark.nightly),
    ],
)
def test_rollouts_run_end_to_end(
    engine: str,
    questions: str,
    request: pytest.FixtureRequest,
    held_out: Mailboxes,
    tmp_path: Path,
) -> None:
    """With vLLM, it answers the real test questions and synthetic ones; without it, some of each."""
    index, scenarios, answered = held_out.index, held_out.scenarios, 0.9
    if questions == "real":
        answered = 0.6 if engine == "vllm" else 0.4  # an unfamiliar kind of mail, and few questions
        index = request.getfixturevalue("real_index")
        scenarios = request.getfixturevalue("shared_data") / "enron" / "questions.jsonl"
    policy, tokenizer, most = f"transformers:{TINY}", "", 16
    if engine == "vllm":
        most = 1000 if questions == "real" else 64
        policy, tokenizer = request.getfixturevalue("vllm").policy, str(TINY)
    out, sampling = tmp_path / "t.jsonl", Sampling(max_tokens=160)
    report = roll_out(
        RolloutOptions(index, str(scenarios), policy, tokenizer or None, "test", most, sampling=sampling), out
    )
    found = list(read_trajectories(out))
    asked = load_scenarios(str(scenarios)).only("test")
    assert questions != "real" or len(asked) == 149
    assert len(found) == report.done == min(most, len(asked))
    assert (report.dropped, report.already_there) == (0, 0)
    assert {each.policy for each in found} == {"tiny"}
    assert Counter(each.ending for each in found) == report.endings
    assert sum(each.ending == "answer" for each in found) > answered * len(found)
    assert sum(bool(each.record.searches) for each in found) > 0.95 * len(found)
    assert sum(bool(each.record.found) for each in found) > 0.2 * len(found)


@pytest.mark.nightly
@pytest.mark.parametrize("questions", ["real", "synthetic"])
def test_rollouts_are_scored_by_every_judge(
    questions: str,
    vllm: SharedServer,
    held_out: Mailboxes,
    request: pytest.FixtureRequest,
    gumshoe: Callable[..., CommandResult],
    tmp_path: Path,
) -> None:
    """The chat model is the tiny policy, behind vLLM: its verdicts have the right form, but make no sense."""
    index, scenarios = held_out.index, held_out.scenarios
    if questions == "real":
        index = request.getfixturevalue("real_index")
        scenarios = request.getfixturevalue("shared_data") / "enron" / "questions.jsonl"
    settings = RolloutOptions(
        index=index,
        scenarios=str(scenarios),
        policy=vllm.policy,
        tokenizer=str(TINY),
        split="test",
        limits=EpisodeLimits(max_turns=5),
        sampling=Sampling(max_tokens=160),
    )
    out, groups = tmp_path / "t.jsonl", tmp_path / "groups.jsonl"
    done = roll_out(replace(settings, limit=100), out).done
    found = list(read_trajectories(out))
    answers = sum(each.record.answer is not None and not each.record.does_not_know for each in found)
    assert answers > 0  # one in eight for real questions, many of which end with "I don't know"
    short = EpisodeLimits(max_turns=3)  # so that two episodes fit into the judge's context
    assert roll_out(replace(settings, limit=8, samples=2, limits=short), groups).done == 16
    right = {}
    for judge in ("heuristic", "exact", f"embedding:{OFFLINE_MODEL}", f"openai:tiny@{vllm.url}/v1"):
        ran = gumshoe("judge", "score", out, "--scenarios", scenarios, "--judge", judge, "--no-cache", "--json")
        assert ran.status == 0, ran.err
        report = json.loads(ran.out)
        assert (report["episodes"], report["failed"]) == (done, 0)
        right[judge] = report["correct"]
    known = {each.id: each.answer.lower() for each in load_scenarios(str(scenarios))}
    yes_or_no = sum(known[each.scenario].startswith(("yes", "no")) for each in found)
    assert right["exact"] <= right["heuristic"] + yes_or_no  # the judge `exact` accepts any text after "yes" or "no"
    assert report["usage"]["requests"] == answers + report["usage"]["unusable"]
    assert report["usage"]["completion_tokens"] > 0
    asked = ["--judge", f"tiny@{vllm.url}/v1", "--no-cache", "--max-characters", 7000, "--json"]
    ran = gumshoe("judge", "ruler", groups, *asked)
    report = json.loads(ran.out)
    assert report["groups"] == 8
    scored = [each["scores"]["scores"] for each in report["results"] if each["scores"]]
    assert len(scored) + report["dropped"] == 8
    assert len(scored) >= 4
    causes = [each["dropped"] for each in report["results"] if each["dropped"]]
    assert all("[judges.group-too-long]" in cause or "[judges.context-full]" in cause for cause in causes)
    assert all(0 <= score <= 1 for scores in scored for score in scores)
    assert ran.status == (75 if report["dropped"] else 0)


@pytest.mark.ci
def test_the_environment_selects_the_engine_of_tiny(
    held_out: Mailboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(policy_names.ENGINE_VARIABLE, "transformers")
    monkeypatch.setattr(policy_names, "VLLMServer", None)
    check_tiny_answers(held_out, tmp_path / "t.jsonl")
    monkeypatch.setenv(policy_names.ENGINE_VARIABLE, "other")
    with raises("inference.invalid-engine", policy_names.ENGINE_VARIABLE, "'other'"):
        check_tiny_answers(held_out, tmp_path / "none.jsonl")


@pytest.mark.nightly
def test_tiny_uses_vllm_if_it_is_installed(
    held_out: Mailboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test needs its own server, which the policy starts."""
    from gumshoe.inference import transformers_policy

    monkeypatch.delenv(policy_names.ENGINE_VARIABLE, raising=False)
    monkeypatch.setattr(transformers_policy, "TransformersPolicy", None)
    check_tiny_answers(held_out, tmp_path / "t.jsonl")


def check_tiny_answers(place: Mailboxes, out: Path) -> None:
    report = roll_out(RolloutOptions(index=place.index, scenarios=str(place.scenarios), policy="tiny", limit=4), out)
    assert report.done == 4
    assert {each.policy for each in read_trajectories(out)} == {"tiny"}
