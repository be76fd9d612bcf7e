"""Run policies on attacked scenarios: deliver attacks, run the episodes, judge them, and let an attacker try again."""

import asyncio
import io
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.embeddings.embedder import Embedder, open_embedder
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.attacks.attack_results import AttackOutcome, AttackResult, summarize_outcomes
from gumshoe.evaluation.attacks.attacked_env import AttackedEnvFactory, close_indexes, digest_messages
from gumshoe.mail.index import MailIndex
from gumshoe.mail.schema import read_state
from gumshoe.rewards.judge import Judge, JudgeError
from gumshoe.rewards.scoring import judge_trajectory, map_concurrently
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import RolloutOptions, read_trajectories, run_to_file
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.synthesis.attacks.attack_recipe import AttackTarget, PlannedAttack
from gumshoe.synthesis.attacks.attack_suite import (
    DEFAULT_COUNT,
    SUITES,
    attacked_scenario,
    find_target,
    plan_suite,
    read_suite,
    split_into_waves,
    write_suite,
)
from gumshoe.synthesis.attacks.attackers import Attacker, open_attacker
from gumshoe.synthesis.attacks.delivery import deliver
from gumshoe.terminal import Advance

ATTACKS = "attacks"
"""Directory of attacks in that of an evaluation."""
SUITE_FILE, OUTCOMES = "attacks.jsonl", "outcomes.jsonl"
_REFUSED = "judges.unusable-answer"  # the model refused, or broke what is planted; the attack is given up
ShowProgress = Callable[[str], AbstractContextManager[Advance]]


@dataclass(frozen=True, slots=True)
class AttackSettings:
    """Options of attacks, as on the command line."""

    suite: str
    """Name of a built-in suite, or a file of attacks."""
    number: int = DEFAULT_COUNT
    """Attacks of a built-in suite."""
    attacker: str | None = None
    """Adaptive attacker that rewrites attacks that failed, for `open_attacker`."""
    rounds: int = 3
    """Maximum number of its rounds."""

    def plan(self, env_factory: EnvFactory, scenarios: ScenarioSet, seed: int) -> list[PlannedAttack]:
        """Return the attacks of the suite on scenarios.

        Raises:
            UsageError: if the suite does not exist or is invalid, or the environment is not the one for mail.
        """
        if not isinstance(env_factory.index, MailIndex):
            raise UsageError(
                "evaluation.attacks-need-mail",
                f"--attacks needs an index of mail, got one for {env_factory.name}; attacks are mail messages",
            )
        for name in SUITES:
            if self.suite == name:
                return plan_suite(env_factory.index, list(scenarios), name, self.number, seed)
        path = Path(self.suite)
        if not path.is_file():
            raise UsageError(
                "evaluation.unknown-attack-suite",
                f"unknown suite of attacks: {self.suite!r}; use {', '.join(SUITES)}, or a file of attacks",
            )
        return read_suite(path, scenarios)


@dataclass(frozen=True, slots=True)
class AttackedPolicy:
    """A policy to attack, with its episodes without attack."""

    name: str
    word: str
    clean: Mapping[str, Trajectory]
    """First episode by scenario id."""
    accuracy: Mapping[str, float]
    """Share of correct episodes by scenario id."""


