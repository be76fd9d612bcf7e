"""Settings of access control: who may read what, and which hosts and web pages may send requests."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from gumshoe.documents.collection_names import check_collection_patterns
from gumshoe.errors import UsageError
from gumshoe.network import is_local_network

_LOCAL_HOST = "localhost"
HostName = Annotated[str, StringConstraints(to_lower=True, pattern=r"^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])$")]
Origin = Annotated[str, StringConstraints(pattern=r"^https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?$")]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class AccessSettings(BaseModel):
    """Access control. If an index of documents has no collections, every authenticated caller may read all of it.

    Set `keys`, `jwks_url` or both, or else `open`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    open: bool = Field(False, description="Let anybody read everything. Use it only on your own machine.")
    keys: Path | None = Field(None, description="File of access keys, written by `gumshoe serve-key`.")
    jwks_url: str | None = Field(None, description="JWKS URL with the signing keys of tokens (JWT).")
    issuer: str | None = Field(None, description="Required value of a token's `iss` claim.")
    audience: str | None = Field(None, description="Required value in a token's `aud` claim.")
    algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256"), description="Allowed signature algorithms of tokens.")
    inbox_claim: str | None = Field("email", description="Claim that contains the inbox or the inboxes of a token.")
    verified_email: bool = Field(
        True,
        description="Accept the claim `email` only if `email_verified` is true: some providers let users choose it.",
    )
    max_token_age: int = Field(
        86_400, ge=1, description="Maximum number of seconds between the `iat` and the `exp` claim of a token."
    )
    inboxes: tuple[str, ...] = Field((), description="Inboxes or patterns (*@example.com) that every token may read.")
    collection_claim: str | None = Field(
        None, description="Claim that contains the collection or the collections of documents that a token may read."
    )
    collections: tuple[str, ...] = Field(
        (), description="Collections of documents or patterns (eng-*) that every token may read."
    )
    open_to_network: bool = Field(
        False,
        description="With open access, listen on other addresses than 127.0.0.1. Then everybody in the network can "
        "read everything. Requires `allowed_hosts`.",
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        (),
        description="Allowed Host headers, without ports. Default: any; with open access, only those of this machine.",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (), description="Origins of web pages on other hosts that may send requests, e.g. https://tools.example.com."
    )

    @model_validator(mode="after")
    def _check(self) -> "AccessSettings":
        if not (self.open or self.keys or self.jwks_url):
            raise ValueError(
                "nobody may read anything yet; use --keys FILE, or --open on your own machine, or set access.jwks_url"
            )
        if self.open and (self.keys or self.jwks_url):
            raise ValueError(
                "--open (access.open) lets anybody read everything, so keys and tokens would have no effect; leave it "
                "out, or --keys (access.keys) and access.jwks_url"
            )
        if self.open_to_network and not self.open:
            raise ValueError("access.open_to_network (--i-know) has no effect without --open (access.open)")
        if self.jwks_url and not (self.issuer and self.audience):
            raise ValueError(
                "access.jwks_url needs access.issuer and access.audience, or it would accept tokens for other services"
            )
        if self.jwks_url and not (self.inbox_claim or self.inboxes or self.collection_claim or self.collections):
            raise ValueError(
                "set access.inbox_claim, access.inboxes, access.collection_claim or access.collections, or no token "
                "can read anything"
            )
        try:
            check_collection_patterns(self.collections)
        except UsageError as error:
            raise ValueError(f"access.collections: {error.message}") from None
        return self

    @field_validator("jwks_url")
    @classmethod
    def _check_jwks_url(cls, url: str | None) -> str | None:
        """Refuse addresses whose content somebody else could replace, and with it decide who may read."""
        if url is None or url.startswith("https://") or (url.startswith("http://") and is_local_network(url)):
            return url
        raise ValueError(f"must begin with https://, or with http:// for a host in the local network; got {url!r}")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to an address to listen on."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOCAL_HOST


def check_open_to_network(access: AccessSettings, host: str) -> None:
    """Check that the operator wants open access from the network, and has named the hosts.

    Raises:
        UsageError: if not.
    """
    if not access.open_to_network:
        raise UsageError(
            "serving.open-to-network",
            f"open access on {host} lets everybody who can reach this address read everything in the index: use "
            "--keys, or listen on 127.0.0.1, or accept the risk with --i-know (access.open_to_network)",
        )
    if not access.allowed_hosts:
        raise UsageError(
            "serving.hosts-not-named",
            f"open access on {host} needs the names by which clients reach this server, or any web page could read "
            "everything through a client's browser: set access.allowed_hosts, e.g. [agent.example.com]",
        )
