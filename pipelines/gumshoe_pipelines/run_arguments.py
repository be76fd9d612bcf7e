"""Check the arguments of a pipeline before anything is started or submitted."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, field_validator

from gumshoe.artifacts.hub import find_local_dataset
from gumshoe.artifacts.storage import NotFoundError, open_uri, split_uri
from gumshoe.artifacts.store import Store
from gumshoe.corpus import CORPORA, DEFAULT_ENVIRONMENT, find_corpus
from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.redaction import find_credentials
from gumshoe_pipelines.agent_arguments import (
    check_deployed_agent,
    check_not_in_limits,
    check_trained_agent,
    find_agent,
)
from gumshoe_pipelines.graphs import combine_errors, split_parameters
from gumshoe_pipelines.placement_arguments import PLACEMENT_CHECKS
from gumshoe_pipelines.step_resources import ResourceParameters

if TYPE_CHECKING:
    from gumshoe.environments.registry import EnvironmentSettings
    from gumshoe.training.settings import TrainSettings

_RUN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")  # valid as a Kubernetes label and as an artifact version
_SERVERS = ("imap", "imaps")  # forms of sources that can be read from everywhere
_CRON_FIELDS = 6  # seconds, minutes, hours, days, months, days of the week
_RESERVED = {"latest": "the newest version", "base": "the base model"}


def check_arguments(arguments: Mapping[str, Any], *, is_local: bool) -> None:
    """Check the arguments now, so that no step rejects them hours later.

    With `is_local`, the named files and stores can be read from this machine.

    Raises:
        UsageError: if arguments are invalid; the message lists all faults.
    """
    faults = [
        UsageError(
            "pipelines.credentials-in-arguments",
            f"{place}: contains a password or a key, which would be stored with the run and shown to its viewers; "
            "remove it, and put it into a Secret of the pipeline, e.g. gumshoe-models",
        )
        for place in find_credentials(arguments)
    ]
    for name, check in _CHECKS.items():
        if name in arguments or arguments.keys() & _CHECKED_TOGETHER.get(name, set()):
            try:
                check(arguments, is_local)
            except UsageError as error:
                faults.append(UsageError(error.code, f"{name}: {error}"))
    if faults:
        raise combine_errors(faults)


def check_compiled(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return values for the parameters that are compiled into a pipeline, after checking them.

    Raises:
        UsageError: if they are invalid, or one is a parameter of a run.
    """
    compiled, others = split_parameters(name, values)
    if others:
        raise UsageError(
            "pipelines.not-compiled",
            f"{', '.join(others)}: set when a run is submitted, not when {name} is compiled; leave it out",
        )
    check_arguments(compiled, is_local=False)
    return compiled


def _check_run(arguments: Mapping[str, Any], _: bool) -> None:
    run = arguments["run"]
    if run and not _RUN.fullmatch(run):
        raise UsageError(
            "pipelines.invalid-run-id",
            f"{run!r} is not a valid run id; use at most 63 lower-case letters, digits, dots and dashes",
        )
    if run in _RESERVED:
        raise UsageError("pipelines.reserved-run-id", f"{run} always means {_RESERVED[run]}; choose another run id")


def _check_against(arguments: Mapping[str, Any], is_local: bool) -> None:
    against = arguments["against"]
    if against in _RESERVED:
        return
    if not _RUN.fullmatch(against):
        raise UsageError(
            "pipelines.invalid-against",
            f"must be base, latest or the version of a published adapter, got {against!r}; list the versions with "
            "`gumshoe artifacts list adapters`",
        )
    if is_local:
        with _as_usage_error():
            Store(arguments["store"]).manifest(f"adapters/{against}")


@contextmanager
def _as_usage_error() -> Iterator[None]:
    """Report a named file or artifact that does not exist as a wrong argument."""
    try:
        yield
    except NotFoundError as error:
        raise UsageError(error.code, error.message) from None


