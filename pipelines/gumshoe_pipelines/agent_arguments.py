"""Check the parameter `agent`: training, evaluations and deployment must have the same agent."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gumshoe.errors import UsageError
from gumshoe.rollouts.agent_settings import AgentSettings

if TYPE_CHECKING:
    from gumshoe.training.settings import TrainSettings

_IN_CHART = ("agent", "settings", "model", "agent")  # path of the agent in the values of the chart
_NONE = "none, i.e. Gumshoe's own loop"


def normalize_agent(value: Any) -> Any:
    """Return an agent as the text that the parameter takes: mappings and YAML files become JSON.

    Raises:
        UsageError: if it is not an agent.
    """
    return AgentSettings.parse(value).word if value and isinstance(value, str | dict) else value


def find_agent(word: str, trained: "TrainSettings | None") -> AgentSettings | None:
    """Return the agent of a run: the one that the parameter names, or else the one in the training settings.

    Raises:
        UsageError: if both name different ones, or the mode of training has no episodes.
    """
    named = AgentSettings.parse_option(word or None)
    if trained is None:
        return named
    if trained.mode == "simple":
        if named is not None:
            raise UsageError(
                "pipelines.agent-in-simple-mode",
                f"mode simple trains without episodes, so that it cannot train the agent {named.word}; leave agent "
                "out, or set mode to masked",
            )
        return None
    if named is not None and trained.agent not in (None, named):
        raise _other("the training settings name", trained.agent, named)
    return named or trained.agent


def check_trained_agent(word: str, config: str, settings: Mapping[str, Any]) -> None:
    """Check the agent in training settings, in a step that can read them.

    Raises:
        UsageError: if it is not the one of the parameter, which evaluations have.
    """
    from gumshoe.training.settings_sources import resolve

    own = {name: value for name, value in settings.items() if name in ("agent", "mode")}
    trained = resolve(config, own).settings
    named = AgentSettings.parse_option(word or None)
    if (found := find_agent(word, trained)) != named:
        raise _other("the training settings name", found, named)


def check_deployed_agent(deployment: Mapping[str, Any], named: AgentSettings | None) -> None:
    """Check the agent in the chart values of the parameter `deployment`.

    Raises:
        UsageError: if it is another one than that of the run.
    """
    found: Any = deployment.get("values")
    for name in _IN_CHART:
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is not None and AgentSettings.parse(found) != named:
        raise _other("deployment.values names", AgentSettings.parse(found), named)


def check_not_in_limits(limits: Mapping[str, Any]) -> None:
    """Refuse an agent in the parameter `limits`.

    Raises:
        UsageError: if it has one.
    """
    if "agent" in limits:
        raise UsageError(
            "pipelines.agent-in-limits",
            f"limits has an agent, got {limits['agent']!r}; set the parameter agent, which training, evaluations and "
            "deployment have",
        )


def _other(who: str, found: AgentSettings | None, named: AgentSettings | None) -> UsageError:
    one, other = (each.word if each else _NONE for each in (found, named))
    return UsageError(
        "pipelines.other-agent",
        f"{who} the agent {one}, but the parameter agent is {other}; set agent alone, so that training, evaluations "
        "and deployment have the same",
    )
