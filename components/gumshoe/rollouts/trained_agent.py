"""Compare the agent of episodes with the one that an adapter was trained with, as its directory records."""

import json
from collections.abc import Iterable
from pathlib import Path

from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.terminal import err, printable

_METADATA = "metadata.json"  # written by trainings
_NONE = "Gumshoe's own loop"


def warn_if_other_agent(directories: Iterable[Path | str | None], agent: AgentSettings | None) -> bool:
    """Print a warning if an adapter was trained with another agent, and return True then.

    The recorded agent is only compared and never loaded: a file of somebody else must not choose the code to run.
    Limits of the agent may differ.
    """
    for place in directories:
        is_known, recorded = _read_agent(Path(place) / _METADATA) if place is not None else (False, None)
        if not is_known or _identify(recorded) == _identify(agent):
            continue
        trained = recorded.word if recorded else _NONE
        err.print(
            f"[bold yellow]warning:[/] the adapter in {printable(place)} was trained with {printable(trained)}, and is "
            f"now used with {printable(agent.word if agent else _NONE)}; use the same agent, or compare with care",
            soft_wrap=True,
        )
        return True
    return False


def _identify(agent: AgentSettings | None) -> tuple[object, ...]:
    return (agent.name, agent.command, [each.mcp for each in agent.tools]) if agent else ()


def _read_agent(path: Path) -> tuple[bool, AgentSettings | None]:
    """Return True and the recorded agent, None for Gumshoe's own loop; or False if the file does not say."""
    try:
        settings = json.loads(path.read_bytes())["settings"]
        if "agent" not in settings:
            return False, None
        return True, None if settings["agent"] is None else AgentSettings.model_validate(settings["agent"])
    except (OSError, ValueError, KeyError, TypeError):  # the record is only for this warning
        return False, None
