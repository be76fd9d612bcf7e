"""Check an agent before the episodes of a pipeline, and digest what its results depend on."""

import asyncio
import hashlib
import json
import sys
import uuid

from gumshoe.gateway.agents import load_agent
from gumshoe.gateway.foreign_tools import open_foreign_tools
from gumshoe.rollouts.agent_code import MAX_FILES, digest_code, digest_packages
from gumshoe.rollouts.agent_settings import AgentSettings


def check_and_digest(agent: str) -> str:
    """Load an agent and list the tools of its MCP servers. Return a digest of its code, its packages and these tools.

    If the code cannot be told, the digest is a new one each time, so that no earlier result is used.

    Raises:
        UsageError: if the agent cannot be loaded, or a server of its tools cannot be used.
        ToolServerError: if a server of its tools does not answer.
    """
    settings = AgentSettings.parse(agent)
    load_agent(settings)
    tools = json.dumps(asyncio.run(_list_tools(settings)), sort_keys=True)
    code = digest_code(settings)
    if code is None:
        sys.stdout.write(
            f"The code of {settings.word} is not known (no files, or more than {MAX_FILES:,}), so evaluations are not "
            "taken from the cache\n"
        )
        code = uuid.uuid4().hex
    return hashlib.sha256("\n".join((code, digest_packages(), tools)).encode()).hexdigest()


async def _list_tools(settings: AgentSettings) -> list[dict[str, object]]:
    async with open_foreign_tools(settings.tools) as tools:
        return tools.schemas()
