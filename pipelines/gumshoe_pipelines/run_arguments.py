"""Check the arguments of a pipeline before anything is started or submitted."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gumshoe.artifacts.hub import find_local_dataset
from gumshoe.artifacts.storage import NotFoundError, open_uri, split_uri
from gumshoe.cluster.trainjob import TrainJobSpec
from gumshoe.errors import UsageError
from gumshoe_pipelines.common_steps import EMBEDDING
from gumshoe_pipelines.graphs import combine_errors
from gumshoe_pipelines.placement import WORKER

_RUN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")  # valid as a Kubernetes label and as an artifact version
_LATEST = "latest"  # reserved: the newest version of an artifact
_LIMITS = ("max_turns", "max_tokens", "max_context")


def check_arguments(arguments: Mapping[str, Any], *, is_local: bool) -> None:
    """Check the arguments now, so that no step rejects them hours later.

    With `is_local`, the named files and stores can be read from this machine.

    Raises:
        UsageError: if arguments are invalid; the message lists all faults.
    """
    faults = []
    for name, check in _CHECKS.items():
        if name in arguments or arguments.keys() & _CHECKED_TOGETHER.get(name, set()):
            try:
                check(arguments, is_local)
            except UsageError as error:
                faults.append(UsageError(error.code, f"{name}: {error}"))
    if faults:
        raise combine_errors(faults)


def _check_run(arguments: Mapping[str, Any], _: bool) -> None:
    if not _RUN.fullmatch(arguments["run"]):
        raise UsageError(
            "pipelines.invalid-run-id",
            f"{arguments['run']!r} is not a valid run id; use at most 63 lower-case letters, digits, dots and dashes",
        )
    if arguments["run"] == _LATEST:
        raise UsageError(
            "pipelines.reserved-run-id", f"{_LATEST} always means the newest version; choose another run id"
        )


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
    is_mail = arguments.get("environment", "email") == "email"
    kinds = import_module("gumshoe.mail.sources" if is_mail else "gumshoe.documents.sources")
    example = "maildir" if is_mail else "dir"
    if not arguments["sources"]:
        raise UsageError(
            "pipelines.no-sources", f"the list of sources is empty; write e.g. [{example}:s3://bucket/there]"
        )
    for source in arguments["sources"]:
        if not isinstance(source, str):
            raise UsageError(
                "pipelines.source-not-a-string",
                f"a source must be a string, got {source!r}; write e.g. {example}:s3://bucket/there, without a space",
            )
        kind, place = kinds.split_source(source)
        _check_readable(source if kind == "hf" else place, is_local, datasets=kind == "hf")
        if is_local:
            kinds.open_source(source)


def _check_environment(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.environments.ingest import INGESTED

    environment, embedding = arguments["environment"], arguments.get("embedding", EMBEDDING)
    if environment not in INGESTED:
        raise UsageError(
            "pipelines.unknown-environment",
            f"environment {environment!r} does not exist; use one of {', '.join(INGESTED)}",
        )
    image = arguments.get("worker_image", WORKER)
    embeds = embedding != "none" and not embedding.startswith("openai:")
    if environment == "documents" and not is_local and image == WORKER and embeds:
        raise UsageError(
            "pipelines.image-cannot-embed",
            f"the image {image} cannot embed documents with {embedding}; set worker_image to the trainer's image, or "
            "embedding to openai:MODEL@URL or none",
        )


def _check_scenarios(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.scenarios.sources import read_scenarios

    _check_readable(arguments["scenarios"].removeprefix("jsonl:"), is_local, datasets=True)
    if is_local and next(iter(read_scenarios(arguments["scenarios"])), None) is None:
        raise UsageError(
            "pipelines.no-scenarios", f"{arguments['scenarios']} contains no scenarios; name a file with questions"
        )


def _check_demonstrations(arguments: Mapping[str, Any], is_local: bool) -> None:
    if arguments["demonstrations"]:
        _check_readable(arguments["demonstrations"], is_local)
    if is_local and arguments["demonstrations"]:
        try:
            open_uri(arguments["demonstrations"]).close()
        except NotFoundError as error:
            raise UsageError(error.code, error.message) from None


def _check_settings(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.training.settings import CONFIGS, resolve

    config = str(arguments.get("config", ""))
    is_preset = not config or (CONFIGS / f"{config}.yaml").exists()
    if not is_preset:
        _check_readable(config, is_local)
    flags = {**arguments.get("settings", {}), "model.name": arguments.get("base_model", "tiny")}
    resolve(config if is_local or is_preset else None, flags, {})


def _check_sweep(arguments: Mapping[str, Any], is_local: bool) -> None:
    names = []
    for each in arguments["sweep"]:
        if not isinstance(each, dict) or set(each) != {"name", "settings"} or not isinstance(each["settings"], dict):
            raise UsageError(
                "pipelines.invalid-sweep-entry",
                f"an entry of the sweep must have name and settings, got {each}; write e.g. {{name: slow, settings: "
                "{optimizer.learning_rate: 1e-6}}",
            )
        if not _RUN.fullmatch(str(each["name"])):
            raise UsageError(
                "pipelines.invalid-sweep-name",
                f"{each['name']!r} is not a valid name in a sweep; use lower-case letters, digits, dots and dashes",
            )
        names.append(each["name"])
        _check_settings({**arguments, "settings": each["settings"]}, is_local)
    if not names:
        raise UsageError("pipelines.empty-sweep", "the sweep has no entries; write e.g. [{name: slow, settings: {}}]")
    if repeated := [str(name) for name, count in Counter(names).items() if count > 1]:
        raise UsageError(
            "pipelines.duplicate-sweep-name",
            f"the sweep uses a name twice: {', '.join(repeated)}; give each entry its own name",
        )


def _check_limits(arguments: Mapping[str, Any], _: bool) -> None:
    for name, value in arguments["limits"].items():
        if name not in _LIMITS or not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(
                "pipelines.invalid-limit",
                f"limits must be integers >= 1 named {', '.join(_LIMITS)}; got {name}: {value!r}",
            )


def _check_choice(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.rewards.best_of_n import ChoiceSettings

    ChoiceSettings.from_mapping(arguments["choice"])


def _check_thresholds(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.evaluation.gate import GateSettings

    GateSettings.from_mapping(arguments["thresholds"])


def _check_deploy(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.cluster.deploy import DEPLOY_MODES, DeployTarget
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
    check_keys(DeployTarget.of(arguments.get("deployment", {})).values)


def _check_nodes(arguments: Mapping[str, Any], is_local: bool) -> None:
    nodes = arguments.get("nodes", 1)
    if nodes < 1:
        raise UsageError("pipelines.invalid-nodes", f"must be an integer >= 1, got {nodes}")
    job = TrainJobSpec.of(arguments.get("job", {}))
    if nodes == 1:
        return
    if split_uri(arguments["store"])[0] != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3", f"other nodes cannot read from {arguments['store']}; use s3://BUCKET/PREFIX"
        )
    if is_local:
        raise UsageError(
            "pipelines.single-machine",
            f"a run on this machine has one node, got {nodes}; leave nodes out, or submit the pipeline to a cluster",
        )
    engine = arguments.get("settings", {}).get("rollouts.engine", "vllm")
    if job.rollout_servers and engine != "vllm":
        raise UsageError(
            "pipelines.rollout-servers-without-vllm",
            f"job.rollout_servers starts vLLM servers, but rollouts.engine is {engine}; set job.rollout_servers to 0, "
            "or leave rollouts.engine out",
        )
    if not job.rollout_servers:
        _check_servers(arguments)


def _check_servers(arguments: Mapping[str, Any]) -> None:
    """Check that several nodes have rollout servers, as far as the settings are known here.

    Raises:
        UsageError: if they have none.
    """
    from gumshoe.training.settings import CONFIGS, resolve
    from gumshoe_pipelines.trainjob_step import check_servers

    config = str(arguments.get("config", ""))
    if config and not (CONFIGS / f"{config}.yaml").exists():
        return
    sweep = [each.get("settings") for each in arguments.get("sweep", []) if isinstance(each, dict)]
    for settings in sweep or [arguments.get("settings", {})]:
        try:
            known = resolve(config or None, settings or {}, {}).settings
        except UsageError:  # reported by the check of `config`
            continue
        check_servers(known)


def _check_judge(arguments: Mapping[str, Any], is_local: bool) -> None:
    from gumshoe.rewards.judge_registry import open_judge, parse_judge

    if is_local or parse_judge(arguments["judge"])[0] not in (
        "openai",
        "embedding",
    ):  # these need the API key of the step
        open_judge(arguments["judge"])


_CHECKED_TOGETHER = {"config": {"settings"}, "nodes": {"job"}}
"""Parameters that are checked together with the one named first."""
_CHECKS: dict[str, Callable[[Mapping[str, Any], bool], None]] = {
    "run": _check_run,
    "store": _check_store,
    "environment": _check_environment,
    "sources": _check_sources,
    "scenarios": _check_scenarios,
    "config": _check_settings,
    "sweep": _check_sweep,
    "demonstrations": _check_demonstrations,
    "limits": _check_limits,
    "choice": _check_choice,
    "thresholds": _check_thresholds,
    "judge": _check_judge,
    "deploy": _check_deploy,
    "nodes": _check_nodes,
}