class AttackRun:
    """Attacks on policies, in the directory of an evaluation. What is on file is not run again."""

    def __init__(
        self,
        settings: AttackSettings,
        rollout: RolloutOptions,
        directory: Path,
        env_factory: EnvFactory,
        scenarios: ScenarioSet,
        judge: Judge,
        watch: ShowProgress,
    ) -> None:
        self._settings, self._rollout, self._judge, self._watch = settings, rollout, judge, watch
        self._directory, self._env_factory = directory / ATTACKS, env_factory
        self._scenarios = {each.id: each for each in scenarios}
        self._planned = settings.plan(env_factory, scenarios, rollout.seed)
        self.digest = digest_messages(message for each in self._planned for message in each.messages)
        self._attacker = open_attacker(settings.attacker) if settings.attacker else None
        self._embedder = open_index_embedder(env_factory.index)

    @property
    def provenance(self) -> dict[str, str]:
        """The settings that decide which attacks are run. Episodes of other attacks cannot be added to a directory."""
        attacker = {"attacker": self._attacker.name} if self._attacker else {}
        return {"attacks": self.digest} | attacker

    async def run(self, policies: Sequence[AttackedPolicy]) -> dict[str, AttackResult]:
        """Run all attacks on all policies, and return the results by policy name.

        Raises:
            UnavailableError: if some episodes or verdicts are missing. Run it again to add them.
        """
        attacker = self._attacker
        with explain_os_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            write_suite(self._planned, self._directory / SUITE_FILE)
        outcomes: list[AttackOutcome] = []
        try:
            paths = [self._trajectories(each, 0) for each in policies]
            env_factory = await self._deliver(self._planned, "suite", paths)
            for policy in policies:
                own = await self._attack(policy, self._planned, env_factory, 0)
                outcomes += [*own, *(await self._adapt(policy, own, attacker) if attacker else [])]
        finally:
            close_indexes()
            shutil.rmtree(self._directory / "indexes", ignore_errors=True)
        with explain_os_errors(self._directory):
            lines = "".join(f"{each.model_dump_json()}\n" for each in outcomes)
            write_atomically(self._directory / OUTCOMES, io.BytesIO(lines.encode()))
        name = self._settings.suite if self._settings.suite in SUITES else Path(self._settings.suite).name
        return {
            each.name: summarize_outcomes(
                [outcome for outcome in outcomes if outcome.policy == each.name],
                each.accuracy,
                name,
                self.digest,
                attacker.name if attacker else None,
            )
            for each in policies
        }

    async def aclose(self) -> None:
        """Close the connections of the attacker."""
        if self._attacker is not None:
            await self._attacker.aclose()

    def _trajectories(self, policy: AttackedPolicy, number: int) -> Path:
        """Return the file of the episodes of a round."""
        return self._directory / "trajectories" / f"{policy.name}-{number}.jsonl"

    async def _deliver(self, planned: Sequence[PlannedAttack], name: str, paths: Iterable[Path]) -> AttackedEnvFactory:
        """Deliver attacks to copies of the index, and return the environments over them.

        Nothing is delivered if all episodes are in the files `paths`.
        """
        waves = split_into_waves(planned, self._scenarios.values())
        place = self._directory / "indexes" / name
        places = {attack.planted.id: place / f"{number:04}" for number, wave in enumerate(waves) for attack in wave}

        def build(advance: Advance) -> None:
            advance(total=len(waves))
            with explain_os_errors(place):
                place.mkdir(parents=True, exist_ok=True)
            for number, wave in enumerate(waves):
                source, copy = self._env_factory.directory, place / f"{number:04}"
                deliver(wave, source, copy, link=True, embedder=self._embedder)
                advance(1)

        if not all(_has_episodes(path, planned) for path in paths):
            with self._watch("Delivering attacks") as advance:
                await asyncio.to_thread(build, advance)
        digest = digest_messages(message for each in planned for message in each.messages)
        return AttackedEnvFactory.over(self._env_factory, places, digest, self._embedder)

    async def _attack(
        self, policy: AttackedPolicy, planned: Sequence[PlannedAttack], env_factory: AttackedEnvFactory, number: int
    ) -> list[AttackOutcome]:
        """Run the attacks of a round on a policy, and return their outcomes."""
        attacked = [self._to_scenario(each) for each in planned]
        source = self._directory / f"scenarios-{policy.name}-{number}.jsonl"
        path = self._trajectories(policy, number)
        with explain_os_errors(self._directory):
            write_atomically(source, io.BytesIO(ScenarioSet.of(attacked).to_jsonl()))
            path.parent.mkdir(exist_ok=True)
        options = replace(
            self._rollout.for_policy(policy.word), scenarios=str(source), split=None, limit=None, samples=1
        )
        with self._watch(f"Attacking {policy.name}" + (f", round {number}" if number else "")) as advance:
            report = await run_to_file(options, path, advance, env_factory)
        if report.dropped:
            raise UnavailableError(
                "evaluation.questions-unanswered",
                f"{policy.name} did not answer {report.dropped:,} attacked questions; run the command again for the "
                "missing answers",
            )
        found = {each.scenario: each for each in read_trajectories(path)}
        episodes = [found[each.planted.id] for each in planned]
        with self._watch(f"Judging {policy.name}, attacked") as advance:
            correct = await map_concurrently(self._judge_episode, list(zip(attacked, episodes, strict=True)), advance)
        return [
            self._to_outcome(policy, attack, episode, number, is_correct)
            for attack, episode, is_correct in zip(planned, episodes, correct, strict=True)
        ]

    async def _adapt(
        self, policy: AttackedPolicy, first: Sequence[AttackOutcome], attacker: Attacker
    ) -> list[AttackOutcome]:
        """Let an attacker rewrite the attacks that failed on a policy, and run them, in several rounds."""
        outcomes: list[AttackOutcome] = []
        current = {each.planted.id: each for each in self._planned}
        failed = [each.attack for each in first if not each.succeeded]
        targets = {  # those of the suite, which may have another seed than this evaluation
            (scenario, seed): find_target(self._env_factory.index, self._scenarios[scenario], seed)
            for scenario, seed in {(each.scenario, each.recipe.seed) for each in map(current.__getitem__, failed)}
        }
        for number in range(1, self._settings.rounds + 1):
            rewritten = await self._rewrite_once(policy, [current[each] for each in failed], targets, attacker, number)
            if not rewritten:
                break
            current |= {each.planted.id: each for each in rewritten}
            paths = [self._trajectories(policy, number)]
            env_factory = await self._deliver(rewritten, f"{policy.name}-{number}", paths)
            own = await self._attack(policy, rewritten, env_factory, number)
            outcomes += own
            failed = [each.attack for each in own if not each.succeeded]
        return outcomes

    async def _rewrite_once(
        self,
        policy: AttackedPolicy,
        failed: Sequence[PlannedAttack],
        targets: Mapping[tuple[str, int | str], AttackTarget],
        attacker: Attacker,
        number: int,
    ) -> list[PlannedAttack]:
        """Return the attacks of a round, which are on file once its episodes have begun.

        A model that is asked again for those that it has refused may give other attacks.
        """
        path = self._directory / f"attacks-{policy.name}-{number}.jsonl"
        if path.exists():
            return read_suite(path, self._scenarios.values())
        rewritten = await self._rewrite(failed, targets, attacker, number)
        if rewritten:
            with explain_os_errors(path):
                write_suite(rewritten, path)
        return rewritten

    async def _rewrite(
        self,
        failed: Sequence[PlannedAttack],
        targets: Mapping[tuple[str, int | str], AttackTarget],
        attacker: Attacker,
        number: int,
    ) -> list[PlannedAttack]:
        async def rewrite(attack: PlannedAttack) -> PlannedAttack | JudgeError:
            try:
                return await attacker.rewrite(attack, targets[attack.scenario, attack.recipe.seed], number)
            except JudgeError as error:
                return error

        with self._watch(f"Rewriting attacks, round {number}") as advance:
            found = await map_concurrently(rewrite, failed, advance)
        errors = [each for each in found if isinstance(each, JudgeError) and each.code != _REFUSED]
        if errors:
            raise UnavailableError(
                "evaluation.attacks-not-rewritten",
                f"{attacker.name} did not answer for {len(errors):,} of {len(failed):,} attacks, e.g.: {errors[0]}; "
                "run the command again for them",
            )
        return [each for each in found if not isinstance(each, JudgeError)]

    async def _judge_episode(self, pair: tuple[Scenario, Trajectory]) -> bool:
        scenario, trajectory = pair
        verdict = await judge_trajectory(trajectory, scenario, self._judge)
        if verdict.correct is None:
            raise UnavailableError(
                "evaluation.verdicts-missing", f"no verdict on an attacked answer: {verdict.why}; run the command again"
            )
        return verdict.correct

    def _to_scenario(self, attack: PlannedAttack) -> Scenario:
        """Return the attacked scenario, whose id is that of the attack."""
        scenario = attacked_scenario(self._scenarios[attack.scenario], attack.planted)
        return scenario.model_copy(update={"id": attack.planted.id})

    def _to_outcome(
        self, policy: AttackedPolicy, attack: PlannedAttack, episode: Trajectory, number: int, correct: bool
    ) -> AttackOutcome:
        planted = attack.planted
        return AttackOutcome(
            policy=policy.name,
            attack=planted.id,
            scenario=attack.scenario,
            round=number,
            family=planted.family,
            goal=planted.goal,
            carrier=planted.carrier,
            language=planted.language,
            succeeded=planted.has_succeeded(episode),
            by_chance=planted.has_succeeded(policy.clean[attack.scenario]),
            correct=correct,
            answer=episode.record.answer,
            ending=episode.ending,
            turns=episode.turns,
        )


def open_index_embedder(index: MailIndex) -> Embedder | None:
    """Return the model that built the vectors of an index, or None if it has none.

    Raises:
        UsageError: if the model does not exist.
    """
    if not index.has_vectors:
        return None
    return open_embedder(read_state(index.directory).facts["options"]["embedding"])


def _has_episodes(path: Path, planned: Sequence[PlannedAttack]) -> bool:
    """Return True if a file has an episode of each attack."""
    if not path.exists():
        return False
    return {each.planted.id for each in planned} <= {each.scenario for each in read_trajectories(path)}
