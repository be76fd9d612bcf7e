"""Find adapters that were trained on an erased inbox or question."""

from gumshoe.erasure.question_links import Links
from gumshoe.erasure.target import EraseTarget
from gumshoe.scenarios.lineage import Lineage


def explain_learning(lineage: Lineage | None, target: EraseTarget, links: Links) -> str | None:
    """Return why an adapter may have learned erased content, or None. `lineage` is that of the adapter."""
    if lineage is None:
        return None
    known = [each.sources for each in lineage.history if each.sources is not None]
    if target.kind == "inbox" and any(each.has_inbox(target.name) for each in known):
        return "trained on questions about the inbox"
    return "trained on an erased question" if lineage.questions & links.digests else None
