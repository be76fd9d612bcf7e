"""What every pipeline begins with: the mail indexed, and the questions checked and divided."""

from typing import Any

from gumshoe.mail.component import ingest_mail
from gumshoe.scenarios.component import load_scenarios
from gumshoe_pipelines.placement import Placement


def prepared(where: Placement, mail: Any, scenarios: Any, seed: Any, code: Any) -> dict[str, Any]:
    """The inputs `mail` and `scenarios` of later steps."""
    ingested = where.on_cpu(ingest_mail(sources=mail, code=code), hours=12, cached=True)
    index = ingested.outputs["mail"]
    loaded = where.on_cpu(load_scenarios(source=scenarios, mail=index, seed=seed, code=code), cached=True)
    return {"mail": index, "scenarios": loaded.outputs["scenarios"]}
