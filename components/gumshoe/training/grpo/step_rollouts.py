"""The rollouts of a run's steps: publish each policy, and run the episodes in turn with training or ahead of it."""

from collections.abc import Callable, Collection, Iterable, Sequence

from gumshoe.training.grpo.published_policies import PublishedPolicies
from gumshoe.training.grpo.rollout_collector import RolloutBatch, RolloutCollector
from gumshoe.training.grpo.rollout_queue import Lead, RolloutQueue
from gumshoe.training.grpo.sampler import PolicyPublisher, Sampler
from gumshoe.training.grpo.schedule import find_resting
from gumshoe.training.launch.lifecycle import Lifecycle, StoppableRunner
from gumshoe.training.records import StepRecord
from gumshoe.training.run_spec import RunSpec


class StepRollouts:
    """Publish policies, and run the episodes of steps with them.

    `steps` is the number of optimizer steps of the run, and `list_records` returns the records of its steps so far.

    Attributes:
        publish_seconds: duration of the last publication.
    """

    def __init__(
        self,
        spec: RunSpec,
        collector: RolloutCollector,
        sampler: Sampler,
        lifecycle: Lifecycle,
        runner: StoppableRunner,
        steps: int,
        list_records: Callable[[], Sequence[StepRecord]],
    ) -> None:
        self._settings, self._sampler, self._lifecycle, self._runner = spec.settings, sampler, lifecycle, runner
        self._list_records = list_records
        rollouts = spec.settings.rollouts
        policies = PublishedPolicies(sampler, spec.settings.sampling, by_turn=rollouts.adapter_switch == "turn")
        lead, last = Lead(rollouts.lag, spec.settings.staleness), self._batch_of(steps) - 1
        self._queue = RolloutQueue(collector, policies, lead, last, self._find_resting)
        self._publisher = PolicyPublisher(spec, sampler, lifecycle, self._adopt)

    @property
    def publish_seconds(self) -> float:
        return self._publisher.seconds

    def resume(self, records: Iterable[StepRecord]) -> None:
        """Continue after the groups of these steps."""
        self._queue.resume({name: useful for each in records for name, useful in each.ended.items()})

    def publish(self) -> None:
        """Publish the current weights as the policy of further episodes. Call it in all processes at once.

        Raises:
            AdapterError, ServerError, StorageError, UnavailableError: as `Sampler.publish`.
            StopRequestedError: the process was asked to stop while it published.
        """
        self._publisher.publish()

    def roll_out(self, step: int) -> RolloutBatch:
        """Return the episodes of an optimizer step, numbered from 0, as soon as there are enough.

        Raises:
            UnavailableError: no group could be run and scored.
            StopRequestedError: the process was asked to stop.
        """
        return self._runner.run(self._take(self._batch_of(step)))

    async def aclose(self) -> None:
        """Cancel the episodes that run."""
        await self._queue.aclose()

    def _batch_of(self, step: int) -> int:
        """Return the number of batches of episodes before a step."""
        return step // self._settings.optimizer.num_iterations

    async def _take(self, number: int) -> RolloutBatch:
        await self._queue.adopt(number)
        try:
            return await self._queue.take(number, self._sampler.servers)
        finally:
            if not self._settings.rollouts.lag:  # the policy changes before any other episode
                await self._queue.aclose()

    def _adopt(self) -> Collection[str]:
        """Let episodes that run beside training use the new policy, and return the names of all that they use."""
        if not self._settings.rollouts.lag:
            return ()
        return self._runner.run(self._queue.adopt(self._batch_of(self._lifecycle.step)))

    def _find_resting(self, number: int) -> Collection[str]:
        """Return the scenarios that a batch uses last, as far as they are known when it may begin."""
        last = (number - self._settings.rollouts.lag) * self._settings.optimizer.num_iterations
        return find_resting(self._list_records(), last, self._settings.data.rest_steps)
