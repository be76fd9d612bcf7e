"""Limits, chat settings and environment of an evaluation: those of its policies' training, the same for all."""

from dataclasses import fields, replace
from pathlib import Path

from gumshoe.environments.recorded import has_environment, use_recorded
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UsageError
from gumshoe.evaluation.evaluation_request import EvaluationRequest
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS, ChatSettings, resolve_chat_settings
from gumshoe.rollouts.policy_limits import PolicyLimits, read_trained_limits
from gumshoe.rollouts.sessions import env_for_policy


def find_chat_settings(settings: EvaluationRequest) -> ChatSettings | None:
    """Return the chat settings of all policies: those given, or else those that they were trained with.

    Those of a policy are recorded with its adapter, or else with its model. None if nothing is given or recorded.

    Raises:
        UsageError: if a policy was trained with other settings than those given, or than another policy.
    """
    rollout = settings.rollout
    firsts = [
        next((place for place in places if (place / CHAT_SETTINGS).exists()), None)
        for places in _list_directories(settings)
    ]
    found = {place: resolve_chat_settings(rollout.chat, place) for place in firsts if place is not None}
    chosen = next(iter(found.values()), rollout.chat)
    for place, recorded in found.items():
        if recorded != chosen:
            raise UsageError(
                "evaluation.different-chat-settings",
                f"{next(iter(found))} and {place} were trained with different chat settings; evaluate them one by one",
            )
    return chosen


def open_trained_env(settings: EvaluationRequest) -> EnvFactory:
    """Open the environment of all policies: the one that they were trained in, or else the given one.

    Raises:
        UsageError: if a policy was trained in another environment than the given one, or than another policy.
    """
    opened = open_env(settings.rollout.index, settings.rollout.environment)
    firsts = [next(filter(has_environment, places), None) for places in _list_directories(settings)]
    found = {place: use_recorded(opened, place) for place in firsts if place is not None}
    env_factory = next(iter(found.values()), opened)
    for place, other in found.items():
        if other.provenance != env_factory.provenance:
            raise UsageError(
                "evaluation.different-environments",
                f"{next(iter(found))} and {place} were trained in different environments: "
                f"{env_factory.provenance['environment']} and {other.provenance['environment']}; evaluate them one by "
                "one",
            )
    if not found:
        for policy in settings.policies:  # with the settings of the tiny policy if it is one of them
            env_factory = env_for_policy(env_factory, PolicyName.parse(policy.word), settings.rollout.tokenizer)
    return env_factory


def limit_episodes(settings: EvaluationRequest, **given: int | None) -> EvaluationRequest:
    """Return a copy whose episodes have the given limits, and for all others those that its policies were trained with.

    `given` are fields of `PolicyLimits`; None is not given. Limits that are not recorded either have their defaults.

    Raises:
        UsageError: if two policies were trained with different limits, and those are not given.
    """
    firsts = [
        next(((place, found) for place in places if (found := read_trained_limits(place))), None)
        for places in _list_directories(settings, trained_here=True)
    ]
    trained = dict(filter(None, firsts))
    for name in (each.name for each in fields(PolicyLimits) if given.get(each.name) is None):
        values = {getattr(limits, name): place for place, limits in trained.items()}
        if len(values) > 1:
            (one, first), (other, second) = list(values.items())[:2]
            raise UsageError(
                "evaluation.different-limits",
                f"{first} was trained with {name} {one}, and {second} with {other}; set --{name.replace('_', '-')} for "
                "both, or evaluate them one by one",
            )
    limits = PolicyLimits.of(trained, **given)
    rollout = settings.rollout
    sampling = replace(rollout.sampling, max_tokens=limits.max_tokens)
    return replace(settings, rollout=replace(rollout, sampling=sampling, limits=limits.episode))


def _list_directories(settings: EvaluationRequest, *, trained_here: bool = False) -> list[list[Path]]:
    """Return the directories of each policy: of its adapter, its model and its tokenizer.

    With `trained_here`, models that must be fetched or converted are left out.
    """
    directories = []
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        places: list[Path | str | None] = [place for name, place in settings.adapters if name == each.name]
        places += policy.trained_directories if trained_here else policy.directories
        places.append(settings.rollout.tokenizer if policy.takes_tokenizer else None)
        directories.append([Path(place) for place in places if place is not None])
    return directories
