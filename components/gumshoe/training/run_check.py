"""Check the settings of a pipeline's run before its first expensive step, and digest what its cached steps read."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from gumshoe.artifacts.hub import split_hub_name
from gumshoe.artifacts.source_files import digest_of_uris
from gumshoe.environments.recorded import has_environment, read_environment
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings
from gumshoe.errors import UsageError
from gumshoe.evaluation.evaluation_step import EvaluationLimits, find_baseline_settings
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS, resolve_chat_settings
from gumshoe.terminal import err, printable
from gumshoe.training.models.base_model import AdapterBase, identify_adapter_base
from gumshoe.training.run_spec import open_run_env
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import GOLD
from gumshoe.training.settings_sources import resolve

Settings = Mapping[str, Any]
"""Training settings that override those of a file, by dotted name."""
_GGUF = "gguf:"
_NAMES, _COMMITS = "their names on the hub", "their commits on the hub"
_COMMIT = re.compile(r"[0-9a-f]{40}")  # a tag or a branch says nothing about the weights


class InputDigests(NamedTuple):
    """Digests of the inputs of cached steps that have only the names of these inputs as arguments."""

    baseline: str
    """The base model, as far as its files are on this machine, and the code of environments of one's own."""
    training: str
    """The same, all training settings, the demonstrations, and the code of reward functions and algorithms."""


def resolve_entries(base_model: str, config: str, entries: Sequence[Settings]) -> list[TrainSettings]:
    """Return the training settings of a run, or of each entry of a sweep.

    Raises:
        UsageError: a value is invalid, or the file cannot be read.
    """
    return [resolve(config, {**each, "model.name": base_model}).settings for each in entries]


def digest_inputs(
    base_model: str, limits: Settings, trained: Sequence[TrainSettings], demonstrations: str
) -> InputDigests:
    """Return digests that change with the files of a base model, training settings, demonstrations and one's own code.

    Code is that of environments, and for training of reward functions and the algorithm. `limits` are those of
    evaluations.

    Raises:
        NotFoundError: the demonstrations do not exist.
        GumshoeError: they cannot be listed.
    """
    path = Path(base_model.removeprefix(_GGUF)).expanduser()
    model = digest_of_uris([str(path)]) if base_model != "tiny" and path.exists() else ""
    environments = [EvaluationLimits.from_mapping(limits).environment, *(each.environment for each in trained)]
    codes = _digest_own_code(each.name for each in environments if each is not None)
    learned = [
        name
        for each in trained
        for name in (*(one.name for one in each.rewards.functions), each.optimizer.algorithm.name)
    ]
    episodes = "" if demonstrations in ("", GOLD) else digest_of_uris([demonstrations])
    baseline = _digest(model, *codes)
    settings = (each.model_dump_json() for each in trained)
    return InputDigests(baseline, _digest(baseline, demonstrations, episodes, *_digest_own_code(learned), *settings))