def _check_store(arguments: Mapping[str, Any], is_local: bool) -> None:
    scheme, _, _ = split_uri(arguments["store"])
    if not is_local and scheme != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3",
            f"{arguments['store']} is lost when the pod that writes there ends; use s3://BUCKET/PREFIX",
        )


def _check_readable(place: str, is_local: bool, *, datasets: bool = False) -> None:
    """Check that the pods of a run can read a place. With `datasets`, it may be a dataset of the hub.

    Raises:
        UsageError: if they cannot.
    """
    if is_local:
        return
    found = find_local_dataset(place) is None if datasets and place.startswith("hf:") else split_uri(place)[0] == "s3"
    if not found:
        raise UsageError(
            "pipelines.not-readable-from-pods",
            f"pods cannot read {place}; use a path that begins with s3://{' or hf:' if datasets else ''}",
        )


def _check_sources(arguments: Mapping[str, Any], is_local: bool) -> None:
    corpus = find_corpus(arguments.get("environment", DEFAULT_ENVIRONMENT))
    if corpus is None:  # reported by the check of `environment`
        return
    if not arguments["sources"]:
        raise UsageError("pipelines.no-sources", f"the list of sources is empty; write e.g. [{corpus.example_source}]")
    for source in arguments["sources"]:
        if not (isinstance(source, str) or (isinstance(source, Mapping) and "source" in source)):
            raise UsageError(
                "pipelines.source-not-a-string",
                f"a source must be a string, got {source!r}; write e.g. {corpus.example_source}, without a space",
            )
        form, place = corpus.split_source(source)
        if form not in _SERVERS:
            _check_readable(f"hf:{place}" if form == "hf" else place, is_local, datasets=form == "hf")
        if is_local:
            corpus.check_source(source)


def _check_index(arguments: Mapping[str, Any], _: bool) -> None:
    corpus = find_corpus(arguments.get("environment", DEFAULT_ENVIRONMENT))
    if corpus is not None:  # otherwise reported by the check of `environment`
        corpus.check_options(arguments["index"])


def _check_environment(arguments: Mapping[str, Any], _: bool) -> None:
    environment = arguments["environment"]
    if find_corpus(environment) is None:
        raise UsageError(
            "pipelines.unknown-environment",
            f"environment {environment!r} does not exist; use one of {', '.join(CORPORA)}",
        )


