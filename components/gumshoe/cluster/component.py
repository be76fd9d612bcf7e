"""The pipeline's last steps: put into service what was published, and tell how it went."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def notify(status: dsl.PipelineTaskFinalStatus, store: str, run: str) -> None:
    """Tell a webhook, if one is set, how a run ended.

    Args:
        status: Of everything before.
        store: The URI of the project's artifacts.
        run: The run's id.
    """
    from gumshoe.cluster.notify import Outcome, tell

    tell(Outcome.of(run, store, status.state, status.error_message))


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def deploy_agent(published: str, store: str, how: str, target: dict) -> str:
    """Put the adapter that was just published into service; what is in service then.

    Args:
        published: Its reference in the store.
        store: The URI of the project's artifacts.
        how: `none`, and nothing is done; `canary`, beside the adapter in service; `full`, in its place.
        target: The deployment: name, namespace, percent (of a canary), values (of the chart).
    """
    from gumshoe.cluster.deploy import DeployTarget, put_into_service

    told = put_into_service(published, store, how, DeployTarget.of(target))
    print(told or "Nothing is deployed")
    return told
