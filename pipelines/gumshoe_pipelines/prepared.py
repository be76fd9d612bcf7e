"""What pipelines begin and end with alike."""

from typing import Any

from kfp import dsl

from gumshoe.artifacts.component import look_at_sources, publish_adapter
from gumshoe.mail.component import ingest_mail
from gumshoe.scenarios.component import load_scenarios
from gumshoe_pipelines.placement import Placement


def prepared(where: Placement, mail: Any, scenarios: Any, seed: Any, code: Any, current: Any = None) -> dict[str, Any]:
    """The mail indexed, and the questions checked and divided: the inputs `mail` and `scenarios` of later steps.

    `current` is an adapter that will be tested on them too.
    """
    now = where.on_cpu(look_at_sources(mail=mail, scenarios=scenarios)).outputs
    ingested = where.on_cpu(ingest_mail(sources=mail, state=now["mail"], code=code), hours=12, cached=True)
    index = ingested.outputs["mail"]
    tested = {} if current is None else {"current": current}
    loaded = load_scenarios(source=scenarios, mail=index, seed=seed, state=now["scenarios"], code=code, **tested)
    where.on_cpu(loaded, cached=True)
    return {"mail": index, "scenarios": loaded.outputs["scenarios"]}


def published_if_passed(where: Placement, decided: Any, adapter: Any, store: Any, run: Any) -> None:
    """The last step: an adapter is published where the gate let it pass."""
    with dsl.If(decided.outputs["Output"] == True, name="passed"):  # noqa: E712 - Kubeflow's own
        where.on_cpu(
            publish_adapter(
                adapter=adapter,
                decision=decided.outputs["decision"],
                store=store,
                version=run,
                image=where.trainer_image,
            )
        )