def _check_scenarios(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.scenarios.sources import read_scenarios

    _check_readable(arguments["scenarios"].removeprefix("jsonl:"), is_local, datasets=True)
    if is_local and next(iter(read_scenarios(arguments["scenarios"])), None) is None:
        raise UsageError(
            "pipelines.no-scenarios", f"{arguments['scenarios']} contains no scenarios; name a file with questions"
        )


def _check_feedback(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.scenarios.feedback_options import FeedbackOptions

    if arguments["feedback"]:
        options = FeedbackOptions.from_mapping(arguments["feedback"])
        if is_local:
            options.open_redactor()


def _check_demonstrations(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.training.settings_sections import GOLD

    if arguments["demonstrations"] in ("", GOLD):
        return
    _check_readable(arguments["demonstrations"], is_local)
    if is_local:
        with _as_usage_error():
            open_uri(arguments["demonstrations"]).close()


def _check_settings(arguments: Mapping[str, Any], is_local: bool) -> None:
    if "sweep" in arguments:  # its entries are checked one by one
        _read_settings(arguments, is_local)
        return
    known = _check_training(arguments, is_local)
    if known is not None:
        _check_evaluations({**arguments, "limits": _complete_limits(arguments, known)}, known)


def _check_training(arguments: Mapping[str, Any], is_local: bool) -> "TrainSettings | None":
    """Check the settings of one training, and return them, or None if only the pods can read their file.

    Raises:
        UsageError: if they are invalid, or the training could not start with them.
    """
    from gumshoe.training.settings_checks import check_plugins
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.training_checks import TrainingPlan
    from gumshoe_pipelines.trainjob_step import TrainJobOptions

    known = _read_settings(arguments, is_local)
    given = known or resolve(None, _training_flags(arguments), {}).settings
    check_plugins(given, is_here=is_local)
    _check_corpus(arguments, given.environment, "settings")
    if known is None:
        return None
    nodes, gpus = arguments.get("nodes", 1), arguments.get("gpus", ResourceParameters().gpus)
    try:
        options = TrainJobOptions.of(nodes, gpus, arguments.get("job", {}), "", {}, [])
        plan = TrainingPlan(options, is_local, arguments.get("agent", ""), arguments.get("demonstrations", ""))
        added = plan.list_added(known)
    except UsageError:  # reported by the checks of `nodes`, `gpus` and `job`
        return known
    plan.check_warm_start(known, is_here=is_local)
    complete = _read_settings({**arguments, "settings": {**arguments.get("settings", {}), **added}}, is_local) or known
    if not is_local:
        plan.check(complete, None, is_here=False)
    elif nodes == 1:  # otherwise reported by the check of `nodes`
        plan.check_on_this_machine(complete)
    return known


def _read_settings(arguments: Mapping[str, Any], is_local: bool) -> "TrainSettings | None":
    """Return the training settings, or None if only the pods can read their file.

    Raises:
        UsageError: if they are invalid, or the pods cannot read their file.
    """
    from gumshoe.training.settings_sources import CONFIGS, resolve

    config = str(arguments.get("config", ""))
    is_preset = not config or (CONFIGS / f"{config}.yaml").exists()
    if not is_preset:
        _check_readable(config, is_local)
    if not (is_local or is_preset):
        resolve(None, _training_flags(arguments), {})
        return None
    environ = os.environ if is_local else {}  # steps on this machine have its variables, and pods do not
    return resolve(config, _training_flags(arguments), environ).settings


def _training_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training settings that parameters set, by dotted name."""
    return {**arguments.get("settings", {}), "model.name": arguments.get("base_model", "tiny")}


def complete_arguments(arguments: Mapping[str, Any], *, is_local: bool) -> dict[str, Any]:
    """Return valid arguments in which evaluations and deployment have what training has.

    The agent is that of the training settings if no parameter names one. Limits are those of training, as far as
    `limits` does not say otherwise. Nothing is added if the pipeline does not train, or only the pods can read the
    training settings.
    """
    known = _read_settings(arguments, is_local) if "config" in arguments else None
    if known is None:
        return {**arguments}
    agent = find_agent(arguments.get("agent", ""), known)
    named = {"agent": agent.word} if agent else {}
    return {**arguments, **named, "limits": _complete_limits(arguments, known)}


def _complete_limits(arguments: Mapping[str, Any], known: "TrainSettings") -> dict[str, Any]:
    """Return the limits of evaluations: those given, and for all others those of training."""
    trained = {
        "max_turns": known.rollouts.max_turns,
        "max_tokens": known.rollouts.max_tokens,
        "max_context": known.model.max_context,
        "chat": known.chat.model_dump(mode="json", exclude_defaults=True) or None,
        "environment": known.environment and {known.environment.name: known.environment.arguments},
    }
    implied = {name: value for name, value in trained.items() if value is not None}
    if known.mode == "simple":
        implied.pop("environment", None)
    given = {name: value for name, value in arguments.get("limits", {}).items() if value is not None}
    return {**implied, **given}


def _check_evaluations(arguments: Mapping[str, Any], trained: "TrainSettings") -> None:
    """Check that evaluations have the chat settings and environment of training.

    Raises:
        UsageError: if they differ, so that the base model could not be compared with the adapter.
    """
    from gumshoe.environments.registry import EnvironmentSettings
    from gumshoe.evaluation.evaluation_step import EvaluationLimits
    from gumshoe.rollouts.chat_format.chat_settings import ChatSettings

    try:
        limits = EvaluationLimits.from_mapping(arguments["limits"])
    except UsageError:  # reported by the check of `limits`
        return
    if (limits.chat or ChatSettings()) != trained.chat:
        raise UsageError(
            "pipelines.other-chat-settings",
            "evaluations have other chat settings than training; set limits.chat to the same as chat in the training "
            f"settings: {trained.chat.model_dump_json(exclude_defaults=True)}",
        )
    default = EnvironmentSettings(name=arguments.get("environment", DEFAULT_ENVIRONMENT))
    wanted, found = trained.environment or default, limits.environment or default
    if trained.mode != "simple" and found != wanted:
        raise UsageError(
            "pipelines.other-environment",
            f"evaluations have another environment than training: {found.word}; set limits.environment to the same as "
            f"environment in the training settings: {wanted.word}",
        )


def _check_corpus(arguments: Mapping[str, Any], named: "EnvironmentSettings | None", parameter: str) -> None:
    """Check that a parameter does not name the environment of another index than the one that is built.

    Raises:
        UsageError: if it does.
    """
    built = arguments.get("environment", DEFAULT_ENVIRONMENT)
    if named is not None and named.name in CORPORA and built in CORPORA and named.name != built:
        raise UsageError(
            "pipelines.other-environment",
            f"the pipeline builds an index for the environment {built}, but {parameter} or the preset of `config` has "
            f"{named.word}; set {parameter}={{environment: {{{built}: {{...}}}}}} with settings of {built}, or the "
            f"parameter environment to {named.name}",
        )


class _SweepEntry(ParameterModel):
    """An entry of the parameter `sweep`."""

    name: Annotated[str, BeforeValidator(str)]
    """Name of its training; a number is used as text."""
    settings: dict[str, Any]
    """Training settings by dotted name."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _RUN.fullmatch(name):
            raise ValueError(f"must consist of lower-case letters, digits, dots and dashes, got {name!r}")
        return name


def _check_sweep(arguments: Mapping[str, Any], is_local: bool) -> None:
    names = []
    known = _read_settings(arguments, is_local)
    limits = arguments.get("limits", {}) if known is None else _complete_limits(arguments, known)
    for number, given in enumerate(arguments["sweep"], 1):
        entry = validate_model(_SweepEntry, given, "pipelines.invalid-sweep-entry", f"invalid entry {number}")
        names.append(entry.name)
        trained = _check_training({**arguments, "settings": entry.settings}, is_local)
        if trained is not None:
            _check_evaluations({**arguments, "limits": limits}, trained)
    if not names:
        raise UsageError("pipelines.empty-sweep", "the sweep has no entries; write e.g. [{name: slow, settings: {}}]")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(
            "pipelines.duplicate-sweep-name",
            f"the sweep uses a name twice: {', '.join(repeated)}; give each entry its own name",
        )


def _check_agent(arguments: Mapping[str, Any], is_local: bool) -> None:
    """Check that the agent is the only one, and on this machine that it can be loaded."""
    try:
        known = _read_settings(arguments, is_local) if "config" in arguments else None
    except UsageError:  # reported by the check of `config`
        known = None
    agent = find_agent(arguments.get("agent", ""), known)
    for entry in arguments.get("sweep", ()):
        own = entry.get("settings") if isinstance(entry, Mapping) else None
        if isinstance(own, Mapping) and "agent" in own:
            named = agent.word if agent else ""
            check_trained_agent(named, "", {"agent": own["agent"]})
    check_deployed_agent(arguments.get("deployment", {}), agent)
    if is_local and agent is not None:
        from gumshoe.gateway.agents import load_agent

        load_agent(agent)


def _check_limits(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.evaluation.evaluation_step import EvaluationLimits

    check_not_in_limits(arguments["limits"])
    _check_corpus(arguments, EvaluationLimits.from_mapping(arguments["limits"]).environment, "limits")


def _check_choice(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.rewards.best_of_n import ChoiceSettings

    ChoiceSettings.from_mapping(arguments["choice"])


def _check_thresholds(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.evaluation.gate import GateSettings

    if GateSettings.from_mapping(arguments["thresholds"]).needs_canaries and not arguments.get("canaries"):
        raise UsageError(
            "pipelines.thresholds-without-canaries",
            "the thresholds max_exposure and max_extracted need canaries, but `canaries` is empty; set it to the "
            "canaries.json of `gumshoe synthesize canaries`",
        )


def _check_canaries(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.scenarios.canary_record import CanaryRecord

    if not arguments["canaries"]:
        return
    corpus = find_corpus(arguments.get("environment", DEFAULT_ENVIRONMENT))
    if corpus is not None and not corpus.has_inboxes:
        raise UsageError(
            "pipelines.canaries-need-mail",
            f"canaries are planted in mail, but the environment is {arguments['environment']}; leave `canaries` empty",
        )
    _check_readable(arguments["canaries"], is_local)
    if is_local:
        CanaryRecord.read(arguments["canaries"])


def _check_deploy(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.cluster.metrics_sources import check_metrics_url
    from gumshoe.cluster.pipeline_deployment import DEPLOY_MODES, DeployTarget
    from gumshoe.cluster.releases import check_keys

    mode = arguments["deploy"]
    if mode not in DEPLOY_MODES:
        raise UsageError(
            "pipelines.unknown-deploy-mode", f"deploy must be one of {', '.join(DEPLOY_MODES)}, got {mode!r}"
        )
    if mode != "none" and split_uri(arguments["store"])[0] != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3",
            f"pods of a deployment cannot read from {arguments['store']}; publish to s3://BUCKET/PREFIX",
        )
    target = DeployTarget.of(arguments.get("deployment", {}))
    check_keys(target.values)
    for url in target.metrics:
        check_metrics_url(url)
    if target.watch_plan and mode == "full":
        raise UsageError(
            "pipelines.watch-without-canary",
            "promote_when and rollback_when need a canary, but deploy is full; set deploy: canary, or leave both out",
        )


def check_cron(cron: str) -> None:
    """Check that a schedule has the six fields of Kubeflow Pipelines, or is a name like `@daily`.

    Raises:
        UsageError: if it does not.
    """
    if len(cron.split()) != _CRON_FIELDS and not cron.startswith("@"):
        raise UsageError(
            "pipelines.invalid-cron",
            f"--cron must have six fields, beginning with seconds, got {cron!r}; write e.g. '0 0 3 * * 0'",
        )


def _check_judge(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.rewards.judge_registry import open_judge, parse_judge

    if is_local or parse_judge(arguments["judge"])[0] not in (
        "openai",
        "embedding",
    ):  # these need the API key of the step
        open_judge(arguments["judge"])


_CHECKED_TOGETHER = {
    "agent": {"config", "settings", "deployment"},
    "config": {"settings"},
    "nodes": {"job"},
}
"""Parameters that are checked together with the one named first."""
_CHECKS: dict[str, Callable[[Mapping[str, Any], bool], None]] = {
    "run": _check_run,
    "against": _check_against,
    "store": _check_store,
    "environment": _check_environment,
    "sources": _check_sources,
    "index": _check_index,
    "scenarios": _check_scenarios,
    "feedback": _check_feedback,
    "config": _check_settings,
    "agent": _check_agent,
    "sweep": _check_sweep,
    "demonstrations": _check_demonstrations,
    "limits": _check_limits,
    "choice": _check_choice,
    "canaries": _check_canaries,
    "thresholds": _check_thresholds,
    "judge": _check_judge,
    "deploy": _check_deploy,
    **PLACEMENT_CHECKS,
}
