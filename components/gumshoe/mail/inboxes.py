"""Decide which inboxes hold a message, and which of its recipients each of them may see."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gumshoe.errors import UsageError
from gumshoe.mail.authentication_results import check_sender
from gumshoe.mail.identities import lower_ascii
from gumshoe.mail.message import ParsedMessage, normalize_address
from gumshoe.mail.prepared_messages import PreparedMessage

_ARCHIVES = ("jsonl:", "hf:")
_SERVER_NAME = re.compile(r"[^\s;=\"()<>@]+")
_CACHED = 1 << 16  # a few people write and receive most mail
_MIN_MESSAGES = 5  # of a source, to infer its owner
_MIN_SHARE = 0.5  # of its messages that name the owner
_MAX_SECOND = 0.8  # messages that name the next address, relative to those that name the owner


@dataclass(frozen=True, slots=True)
class OwnedSource:
    """A source of mail, its owner, and what shows that a sender is genuine.

    Raises:
        UsageError: if an address is not a whole address, there are aliases but no owner, the name of a server is
            invalid, or From is trusted in the mailbox of an owner.
    """

    uri: str
    owner: str = ""
    """Address of the inbox that holds everything in the source. Without it, a message is in the inbox of each
    recipient, and of the sender if the sender is known to be genuine."""
    aliases: tuple[str, ...] = ()
    """Other addresses of the owner."""
    trust_from: bool = False
    """True if the source is an archive in which nobody can forge a sender. That holds for JSON Lines and datasets."""
    trust_authserv: tuple[str, ...] = ()
    """Names of mail servers whose `Authentication-Results` confirm senders."""

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
        object.__setattr__(self, "trust_authserv", normalize_servers(self.trust_authserv))
        if self.owner and self.trust_from:
            raise UsageError(
                "mail.option-conflict",
                f"{self.uri} has the owner {self.owner}, whose inbox holds everything, so its senders need no trust; "
                "leave out either the owner or trust_from (--trust-from)",
            )

    @property
    def is_archive(self) -> bool:
        """True if the address in From counts as the sender, unless a mail server found that it is forged."""
        return self.trust_from or self.uri.startswith(_ARCHIVES)

    def add_trust(self, trust_from: bool, trust_authserv: Iterable[str]) -> "OwnedSource":
        """Return the source with the trust that an index has in all of its sources."""
        servers = (*self.trust_authserv, *trust_authserv)
        return replace(self, trust_from=self.trust_from or (trust_from and not self.owner), trust_authserv=servers)

    def to_fact(self) -> str | dict[str, object]:
        """Return the source as an index records it: its URI, or an object if more is known about it."""
        owned = {"owner": self.owner, "aliases": list(self.aliases)} if self.owner else {}
        trust: dict[str, object] = {"trust_from": True} if self.trust_from else {}
        servers: dict[str, object] = {"trust_authserv": list(self.trust_authserv)} if self.trust_authserv else {}
        return {"source": self.uri, **owned, **trust, **servers} if owned or trust or servers else self.uri


def normalize_servers(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of mail servers in lower case, sorted.

    Raises:
        UsageError: if one is not the name of a server.
    """
    for each in names:
        if not _SERVER_NAME.fullmatch(each):
            raise UsageError(
                "mail.invalid-server-name",
                f"trust_authserv (--trust-authserv) is {each!r}; write the name with which Authentication-Results "
                "headers begin, such as mx.example.com",
            )
    return tuple(sorted(set(map(lower_ascii, names))))


@lru_cache(_CACHED)
def is_address(text: str) -> bool:
    """Return True if a text in normal form can be a mail address."""
    name, at, domain = text.rpartition("@")
    return bool(at and name and domain) and not any(map(str.isspace, text))


Inboxes = list[tuple[str, list[int]]]
"""Addresses of inboxes, sorted, each with the numbers of the recipients that it may not see."""


def find_inboxes(message: PreparedMessage, source: OwnedSource, allowed: frozenset[str] | None) -> Inboxes:
    """Return the inboxes that hold a message.

    A mailbox with an owner fills its owner's inbox only. Otherwise these are all recipients and the addresses of
    delivery headers, but no doubtful ones, and the sender if the sender is genuine (see `is_genuine`). A blind copy is
    visible to a genuine sender and to its recipient. `allowed` limits the inboxes. None means all.
    """
    blind = [number for number, (role, _, _) in enumerate(message.recipients) if role == "bcc"]
    own = {source.owner, *source.aliases} if source.owner else set()
    genuine = message.sender if has_sender(message) and is_genuine(message, source) else ""
    addresses = [source.owner] if source.owner else dict.fromkeys([*filter(None, [genuine]), *message.people])
    found: Inboxes = []
    for address in addresses:
        if allowed is not None and address not in allowed:
            continue
        mine = own or {address}
        is_author = message.sender in own or address == genuine
        hidden = [] if is_author else [number for number in blind if message.recipients[number][1] not in mine]
        found.append((address, hidden))
    return sorted(found)


def has_sender(message: PreparedMessage) -> bool:
    """Return True if the sender of a message is a whole address that is beyond doubt."""
    return not message.sender_is_doubtful and is_address(message.sender)


def is_genuine(message: PreparedMessage, source: OwnedSource) -> bool:
    """Return True if the address in From is that of the sender, as far as the source shows it.

    Anybody can write any address there. It counts in an archive, in a folder for sent mail, or if a trusted server
    confirmed it, but not if a server found that it is forged.
    """
    return message.verdict == "pass" or (message.verdict != "fail" and (source.is_archive or message.is_sent))


def judge_sender(message: PreparedMessage, source: OwnedSource) -> PreparedMessage:
    """Return a message with the verdict of the servers that its source trusts."""
    if not message.statements:
        return message
    return message._replace(verdict=check_sender(message.statements, source.trust_authserv))


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
    """Return the addresses of a message that are beyond doubt: of recipients and delivery headers."""
    recipients = [each.address for each in message.recipients if not each.is_doubtful]
    return [each for each in dict.fromkeys([*recipients, *message.delivered_to]) if is_address(each)]


@dataclass(slots=True)
class OwnerGuess:
    """Infer the owner of a source from the addresses that its messages name."""

    messages: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, message: PreparedMessage) -> None:
        """Count the people of a message."""
        self.messages += 1
        self.named.update({message.sender, *message.people} if has_sender(message) else message.people)
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
