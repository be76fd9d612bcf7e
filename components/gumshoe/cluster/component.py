"""Provide the last pipeline steps: deploy the published adapter, and send a notification about the run."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def notify(status: dsl.PipelineTaskFinalStatus, store: str, run: str, job: str) -> None:
    """Send a notification to the configured webhook, if any, when a run has ended.

    Args:
        status: Final status of all steps before this one.
        store: URI of the project's store.
        run: ID of the run; empty for the one of Kubeflow.
        job: ID that Kubeflow gives the run.
    """
    from gumshoe.cluster.notify import Outcome, send_notification

    send_notification(Outcome.of(run or job, store, status.state, status.error_message))


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def deploy_agent(published: str, store: str, how: str, target: dict, agent: str = "") -> str:
    """Deploy the adapter that was just published, and return a description of what is in service.

    Args:
        published: Reference of the adapter in the store.
        store: URI of the project's store.
        how: `none` deploys nothing, `canary` serves it beside the adapter in service, `full` replaces that adapter.
        target: Deployment, e.g. name, namespace, percent (share of the canary), values (of the Helm chart) and force.
        agent: Agent that the adapter was trained with, which then answers; empty for Gumshoe's own loop.
    """
    from gumshoe.cluster.pipeline_deployment import DeployTarget, deploy_published

    description = deploy_published(published, store, how, DeployTarget.of(target), agent)
    print(description or "Nothing was deployed")
    return description


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def watch_canary(published: str, store: str, how: str, target: dict, served: str) -> str:
    """Watch the canary that was just deployed, promote it or roll it back by its measures, and return what happened.

    Args:
        published: Reference of the adapter in the store.
        store: URI of the project's store.
        how: Nothing is watched unless this is `canary`.
        target: Deployment with promote_when or rollback_when, and watch_hours, min_episodes, confidence, metrics.
        served: Description of what is in service; so that this step follows the deployment.
    """
    from gumshoe.cluster.canary_step import watch_published
    from gumshoe.cluster.pipeline_deployment import DeployTarget

    print(f"Deployed: {served or 'nothing'}")
    decided = watch_published(published, store, how, DeployTarget.of(target))
    print(decided or "Nothing was watched")
    return decided
