"""One GRPO run in the trainer's process: prepare, train, evaluate, save, and continue from a checkpoint.

The run composes its parts and decides when each acts. Start it as `python -m gumshoe.training.grpo.run SPEC`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerControl

from gumshoe.errors import UnavailableError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import load_rewards
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.engine import EpisodePool
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.terminal import err
from gumshoe.training.algorithms.turn_level import TurnLevel
from gumshoe.training.finite_check import check_is_finite
from gumshoe.training.grpo.adapter_writer import AdapterWriter
from gumshoe.training.grpo.reporter import RunReporter, warn
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, RolloutCollector, Rubric, measure_accuracy
from gumshoe.training.grpo.sampler import create_sampler
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.grpo.simple import build_prompts, first_turn_means, first_turn_reward
from gumshoe.training.grpo.step_rollouts import StepRollouts
from gumshoe.training.grpo.step_summary import episode_records, step_record
from gumshoe.training.grpo.trainer import AgentTrainer, Hooks
from gumshoe.training.grpo.trainer_usage import TrainerUsage
from gumshoe.training.grpo.trl_config import grpo_config
from gumshoe.training.grpo.validation import Validator, is_best_trained
from gumshoe.training.launch.distributed_env import RUN_ENDED
from gumshoe.training.launch.lifecycle import (
    EventsCallback,
    Lifecycle,
    StoppableRunner,
    random_state,
    set_random_state,
)
from gumshoe.training.launch.rendezvous import StopRequestedError, join_run, run_in_main
from gumshoe.training.launch.servers import find_server_logs
from gumshoe.training.launch.trainer_process import run_with_exit_status
from gumshoe.training.models.lora_model import load_base, lora_config
from gumshoe.training.progress_file import ProgressFile
from gumshoe.training.records import end_message
from gumshoe.training.run_directory import how_to_continue
from gumshoe.training.run_spec import (
    CHECKPOINT,
    FINAL,
    METADATA,
    PROGRESS,
    RunSpec,
    base_model,
    find_checkpoints,
    load_splits,
    open_run_env,
    step_of,
)
from gumshoe.training.settings_checks import check_settings
from gumshoe.training.timeline import StepTimes


class Run:
    """Train one adapter, from the settings to the last checkpoint.

    Raises:
        UsageError: the settings do not fit the scenarios, or an input does not exist.
    """

    def __init__(self, spec: RunSpec) -> None:
        settings = spec.settings
        self._spec, self._settings = spec, settings
        train, validation = load_splits(settings, spec.scenarios)
        check_settings(settings, len(train))
        self._steps = settings.optimizer.max_steps
        if self._steps < 0:
            batches = max(1, round(settings.optimizer.num_train_epochs * len(train) / settings.groups))
            self._steps = batches * settings.optimizer.num_iterations
        self._env = open_run_env(settings, spec.index)
        self._env.get_ready()
        self._tokenizer = load_tokenizer(base_model(settings))
        self._chat = ChatFormat(self._tokenizer, settings.chat)
        self._judge = open_judge(settings.evaluation.judge)
        self._algorithm = settings.optimizer.algorithm.load()
        self._progress_file = ProgressFile(spec.directory / PROGRESS, self._steps)
        self._collector = self._make_collector(train)
        self._sampler = create_sampler(spec, self._chat)
        self._runner = StoppableRunner(in_thread=settings.rollouts.lag > 0)
        self._lifecycle = Lifecycle(settings, spec.directory, self._runner.stop)
        self._validator = Validator(
            settings, validation, self._collector, self._judge, spec.directory, self._count_verdict
        )
        self._reporter = RunReporter(spec, self._steps, self._algorithm, self._progress_file)
        self._rollouts = StepRollouts(
            spec,
            self._collector,
            self._sampler,
            self._lifecycle,
            self._runner,
            self._steps,
            lambda: self._reporter.steps,
        )
        self._writer = AdapterWriter(spec, self._env, self._tokenizer, train, validation)
        self._hooks = Hooks(
            self._roll_out,
            self._algorithm,
            self._publish,
            settings.rollouts.most_difference,
            settings.mode == "rollout",
            settings.rollouts.segments,
            settings.rollouts.mask_truncated,
        )
        self._pool: EpisodePool | None = None
        self._verdicts = 0
        self._accuracy: Accuracy | None = None  # of the episodes that are used now
        self._random: Any = None
        self._best: int | None = None  # the step that this process found to be the best
        self._is_tracking = False

    def train(self) -> None:
        """Train, from the last checkpoint if the run is to continue, and save the final adapter.

        Raises:
            UsageError: the model cannot be loaded.
            GumshoeError: the gradient of a step is not finite.
            UnavailableError: the process was asked to stop, a server is lost, or a server samples from another policy.
        """
        spec, lifecycle = self._spec, self._lifecycle
        spec.directory.mkdir(parents=True, exist_ok=True)
        lifecycle.attach(self._make_trainer())
        checkpoint = lifecycle.find_checkpoint() if spec.resume else None
        lifecycle.keep_reference(checkpoint)
        last_step = -1 if checkpoint is None else step_of(checkpoint)
        accelerator = lifecycle.trainer.accelerator
        self._reporter.records = run_in_main(accelerator, lambda: self._reporter.read_records(last_step))
        self._rollouts.resume(self._reporter.steps)
        watched = lifecycle.running(self._progress, self._describe)
        with self._runner, watched, self._reporter.exporting(is_main=lifecycle.is_main):
            try:
                self._train_from(checkpoint)
            except UnavailableError:
                if lifecycle.is_alone:  # several processes may be at different steps
                    self._save_last_step()
                raise
            except StopRequestedError:
                self._save_last_step()
                ended = f"stopped after step {lifecycle.step}{self._describe_loss()}"
                raise UnavailableError("training.stopped", f"{ended}; {how_to_continue()}") from None
            finally:
                self._runner.finish(self._close())
        model = lifecycle.gather_model()
        if lifecycle.is_main:
            self._writer.save(spec.directory / FINAL, model, lifecycle.step, self._reporter.records)
            self._reporter.warn_if_all_skipped()
        accelerator.wait_for_everyone()

    def _train_from(self, checkpoint: Path | None) -> None:
        trainer = self._lifecycle.trainer
        if checkpoint is None:
            if self._settings.evaluation.baseline:
                self._evaluate()
            trainer.train()
            return
        # If the run was killed right after this checkpoint, the evaluation that is due at its step is still missing.
        step = trainer.state.global_step = step_of(checkpoint)
        self._lifecycle.load_weights(checkpoint)
        if not self._ends_after(step) and step < self._steps:
            trainer.train(resume_from_checkpoint=str(checkpoint))

    def _make_trainer(self) -> Any:
        settings = self._settings
        model = load_base(settings)
        shared = {
            "model": model,
            "args": grpo_config(settings, self._spec.directory, self._steps),
            "processing_class": self._tokenizer,
            "peft_config": lora_config(settings.lora, model),
            "callbacks": [EventsCallback(self)],
        }
        if settings.mode == "simple":
            from trl import GRPOTrainer  # after `gumshoe.training.grpo.trainer`, which keeps TRL from importing vLLM

            drawn = [each for step in range(self._steps) for each in self._collector.schedule.draw(step)]
            prompts = build_prompts(drawn, self._env, self._chat, self._tokenizer, settings.rollouts.max_turns)
            tools = self._env.new_environment(drawn[0], settings.rollouts.max_turns).toolbox.schemas()
            return GRPOTrainer(reward_funcs=first_turn_reward(self._chat, tools), train_dataset=prompts, **shared)
        rows = Dataset.from_dict({"prompt": [str(row) for row in range(settings.groups)]})
        return AgentTrainer(self._hooks, train_dataset=rows, **shared)

    def _make_collector(self, train: ScenarioSet) -> RolloutCollector:
        """Return the collector that runs and scores the episodes of steps and evaluations."""
        settings, algorithm = self._settings, self._algorithm
        rewards, rollouts = settings.rewards, settings.rollouts
        functions = load_rewards(rewards.functions)
        weights = [rewards.weights[each.name] for each in functions] if rewards.weights else ()
        by_turn = (self._judge, algorithm) if isinstance(algorithm, TurnLevel) else None
        return RolloutCollector(
            self._env,
            Schedule(train.scenarios, settings.data.seed, settings.groups, settings.data.order == "given"),
            Rubric(functions, rewards.combine, weights, by_turn),
            settings.limits,
            rollouts.num_generations,
            rollouts.draws,
            rollouts.min_group_std,
            rollouts.concurrency,
            self._watch_pool,
            self._progress_file,
        )

    async def _close(self) -> None:
        await self._rollouts.aclose()
        await self._judge.aclose()
        for each in self._collector.rubric.rewards:
            await each.aclose()

    # Called by the trainer.

    def _publish(self) -> None:
        with self._hooks.phases.phase("publishing"):
            self._rollouts.publish()

    def _roll_out(self, step: int) -> RolloutBatch:
        with self._hooks.phases.phase("waiting"):
            found = self._rollouts.roll_out(step)
        self._reporter.start_passes(step + 1)
        return found

    def on_start(self) -> None:
        """Send earlier records to the trackers."""
        self._is_tracking = True
        self._reporter.send_to_trackers(self._lifecycle.trainer)

    def on_step_start(self) -> None:
        """Start the clock of a step, and stop if that was requested (see `on_pass`)."""
        self._hooks.phases.start_step()
        self._check_for_stop()
        if self._lifecycle.is_main:
            self._reporter.start_passes(self._lifecycle.step + 1)

    def on_pass(self) -> None:
        """Count a pass.

        Raises:
            StopRequestedError: any of the processes was asked to stop.
        """
        self._check_for_stop()
        if self._lifecycle.is_main:
            self._reporter.count_pass()

    def _check_for_stop(self) -> None:
        self._lifecycle.passes += 1
        if self._lifecycle.should_stop():
            raise StopRequestedError

    def on_step_end(self, control: TrainerControl, *, is_last: bool) -> None:
        """Save a checkpoint after the last step."""
        control.should_save |= is_last

    def on_metrics(self, logs: dict[str, float], control: TrainerControl) -> None:
        """Record a step, evaluate if it is due, and stop if that ends the run.

        Raises:
            GumshoeError: the step has destroyed the weights.
        """
        check_is_finite(self._lifecycle.step, logs)
        self._random = random_state()  # for a checkpoint of this step
        if self._lifecycle.is_main:
            self._record_step(logs)
        step = self._lifecycle.step
        is_over = self._ends_after(step)
        control.should_training_stop |= is_over
        # Save the best step: a resume from before it would evaluate it again, and might find another best.
        is_best = run_in_main(self._lifecycle.trainer.accelerator, lambda: self._best == step)
        control.should_save |= is_over or is_best

    def on_checkpoint(self) -> None:
        """Complete the checkpoint that the trainer wrote."""
        step, records = self._lifecycle.step, self._reporter.records
        limit = self._settings.output.save_total_limit
        self._lifecycle.finish_checkpoint(lambda place: self._writer.complete_checkpoint(place, step, records), limit)

    # Recording, evaluating and saving.

    def _record_step(self, logs: dict[str, float]) -> None:
        settings, found, latest = self._settings, self._hooks.rollouts, self._hooks.latest
        is_simple = settings.mode == "simple"
        clock, lifecycle = self._hooks.phases, self._lifecycle
        seconds = logs["step_time"] if is_simple else clock.step_seconds
        usage = TrainerUsage.of_step(clock, lifecycle.trainer.accelerator.unwrap_model(lifecycle.trainer.model))
        latest.uses += not is_simple
        if latest.uses == 1:
            self._accuracy = self._sampled_accuracy(found)
        record = step_record(
            lifecycle.step,
            logs,
            found,
            latest,
            beta=settings.optimizer.beta,
            accuracy=self._accuracy,
            seconds=seconds,
            publish_seconds=self._rollouts.publish_seconds,
            policy=self._sampler.version,
            usage=usage,
        )
        if is_simple:
            before = sum(each.tokens for each in self._reporter.steps)
            record = record.model_copy(update=first_turn_means(logs, settings, before))
        is_first_use = latest.uses == 1 and not is_simple
        episodes = episode_records(record.step, found, latest.comparisons, self._env) if is_first_use else ()
        self._reporter.add_episodes(episodes, record.step)
        self._reporter.add(record)
        groups = found.times if is_first_use else ()
        self._reporter.add_times(
            StepTimes(record.step, clock.started, clock.started + seconds, clock.intervals, groups)
        )
        self._track()
        self._reporter.print_step(record, found, seconds)

    def _sampled_accuracy(self, found: RolloutBatch) -> Accuracy | None:
        """Return the accuracy of a step's episodes; None if the judge fails, so that the step is not lost."""
        if not found.scored:
            return None
        try:
            return self._runner.run(measure_accuracy(found.scored, self._judge, self._count_verdict))
        except UnavailableError as error:
            warn(error.message_with_code)
        except StopRequestedError:
            pass
        return None

    def _ends_after(self, step: int) -> bool:
        """Evaluate if it is due, and return True if that ends the run."""
        evaluation = self._settings.evaluation
        if step % evaluation.eval_steps and step != self._steps:
            return False
        self._evaluate()
        return run_in_main(self._lifecycle.trainer.accelerator, self._should_end)

    def _should_end(self) -> bool:
        evaluation = self._settings.evaluation
        message = end_message(self._reporter.evaluations, evaluation.target_accuracy, evaluation.patience)
        if message:
            err.print(message)
        return message is not None

    def _evaluate(self) -> None:
        """Evaluate the current policy, unless that was done already. Call it in all processes at once."""
        accelerator, step = self._lifecycle.trainer.accelerator, self._lifecycle.step
        if run_in_main(accelerator, lambda: any(each.step == step for each in self._reporter.evaluations)):
            return
        self._rollouts.publish()
        model = self._lifecycle.gather_model()
        run_in_main(accelerator, lambda: self._record_evaluation(step, model))

    def _record_evaluation(self, step: int, model: Any) -> None:
        """Evaluate the policy that was published, and save `model` if it is the best so far."""
        before = self._reporter.evaluations
        record = self._validator.record(step, self._runner.run(self._validator.measure(self._sampler)), before)
        if is_best_trained(record, before):
            self._best = step
            self._writer.save_best(model, step, [*self._reporter.records, record])
        self._reporter.add(record)  # after the adapter is saved
        self._track()
        self._reporter.print_evaluation(record)

    def _track(self) -> None:
        if self._is_tracking:
            self._reporter.send_to_trackers(self._lifecycle.trainer)

    def _describe_loss(self) -> str:
        """Return which steps a resumed run repeats, as part of a message; empty if none (see `_save_last_step`)."""
        again = self._settings.optimizer.num_iterations
        if not self._lifecycle.step % again:
            return ""
        kept = max(map(step_of, find_checkpoints(self._spec.directory)), default=0)
        return f", within a batch of episodes for {again} steps, so that the steps after {kept} are lost"

    def _save_last_step(self) -> None:
        """Save a checkpoint of the last complete step, with the random state right after it."""
        trainer, step = self._lifecycle.trainer, self._lifecycle.step
        if step % self._settings.optimizer.num_iterations:
            return  # a run cannot resume in the middle of a batch of episodes; the last checkpoint is before it
        place = self._spec.directory / f"{CHECKPOINT}{step}"
        if run_in_main(trainer.accelerator, lambda: not step or (place / METADATA).exists()):
            return
        if self._random is not None:
            set_random_state(self._random)
        trainer._save_checkpoint(trainer.model, trial=None)
        self.on_checkpoint()

    # Observed by the watchdog.

    def _watch_pool(self, pool: EpisodePool) -> None:
        self._pool = pool

    def _count_verdict(self, amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:  # noqa: ARG002
        self._verdicts += 1

    def _progress(self) -> object:
        """Return a value that changes whenever an episode ends, a verdict arrives, or a record is added."""
        done = self._pool.progress.done if self._pool else 0  # no episode ends if a server hangs
        return self._verdicts, len(self._reporter.records), id(self._pool), done

    def _describe(self) -> str:
        """Describe the state of a run without progress: its step, its episodes, and the ends of logs."""
        progress = self._pool.progress if self._pool else None
        lines = [f"After step {self._lifecycle.step}; episodes: {progress}"]
        for log in find_server_logs(self._spec.directory):
            lines += ["", f"{log}:", *log.read_text(errors="replace").splitlines()[-30:]]
        return "\n".join(lines)


def _run(spec: RunSpec) -> None:
    with join_run(spec.settings.output.stall_seconds, spec.model_dump_json()) as first:
        if first != RUN_ENDED:
            Run(spec.adopt(first)).train()


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Train with the specification in a file."""
    spec = RunSpec.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    run_with_exit_status(lambda: _run(spec), spec.directory)


if __name__ == "__main__":
    main()