def check_comparable(
    index: Path, base_model: str, trained: TrainSettings, limits: Settings, current: Path | None
) -> None:
    """Check that evaluations can compare the base model, the adapter in service and the adapter of a training.

    All of them must have the same base model, chat settings and environment. Turns, tokens and context of evaluations
    may differ from those of training, but only if `limits`, the limits of evaluations, names them. `current` is the
    directory of the adapter in service, if any, which may be empty.

    Raises:
        UsageError: they differ.
    """
    sizes = {
        "max_turns": trained.rollouts.max_turns,
        "max_tokens": trained.rollouts.max_tokens,
        "max_context": trained.model.max_context,
    }
    used = asdict(EvaluationLimits.from_mapping(limits).find_limits(base_model))
    if other := {name: size for name, size in sizes.items() if limits.get(name) is None and size != used[name]}:
        raise UsageError(
            "training.other-limits-in-evaluations",
            f"evaluations would have {_list_sizes({name: used[name] for name in other})}, but training has "
            f"{_list_sizes(other)}; set limits to {{{_list_sizes(other)}}}, or to what evaluations shall have",
        )
    chat, env = find_baseline_settings(index, base_model, limits)
    if chat != trained.chat:
        raise UsageError(
            "training.other-chat-settings-in-evaluations",
            f"evaluations of the base model have the chat settings {chat.model_dump_json(exclude_defaults=True)}, but "
            f"training has {trained.chat.model_dump_json(exclude_defaults=True)}, so that they could not be compared; "
            "set limits.chat to the latter",
        )
    if trained.mode != "simple" and (own := _describe(open_run_env(trained, index))) != _describe(env):
        raise UsageError(
            "training.other-environment-in-evaluations",
            f"evaluations of the base model have the environment {_describe(env).word}, but training has {own.word}, "
            "so that they could not be compared; set limits.environment, and environment in the training settings, to "
            "the latter",
        )
    if current is None:
        return
    _check_base_in_service(trained, current)
    if (current / CHAT_SETTINGS).exists() and (found := resolve_chat_settings(None, current)) != chat:
        raise UsageError(
            "training.other-chat-settings-in-service",
            f"the adapter in service was trained with the chat settings {found.model_dump_json(exclude_defaults=True)},"
            f" but this run has {chat.model_dump_json(exclude_defaults=True)}, so that they could not be compared; set "
            "chat in the training settings to the former, or against to base",
        )
    if has_environment(current) and (served := _find_served(env, current)) != _describe(env):
        raise UsageError(
            "training.other-environment-in-service",
            f"the adapter in service was trained in the environment {served.word}, but this run has "
            f"{_describe(env).word}, so that they could not be compared; set environment in the training settings, and "
            "limits.environment if it is set, to the former, or against to base",
        )


def _check_base_in_service(trained: TrainSettings, current: Path) -> None:
    """Check that the adapter in service, if any, was made for the base model of a training.

    If neither model has a fingerprint, another name may be that of a copy: then there is only a warning.

    Raises:
        UsageError: it was made for another one.
    """
    known = AdapterBase.read(current)
    if known is None:
        return
    own = identify_adapter_base(trained)
    by = _find_base_difference(known, own)
    if not by:
        return
    name = known.name if by != _COMMITS else f"{known.name.partition(':')[0]}:{known.revision}"
    message = f"the adapter in service was made for {name}, and {own.name} is another model according to {by}"
    if by == _NAMES and not known.fingerprint:
        err.print(f"[bold yellow]warning:[/] {printable(message)}; if so, they cannot be compared", soft_wrap=True)
        return
    raise UsageError(
        "training.other-base-in-service",
        f"{message}, so that they could not be compared; set base_model to {name}, or against to base",
    )


def _find_base_difference(known: AdapterBase, own: AdapterBase) -> str:
    """Return what tells that the base model of an adapter is not that of a training; empty if nothing does.

    If fingerprints cannot be compared because the training's model is not on this machine yet, repositories and commits
    on the hub are, as far as they are known.
    """
    is_same, by = known.compare(own)
    if is_same is not None:
        return "" if is_same else by
    theirs, ours = split_hub_name(known.name), split_hub_name(own.name)
    if not known.revision or own.fingerprint or theirs is None or ours is None:
        return ""
    if theirs[0].lower() != ours[0].lower():
        return _NAMES
    commit = own.revision or ours[1] or ""
    return _COMMITS if _COMMIT.fullmatch(commit) and commit != known.revision else ""


def _list_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sizes.items())


def _digest_own_code(names: Iterable[str]) -> list[str]:
    """Return the digest of each name of the form `module:name`. What is built in changes with the code of Gumshoe."""
    return [digest_code(AgentSettings(name=each)) or "" for each in names if ":" in each]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _find_served(env: EnvFactory, current: Path) -> EnvironmentSettings:
    """Return the environment that an adapter was trained in, with all settings if it has the name of `env`."""
    recorded = read_environment(current)
    return _describe(env.with_recorded(recorded.arguments)) if recorded.name == env.name else recorded


def _describe(env: EnvFactory) -> EnvironmentSettings:
    return EnvironmentSettings(name=env.name, arguments=dict(env.arguments))
