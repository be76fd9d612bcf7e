"""Make demonstrations from scenarios and their sources, without a model."""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.storage import check_output_file, explain_os_errors, write_atomically
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import ToolError
from gumshoe.errors import UsageError
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import progress
from gumshoe.training.run_spec import WARM_START_STATE, load_training_scenarios, open_run_env
from gumshoe.training.settings import TrainSettings
from gumshoe.training.sft.gold_expert import GoldEpisode, GoldExpert, NoEpisodeError

if TYPE_CHECKING:
    from gumshoe.training.launch.checkpoint_sync import CheckpointStore
    from gumshoe.training.sft.warm_start import WarmStartReport

_GOLD = "gold.jsonl"  # the episodes of an unfinished warm start


class GoldReport(BaseModel):
    """Numbers of demonstrations that were made from scenarios."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenarios: int
    """Number of scenarios of the split `train`."""
    episodes: int
    answered: int
    """Number of scenarios with an episode."""
    from_question: int
    """Number of scenarios whose episodes find the source with words of the question only."""
    searches: float
    """Mean number of searches per episode."""
    difficulties: dict[str, int]
    """Number of episodes by difficulty."""
    without: dict[str, int]
    """Number of scenarios without an episode, by reason."""


def make_gold_episodes(
    env: EnvFactory, scenarios: Iterable[Scenario], settings: TrainSettings
) -> tuple[list[Trajectory], GoldReport]:
    """Play episodes of scenarios whose sources are known, and return them with their numbers.

    They depend only on the scenarios, the index, the environment and the settings.

    Raises:
        UsageError: the environment has other tools than those for mail or documents.
        ScenarioError: the environment does not support a scenario.
    """
    wanted, turns, seed = settings.warm_start.gold, settings.rollouts.max_turns, settings.data.seed
    found, without = list[list[GoldEpisode]](), Counter[str]()
    asked = list(scenarios)
    env.get_ready()
    with progress("Playing", total=len(asked)) as advance:
        for scenario in asked:
            try:
                found.append(GoldExpert(env, scenario, wanted, turns, seed).play())
            except NoEpisodeError as error:
                without[str(error)] += 1
            except ToolError:
                without["a hit cannot be read"] += 1
            advance(1)
    episodes, recorded = [each for group in found for each in group], env.provenance
    for each in episodes:
        each.trajectory.settings |= recorded
    report = GoldReport(
        scenarios=len(asked),
        episodes=len(episodes),
        answered=len(found),
        from_question=sum(all(each.is_from_question for each in group) for group in found),
        searches=round(sum(each.trajectory.record.searches for each in episodes) / max(1, len(episodes)), 2),
        difficulties=dict(Counter(each.difficulty for each in episodes).most_common()),
        without=dict(without.most_common()),
    )
    return [each.trajectory for each in episodes], report


def write_gold_episodes(settings: TrainSettings, index: Path, scenarios: str, path: Path) -> GoldReport:
    """Write episodes of the scenarios of the split `train` to a file of trajectories, and return their numbers.

    Raises:
        UsageError: no scenario has an episode, or as `make_gold_episodes`.
        NotFoundError, StorageError: the file cannot be written. This is checked first.
    """
    check_output_file(path)
    learned = load_training_scenarios(settings, scenarios)
    episodes, report = make_gold_episodes(open_run_env(settings, index), learned, settings)
    if not episodes:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.without.items())
        raise UsageError(
            "training.no-gold-episodes",
            f"none of the {len(learned):,} scenarios of the split train has an episode: {reasons}",
        )
    lines = "".join(f"{each.to_json()}\n" for each in episodes)
    with explain_os_errors(path):
        write_atomically(path, io.BytesIO(lines.encode()))
    return report


def start_warm_from_gold(
    settings: TrainSettings,
    index: Path,
    scenarios: str,
    directory: Path,
    on_written: Callable[[GoldReport], object] | None = None,
    *,
    resume: bool = False,
    store: "CheckpointStore | None" = None,
) -> "WarmStartReport":
    """Train an adapter on episodes made from the scenarios of the split `train`. No judge is asked: they are correct.

    `on_written` is called with the numbers of the episodes before the training starts. `store` keeps unfinished work,
    as in `start_warm`.

    Raises:
        UsageError, UnavailableError, GumshoeError: as `write_gold_episodes` and `start_warm`.
    """
    # It needs packages that writing episodes does not need.
    from gumshoe.training.sft.warm_start import check_before_episodes, start_warm

    done = check_before_episodes(settings, index, scenarios, directory, resume=resume)
    if done is not None:
        return done
    place = directory / WARM_START_STATE  # they quote mail, and are deleted with it
    file = place / _GOLD
    with explain_os_errors(place):
        place.mkdir(exist_ok=True)
    try:
        report = write_gold_episodes(settings, index, scenarios, file)
        if on_written is not None:
            on_written(report)
        return start_warm(settings, index, scenarios, file, directory, resume=resume, are_correct=True, store=store)
    except UsageError:  # other arguments may be tried in the same directory
        file.unlink(missing_ok=True)
        with suppress(OSError):  # it has checkpoints, or is gone
            place.rmdir()
        raise
