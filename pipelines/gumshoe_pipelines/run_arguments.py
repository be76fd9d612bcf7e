"""What a pipeline is asked to do, checked before anything is started or sent."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gumshoe.artifacts.hub import local_dataset
from gumshoe.artifacts.storage import NotFoundError, open_uri, split_uri
from gumshoe.cluster.trainjob import TrainJobSpec
from gumshoe.errors import UsageError
from gumshoe_pipelines.common_steps import EMBEDDING
from gumshoe_pipelines.graphs import combine
from gumshoe_pipelines.placement import WORKER

_RUN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")  # a label of Kubernetes, and a version of artifacts
_LATEST = "latest"  # of artifacts, and no version
_LIMITS = ("max_turns", "max_tokens", "max_context")


def check_arguments(arguments: Mapping[str, Any], *, reach: bool) -> None:
    """Refuse what a step would refuse, hours later.

    `reach`: whether files and stores that are named are this machine's to read.

    Raises:
        UsageError: it says what to change, all of it at once.
    """
    faults = []
    for name, check in _CHECKS.items():
        if name in arguments or arguments.keys() & _ALSO.get(name, set()):
            try:
                check(arguments, reach)
            except UsageError as error:
                faults.append(UsageError(error.code, f"{name}: {error}"))
    if faults:
        raise combine(faults)


def _run(arguments: Mapping[str, Any], _: bool) -> None:
    if not _RUN.fullmatch(arguments["run"]):
        raise UsageError(
            "pipelines.invalid-run-id",
            f"{arguments['run']!r} is not a valid run id; use at most 63 lower-case letters, digits, dots and dashes",
        )
    if arguments["run"] == _LATEST:
        raise UsageError(
            "pipelines.reserved-run-id", f"{_LATEST} always means the newest version; choose another run id"
        )


def _store(arguments: Mapping[str, Any], reach: bool) -> None:
    scheme, _, _ = split_uri(arguments["store"])
    if not reach and scheme != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3",
            f"{arguments['store']} is lost when the pod that writes there ends; use s3://BUCKET/PREFIX",
        )


def _check_found(place: str, reach: bool, *, datasets: bool = False) -> None:
    """`datasets`: whether it may be a dataset of the hub.

    Raises:
        UsageError: it is a place on this machine, where pods look for nothing, or none at all.
    """
    if reach:
        return
    found = local_dataset(place) is None if datasets and place.startswith("hf:") else split_uri(place)[0] == "s3"
    if not found:
        raise UsageError(
            "pipelines.not-readable-from-pods",
            f"pods cannot read {place}; use a path that begins with s3://{' or hf:' if datasets else ''}",
        )


def _sources(arguments: Mapping[str, Any], reach: bool) -> None:
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
        _check_found(source if kind == "hf" else place, reach, datasets=kind == "hf")
        if reach:
            kinds.open_source(source)


def _environment(arguments: Mapping[str, Any], reach: bool) -> None:
    from gumshoe.environments.ingest import INGESTED

    about, embedding = arguments["environment"], arguments.get("embedding", EMBEDDING)
    if about not in INGESTED:
        raise UsageError(
            "pipelines.unknown-environment", f"environment {about!r} does not exist; use one of {', '.join(INGESTED)}"
        )
    image = arguments.get("worker_image", WORKER)
    embeds = embedding != "none" and not embedding.startswith("openai:")
    if about == "documents" and not reach and image == WORKER and embeds:
        raise UsageError(
            "pipelines.image-cannot-embed",
            f"the image {image} cannot embed documents with {embedding}; set worker_image to the trainer's image, or "
            "embedding to openai:MODEL@URL or none",
        )


def _scenarios(arguments: Mapping[str, Any], reach: bool) -> None:
    from gumshoe.scenarios.sources import read_scenarios

    _check_found(arguments["scenarios"].removeprefix("jsonl:"), reach, datasets=True)
    if reach and next(iter(read_scenarios(arguments["scenarios"])), None) is None:
        raise UsageError(
            "pipelines.no-scenarios", f"{arguments['scenarios']} contains no scenarios; name a file with questions"
        )


def _demonstrations(arguments: Mapping[str, Any], reach: bool) -> None:
    if arguments["demonstrations"]:
        _check_found(arguments["demonstrations"], reach)
    if reach and arguments["demonstrations"]:
        try:
            open_uri(arguments["demonstrations"]).close()
        except NotFoundError as error:
            raise UsageError(error.code, error.message) from None


def _settings(arguments: Mapping[str, Any], reach: bool) -> None:
    from gumshoe.training.settings import CONFIGS, resolve

    config = str(arguments.get("config", ""))
    comes_with_gumshoe = not config or (CONFIGS / f"{config}.yaml").exists()
    if not comes_with_gumshoe:
        _check_found(config, reach)
    flags = {**arguments.get("settings", {}), "model.name": arguments.get("base_model", "tiny")}
    resolve(config if reach or comes_with_gumshoe else None, flags, {})


def _sweep(arguments: Mapping[str, Any], reach: bool) -> None:
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
        _settings({**arguments, "settings": each["settings"]}, reach)
    if not names:
        raise UsageError("pipelines.empty-sweep", "the sweep has no entries; write e.g. [{name: slow, settings: {}}]")
    if repeated := [str(name) for name, count in Counter(names).items() if count > 1]:
        raise UsageError(
            "pipelines.duplicate-sweep-name",
            f"the sweep uses a name twice: {', '.join(repeated)}; give each entry its own name",
        )


def _limits(arguments: Mapping[str, Any], _: bool) -> None:
    for name, value in arguments["limits"].items():
        if name not in _LIMITS or not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(
                "pipelines.invalid-limit",
                f"limits must be integers >= 1 named {', '.join(_LIMITS)}; got {name}: {value!r}",
            )


def _choice(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.rewards.best_of_n import ChoiceSettings

    ChoiceSettings.of(arguments["choice"])


def _thresholds(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.evaluation.gate import GateSettings

    GateSettings.of(arguments["thresholds"])


def _deploy(arguments: Mapping[str, Any], _: bool) -> None:
    from gumshoe.cluster.deploy import HOWS, DeployTarget
    from gumshoe.cluster.releases import check_keys

    how = arguments["deploy"]
    if how not in HOWS:
        raise UsageError("pipelines.unknown-deploy-mode", f"deploy must be one of {', '.join(HOWS)}, got {how!r}")
    if how != "none" and split_uri(arguments["store"])[0] != "s3":
        raise UsageError(
            "pipelines.store-not-in-s3",
            f"pods of a deployment cannot read from {arguments['store']}; publish to s3://BUCKET/PREFIX",
        )
    check_keys(DeployTarget.of(arguments.get("deployment", {})).values)


def _nodes(arguments: Mapping[str, Any], reach: bool) -> None:
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
    if reach:
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
    """
    Raises:
        UsageError: several nodes would have nobody that samples, as far as can be seen from here.
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
        except UsageError:  # the checks of settings tell of it
            continue
        check_servers(known)


def _judge(arguments: Mapping[str, Any], reach: bool) -> None:
    from gumshoe.rewards.judge_registry import named_settings, open_judge

    if reach or named_settings(arguments["judge"])[0] not in ("openai", "embedding"):  # whose key is the step's
        open_judge(arguments["judge"])


_ALSO = {"config": {"settings"}, "nodes": {"job"}}
"""What is checked under another's name."""
_CHECKS: dict[str, Callable[[Mapping[str, Any], bool], None]] = {
    "run": _run,
    "store": _store,
    "environment": _environment,
    "sources": _sources,
    "scenarios": _scenarios,
    "config": _settings,
    "sweep": _sweep,
    "demonstrations": _demonstrations,
    "limits": _limits,
    "choice": _choice,
    "thresholds": _thresholds,
    "judge": _judge,
    "deploy": _deploy,
    "nodes": _nodes,
}
