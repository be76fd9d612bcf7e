"""Choose one of the samples of each question as its answer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import explain_os_errors, open_locked_file
from gumshoe.errors import UnavailableError
from gumshoe.evaluation.predictions import ChosenAnswer, Prediction
from gumshoe.json_text import load_json
from gumshoe.rewards.best_of_n import Choice, ChoiceSettings, Selector, total_cost
from gumshoe.rewards.scoring import map_concurrently
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.terminal import Advance


async def choose_samples(
    policy: str,
    trajectories: Sequence[Trajectory],
    scenarios: ScenarioSet,
    settings: ChoiceSettings,
    selector: Selector,
    path: Path,
    advance: Advance,
) -> dict[str, Choice]:
    """Choose one of the samples of each question. Return the choices by scenario id.

    Choices of a model are stored in `path` with their cost and reused. The key is a hash of everything they depend on.

    Raises:
        UnavailableError: if some questions have no choice.
    """
    groups: dict[str, list[Trajectory]] = {}
    for each in trajectories:
        groups.setdefault(each.scenario, []).append(each)
    by_id = {scenario.id: scenario for scenario in scenarios}
    method = settings.model_dump_json(include={"choose", "choose_by"})
    with ExitStack() as held:
        with explain_os_errors(path):
            path.parent.mkdir(exist_ok=True)
            file = held.enter_context(open_locked_file(path))
            file.seek(0)
            content = file.read()
            stored = _read_choices(content)
            if not content.endswith(b"\n"):
                file.write(b"\n")  # end an incomplete line

        async def chosen(group: list[Trajectory]) -> tuple[str, Choice]:
            scenario = by_id[group[0].scenario]
            texts = [method, scenario.question, str(scenario.query_date), *(each.to_json() for each in group)]
            key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
            if key not in stored:
                stored[key] = await selector.choose(scenario.question, scenario.query_date, group)
                if stored[key].requests and not stored[key].failed:
                    with explain_os_errors(path):
                        file.write(json.dumps({"key": key, **asdict(stored[key])}).encode() + b"\n")
                        file.flush()
            return scenario.id, stored[key]

        found = await map_concurrently(chosen, list(groups.values()), advance)
    failed = [choice.failed for _, choice in found if choice.failed]
    if failed:
        raise UnavailableError(
            "evaluation.choices-missing",
            f"{settings.judge_name} chose no sample of {policy} for {len(failed):,} questions, e.g.: {failed[0]}; run "
            "the command again for them",
        )
    return dict(found)


def _read_choices(content: bytes) -> dict[str, Choice]:
    """Read the choices of a file, by key. Incomplete lines are ignored."""
    found = {}
    for line in content.splitlines():
        try:
            fields: dict[str, Any] = load_json(line)
            key = fields.pop("key")
            found[key] = Choice(**fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def keep_chosen(
    judged: Sequence[Prediction], trajectories: Sequence[Trajectory], choices: Mapping[str, Choice]
) -> tuple[list[Prediction], list[Trajectory]]:
    """Return the chosen prediction and trajectory of each question, with the verdicts and cost of all samples."""
    groups: dict[str, list[tuple[Prediction, Trajectory]]] = {}
    for each in zip(judged, trajectories, strict=True):
        groups.setdefault(each[0].scenario, []).append(each)
    predictions, episodes = [], []
    for scenario, group in groups.items():
        choice = choices[scenario]
        prediction, trajectory = group[choice.place]
        chosen = ChosenAnswer(
            why=choice.why,
            correct=tuple(each.correct for each, _ in group),
            run_again=sum(each.tries - 1 for each, _ in group),
            cost=total_cost([each for _, each in group], choice),
        )
        predictions.append(prediction.model_copy(update={"chosen": chosen}))
        episodes.append(trajectory)
    return predictions, episodes
