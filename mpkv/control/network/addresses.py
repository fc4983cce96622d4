"""Where a peer is reached: `host:port`, an IPv6 address in brackets as in `[::1]:7710`."""

import ipaddress

MAX_HOST = 300
NOT_AN_ADDRESS = "is not host:port (an IPv6 address stands in brackets: [::1]:7710)"


def split_address(address: str) -> tuple[str, int] | None:
    """Host, without brackets, and port; None if `address` has not that form. Whether it
    leads anywhere is another matter."""
    host, _, digits = address.rpartition(":")
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:6]) < 65536):
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        return (host, int(digits)) if is_ipv6(host) else None
    named = all(c.isascii() and (c.isalnum() or c in ".-_") for c in host)
    return (host, int(digits)) if named and 0 < len(host) <= MAX_HOST else None


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_ipv6(host: str) -> bool:
    return ":" in host and is_numeric(host)
