"""The warning if an adapter is used with another agent than it was trained with."""

import json
from pathlib import Path

import pytest

from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.trained_agent import warn_if_other_agent

MINE, OTHER = AgentSettings(name="mine.agent:graph"), AgentSettings(name="other.agent:graph")


def record(directory: Path, settings: object) -> list[Path | str | None]:
    (directory / "metadata.json").write_text(json.dumps({"settings": settings}))
    return [None, directory]


@pytest.mark.parametrize(
    ("recorded", "agent", "warns"),
    [
        (MINE, MINE, False),
        (MINE, MINE.model_copy(update={"deadline": 5}), False),
        (MINE, OTHER, True),
        (MINE, None, True),
        (None, MINE, True),
        (None, None, False),
    ],
)
def test_another_agent_than_in_training_is_reported(
    recorded: AgentSettings | None,
    agent: AgentSettings | None,
    warns: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = record(tmp_path, {"agent": recorded and recorded.model_dump(mode="json")})
    assert warn_if_other_agent(places, agent) is warns
    shown = " ".join(capsys.readouterr().err.split())
    assert all((each.word in shown) is warns for each in (recorded, agent) if each)


@pytest.mark.parametrize("settings", [{}, {"agent": {"no": "agent"}}, None])
def test_a_record_that_does_not_say_is_no_reason_to_warn(settings: object, tmp_path: Path) -> None:
    """E.g. of an adapter of an earlier version, or of another program."""
    assert not warn_if_other_agent(record(tmp_path, settings), MINE)
    assert not warn_if_other_agent([tmp_path / "missing"], MINE)
