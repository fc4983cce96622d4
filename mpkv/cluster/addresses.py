"""Which addresses a node may listen on, and by which its peers may reach it.

Each rule returns what is wrong, as "expected ..., found ...; do ...", or None.
"""

import ipaddress
import re

from mpkv.cluster.words import shown

_LONGEST_HOST = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# What resolvers take for an address, in ways that hardly anybody means: "0", "1.2.3", "0x7f.1".
_NUMERIC = re.compile(r"([0-9]+|0[xX][0-9A-Fa-f]*)")


def wrong_listen(listen: str) -> str | None:
    """What keeps `listen` from being an address to bind."""
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        return (
            f'expected an IP address of the node, found "{shown(listen)}"; '
            'write the address (a host name goes into "advertise")'
        )
    if address.version == 6:
        return (
            f"expected an IPv4 address, found {shown(listen)}; nodes reach each other by IPv4 only"
        )
    if not address.is_unspecified and (kind := _unreachable(address)):
        return (
            f"expected an IP address of the node, found {listen}, {kind}; "
            "write the address of one of its interfaces"
        )
    return None


def wrong_host(host: str) -> str | None:
    """What keeps `host` from being a name or an address that peers connect to."""
    if re.search(r"[/\s\[\]:]", host):
        return (
            f'expected a host name or an IPv4 address alone, found "{shown(host)}"; '
            'leave out scheme and port (the port is "port")'
        )
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return _wrong_name(host)
    if address.is_unspecified:
        return (
            f"expected an address that peers can connect to, found {host}; "
            "write the address or the host name by which they reach this node"
        )
    if kind := _unreachable(address):
        return (
            f"expected an address that peers can connect to, found {host}, {kind}; "
            "write the address or the host name by which they reach this node"
        )
    return None


def is_unspecified(listen: str) -> bool:
    """Whether `listen` stands for every address of the node."""
    try:
        return ipaddress.ip_address(listen).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _wrong_name(host: str) -> str | None:
    labels = host.removesuffix(".").split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return (
            f'expected an IPv4 address of four numbers up to 255, found "{shown(host)}"; '
            'write it in full, such as "10.0.0.7"'
        )
    if len(host) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        return (
            f'expected a host name or an IPv4 address, found "{shown(host)}"; names have '
            f'letters, digits, "-", "_" and ".", up to {_LONGEST_HOST} in all and 63 between dots'
        )
    return None


def _unreachable(address: ipaddress.IPv4Address) -> str:
    if address.is_multicast:
        return "a multicast address"
    if address == ipaddress.IPv4Address("255.255.255.255"):
        return "the broadcast address"
    if address.is_reserved or address in ipaddress.IPv4Network("0.0.0.0/8"):
        return "which no host can have"
    return ""
