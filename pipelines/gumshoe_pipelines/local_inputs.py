"""Digest the inputs of a run on this machine that its arguments only name."""

import hashlib
from collections.abc import Mapping
from typing import Any

from gumshoe.artifacts.source_files import digest_of_uris, is_on_server
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.training.run_check import digest_inputs, resolve_entries


def digest_named_inputs(arguments: Mapping[str, Any]) -> str:
    """Return a digest that changes with the code, files and settings that arguments name: see `digest_inputs`.

    Sources on servers are left out, since it cannot be told whether they have changed.

    Raises:
        UsageError, NotFoundError: a source or a file does not exist, or the training settings are invalid.
        GumshoeError: one cannot be listed.
    """
    agent = arguments.get("agent")
    code = digest_code(AgentSettings.parse(agent)) if agent else None
    sweep = [each["settings"] for each in arguments.get("sweep", ())]
    entries = sweep or [arguments.get("settings", {})]
    trained = resolve_entries(arguments["base_model"], arguments.get("config", ""), entries)
    found = digest_inputs(
        arguments["base_model"], arguments.get("limits", {}), trained, arguments.get("demonstrations", "")
    )
    sources = [each if isinstance(each, str) else each["source"] for each in arguments.get("sources", ())]
    scenarios = [arguments["scenarios"]] if arguments.get("scenarios") else []
    data = digest_of_uris(each for each in (*sources, *scenarios) if not is_on_server(each))
    return hashlib.sha256(f"{code}\n{found.training}\n{data}".encode()).hexdigest()
