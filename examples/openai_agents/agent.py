"""An agent of the OpenAI Agents SDK. Gumshoe runs what this function returns, with the model that is trained.

PYTHONPATH=. gumshoe rollout --agent examples.openai_agents.agent:search_agent …
"""

from agents import Agent, StopAtTools

from gumshoe.gateway.agent_task import AgentTask


def search_agent(task: AgentTask) -> Agent[AgentTask]:
    """Return an agent with the tools of one episode. It ends when it has given its answer."""
    return Agent(
        name="Search agent",
        instructions=task.system_prompt,
        tools=[*task.tools.openai_agents()],
        tool_use_behavior=StopAtTools(stop_at_tool_names=["return_final_answer"]),
    )
