"""Decide which inboxes hold a message, and which of its recipients each of them may see."""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from gumshoe.errors import UsageError
from gumshoe.mail.message import ParsedMessage, normalize_address
from gumshoe.mail.prepared_messages import PreparedMessage

_CACHED = 1 << 16  # a few people write and receive most mail
_MIN_MESSAGES = 5  # of a source, to infer its owner
_MIN_SHARE = 0.5  # of its messages that name the owner
_MAX_SECOND = 0.8  # messages that name the next address, relative to those that name the owner


@dataclass(frozen=True, slots=True)
class OwnedSource:
    """A source of mail, and its owner.

    Raises:
        UsageError: if an address is not a whole address, or there are aliases but no owner.
    """

    uri: str
    owner: str = ""
    """Address of the inbox that holds everything in the source. Without it, a message is in the inbox of each person
    that it names as sender or recipient."""
    aliases: tuple[str, ...] = ()
    """Other addresses of the owner."""

    def __post_init__(self) -> None:
        addresses = tuple(map(normalize_address, (self.owner, *self.aliases)))
        if self.owner or self.aliases:
            for given, address in zip((self.owner, *self.aliases), addresses, strict=True):
                if not is_address(address):
                    raise UsageError(
                        "mail.invalid-owner",
                        f"owner or alias of {self.uri} is {given!r}; write whole addresses, such as ann@example.com",
                    )
        object.__setattr__(self, "owner", addresses[0])
        object.__setattr__(self, "aliases", tuple(dict.fromkeys(addresses[1:])))

    def to_fact(self) -> str | dict[str, object]:
        """Return the source as an index records it: its URI, or an object if it has an owner."""
        if not self.owner:
            return self.uri
        return {"source": self.uri, "owner": self.owner, "aliases": list(self.aliases)}


@lru_cache(_CACHED)
def is_address(text: str) -> bool:
    """Return True if a text in normal form can be a mail address."""
    name, at, domain = text.rpartition("@")
    return bool(at and name and domain) and not any(map(str.isspace, text))


Inboxes = list[tuple[str, list[int]]]
"""Addresses of inboxes, sorted, each with the numbers of the recipients that it may not see."""


def find_inboxes(message: PreparedMessage, source: OwnedSource, allowed: frozenset[str] | None) -> Inboxes:
    """Return the inboxes that hold a message.

    A mailbox with an owner fills its owner's inbox only. Otherwise these are the sender, all recipients and the
    addresses of delivery headers, but no doubtful ones. A blind copy is visible to the sender and to its recipient.
    `allowed` limits the inboxes. None means all.
    """
    blind = [number for number, (role, _, _) in enumerate(message.recipients) if role == "bcc"]
    own = {source.owner, *source.aliases} if source.owner else set()
    addresses = [source.owner] if source.owner else message.people
    found: Inboxes = []
    for address in addresses:
        if allowed is not None and address not in allowed:
            continue
        mine = own or {address}
        is_author = message.sender in mine and (bool(own) or not message.sender_is_doubtful)
        hidden = [] if is_author else [number for number in blind if message.recipients[number][1] not in mine]
        found.append((address, hidden))
    return sorted(found)


def drop_hidden_recipients(recipients: list[list[str]], inboxes: Inboxes) -> tuple[list[list[str]], Inboxes]:
    """Leave out the recipients that no inbox may see, and renumber the others."""
    hidden = set.intersection(*(set(each) for _, each in inboxes)) if inboxes else set[int]()
    if not hidden:
        return recipients, inboxes
    left = [number for number in range(len(recipients)) if number not in hidden]
    numbers = {old: new for new, old in enumerate(left)}
    renumbered = [(inbox, [numbers[each] for each in mine if each in numbers]) for inbox, mine in inboxes]
    return [recipients[number] for number in left], renumbered


def list_people(message: ParsedMessage) -> list[str]:
    """Return the addresses of a message that are beyond doubt: of sender, recipients and delivery headers."""
    sender = [] if message.sender_is_doubtful else [message.sender]
    recipients = [each.address for each in message.recipients if not each.is_doubtful]
    return [each for each in dict.fromkeys([*sender, *recipients, *message.delivered_to]) if is_address(each)]


@dataclass(slots=True)
class OwnerGuess:
    """Infer the owner of a source from the addresses that its messages name."""

    messages: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, people: list[str]) -> None:
        """Count the people of a message."""
        self.messages += 1
        self.named.update(people)
        if len(self.named) > 100_000:  # the owner is among the frequent ones
            self.named = Counter(dict(self.named.most_common(1_000)))

    def suggest(self) -> tuple[str, float] | None:
        """Return the address that most messages name, and the share that names it. None if no address stands out."""
        if self.messages < _MIN_MESSAGES or not self.named:
            return None
        (first, count), *others = self.named.most_common(2)
        share = count / self.messages
        if share < _MIN_SHARE or any(other > _MAX_SECOND * count for _, other in others):
            return None
        return first, share
