"""Define the step that checks the agent of a run before anything expensive starts.

The step is here because it needs both `gumshoe.gateway` and `gumshoe.training`, which may not import each other.
"""

from kfp import dsl


@dsl.component(base_image="gumshoe-trainer", install_kfp_package=False)
def check_agent(agent: str, config: str = "", settings: dict = {}, sweep: list = []) -> str:  # noqa: B006 - Kubeflow requires literals
    """Load the agent, and return a digest of its code for the cache; empty without an agent.

    Args:
        agent: Agent that runs the episodes; empty for Gumshoe's own loop.
        config: Training settings: name of a preset, a path, or a URI. Empty for the defaults.
        settings: Training settings that override `config`, by dotted name.
        sweep: Entries of a sweep, whose settings override `config`.
    """
    from gumshoe_pipelines.agent_arguments import check_trained_agent

    for entry in sweep or [{"settings": settings}]:
        check_trained_agent(agent, config, entry["settings"])
    if not agent:
        return ""
    from gumshoe.gateway.agent_check import check_and_digest

    return check_and_digest(agent)
