"""Find out if an adapter was trained on what is erased."""

from gumshoe.erasure.question_links import Links
from gumshoe.erasure.target import EraseTarget
from gumshoe.scenarios.lineage import Lineage

ON_QUESTION, ON_INBOX = "trained on an erased question", "trained on questions about the inbox"


def explain_learning(lineage: Lineage | None, target: EraseTarget, links: Links) -> str | None:
    """Return why an adapter may have learned from what is erased, or None. `lineage` is that of the adapter."""
    if lineage is None:
        return None
    known = [each.sources for each in lineage.history if each.sources is not None]
    if target.kind == "inbox" and any(each.has_inbox(target.name) for each in known):
        return ON_INBOX
    return ON_QUESTION if lineage.questions & links.digests else None
