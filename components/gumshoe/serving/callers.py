"""Name callers and group their addresses, among whom slots, budgets and connections are shared."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from gumshoe.serving.access import ANONYMOUS, Principal

_IPV6_PREFIX = 64  # bits; a single host usually has all addresses below them
_UNKNOWN = "unknown"


def parse_address(address: str | None) -> IPv4Address | IPv6Address | None:
    """Return a client's IP address, or None if the text is not one. IPv4 addresses mapped to IPv6 are returned as IPv4.

    >>> parse_address("::ffff:10.0.0.7")
    IPv4Address('10.0.0.7')
    """
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def group_address(address: str | None) -> str:
    """Return the group that an IP address belongs to: an IPv4 address itself, or the /64 network of an IPv6 address.

    >>> group_address("2001:db8::17"), group_address("::ffff:10.0.0.7")
    ('2001:db8::/64', '10.0.0.7')
    """
    parsed = parse_address(address)
    if not isinstance(parsed, IPv6Address):
        return _UNKNOWN if parsed is None else str(parsed)
    host_bits = 128 - _IPV6_PREFIX
    return f"{IPv6Address(int(parsed) >> host_bits << host_bits)}/{_IPV6_PREFIX}"


def name_caller(principal: Principal, address: str | None) -> str:
    """Return the name under which a principal's work is limited. With open access, it is that of the client's address.

    `address` is the client's IP address, or what a trusted proxy says it is.
    """
    return f"address {group_address(address)}" if principal is ANONYMOUS else f"{principal.kind} {principal.name}"
