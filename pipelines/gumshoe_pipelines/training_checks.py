"""Check a training against the nodes, GPUs and servers that a pipeline gives it, before anything expensive."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.errors import UsageError
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.machine_checks import allocate_checked, check_engine, prepare_machine
from gumshoe.training.models.base_model import check_same_base, check_servable
from gumshoe.training.planning.gpu_allocation import allocate_gpus
from gumshoe.training.run_check import resolve_entries
from gumshoe.training.run_directory import TRAININGS_VARIABLE
from gumshoe.training.run_spec import check_start, check_start_chat, load_splits
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_checks import check_devices, check_pipeline_warm_start, check_plugins, check_settings
from gumshoe.training.sft.batch_plan import BatchPlan
from gumshoe_pipelines.trainjob_step import TrainJobOptions, build_settings, check_server_gpus, check_servers


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The inputs of a training that the parameters of a pipeline give."""

    options: TrainJobOptions
    is_local: bool
    """True if the run is on this machine, whose GPUs it uses."""
    agent: str = ""
    demonstrations: str = ""

    @property
    def _has_trainjob(self) -> bool:
        return self.options.nodes > 1

    def list_added(self, given: TrainSettings) -> dict[str, Any]:
        """Return the settings that the training step adds to those of the run, by dotted name.

        Raises:
            UsageError: if several nodes have no rollout servers but need some, or would not use them.
        """
        added: dict[str, Any] = {"agent": self.agent} if self.agent and given.mode != "simple" else {}
        if self._has_trainjob:
            check_servers(given, self.options.job)
            added |= build_settings(self.options, "run", "s3://store/runs/run")  # any names will do for the checks
        return added

    def check_warm_start(self, given: TrainSettings, *, is_here: bool) -> None:
        """Check the warm start, if there is one. It has the settings of the run alone, and the GPUs of one node.

        Raises:
            UsageError: if it could not start.
        """
        if not self.demonstrations:
            return
        try:
            check_pipeline_warm_start(given, is_here=is_here)
            if not self.is_local:
                check_devices(given, self.options.gpus, servers=0)
                allocate_gpus([str(each) for each in range(self.options.gpus)], given.optimizer.processes, 0)
            BatchPlan.of(given, given.warm_start.batch_size)
        except UsageError as error:
            raise UsageError(error.code, f"the warm start, which runs on one node: {error}") from None

    def check(self, known: TrainSettings, scenarios: int | None, *, is_here: bool) -> None:
        """Check all settings of a training: those of the run, and those of `list_added`.

        `scenarios` is the number of training scenarios, or None if it is not known yet. `is_here` says that the
        training has the packages of this process.

        Raises:
            UsageError: if the training could not start.
        """
        check_settings(known, scenarios, is_here=is_here)
        gpus, job = self.options.gpus, self.options.job
        if self._has_trainjob:
            check_devices(known, gpus, job.rollout_servers if job.count_server_gpus(gpus) else 0)
            return
        if is_here:
            check_engine(known)
        if not self.is_local:
            allocate_checked(known, known.optimizer.processes, [str(each) for each in range(gpus)])

    def check_on_this_machine(self, known: TrainSettings) -> None:
        """Check all settings of a training that will run on this machine.

        Raises:
            UsageError: if the training could not start, or needs more GPUs or memory than the machine has.
        """
        self.check(known, None, is_here=True)
        prepare_machine(known, DistributedEnv())


def check_with_inputs(
    scenarios: Path,
    base_model: str,
    config: str,
    entries: Sequence[Mapping[str, Any]],
    nodes: int,
    gpus: int,
    job: Mapping[str, Any],
    agent: str = "",
    demonstrations: str = "",
) -> None:
    """Check the trainings of a run in a step, which can read its base model and its directory of scenarios.

    `entries` are the training settings of each training, by dotted name. All else is as the parameters of a pipeline.

    Raises:
        UsageError: if a training could not start.
    """
    options = TrainJobOptions.of(nodes, gpus, job, "", {}, [])
    plan = TrainingPlan(options, TRAININGS_VARIABLE in os.environ, agent, demonstrations)
    for given, entry in zip(resolve_entries(base_model, config, entries), entries, strict=True):
        (known,) = resolve_entries(base_model, config, [{**entry, **plan.list_added(given)}])
        learned, _ = load_splits(known, str(scenarios / SCENARIOS_FILE))
        check_plugins(known.model_copy(update={"agent": None}))  # the step `check-agent` checks it
        plan.check_warm_start(given, is_here=True)
        plan.check(known, len(learned), is_here=True)
        check_start(known.lora)
        check_start_chat(known)
        check_same_base(known)
        check_servable(known)
        if nodes > 1:
            check_server_gpus(known, options)
