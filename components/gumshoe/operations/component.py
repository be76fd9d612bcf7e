"""The pipeline's last step: tell how it went."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def notify(status: dsl.PipelineTaskFinalStatus, store: str, run: str) -> None:
    """Tell a webhook, if one is set, how a run ended.

    Args:
        status: Of everything before.
        store: The URI of the project's artifacts.
        run: The run's id.
    """
    from gumshoe.operations.notify import Outcome, tell

    tell(Outcome.of(run, store, status.state, status.error_message))
