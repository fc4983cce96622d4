"""Counters: one page per process role, written by that process and read by any."""

import zlib
from typing import Final

from mpkv.memory import _native

# Positions in a page follow from these tuples. A ledger carries their digest, so that
# processes of different builds do not read one another's counters under wrong names.
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "engine": (
        "pulls",
        "pulls_hit",
        "blocks_pulled",
        "blocks_used",
        "blocks_stored",
        "blocks_evicted",
        "miss_not_held",
        "miss_refused",
        "miss_timed_out",
        "miss_lease_lost",
        "miss_transfer_failed",
        "miss_no_space",
        "miss_queue_full",
        "miss_peer_down",
        "miss_helpers_down",
        "miss_aborted",
        "miss_cache_reset",
        "miss_corrupted",
        "helpers_restarted",
    ),
    "control": (
        "beats",
        "hellos",
        "hellos_refused",
        "hellos_too_early",
        "pings",
        "asks",
        "grants",
        "grants_empty",
        "blocks_granted",
        "denied_unknown_session",
        "denied_content",
        "denied_target_down",
        "denied_quota",
        "denied_malformed",
        "leases_confirmed",
        "leases_released",
        "leases_expired",
        "leases_dropped",
        "unconfirmed_expired",
        "unconfirmed_epoch",
        "unconfirmed_content",
        "unconfirmed_target_down",
        "unconfirmed_pins_lost",
        "unconfirmed_unchecked",
        "unconfirmed_unknown",
        "dropped_malformed",
        "dropped_foreign",
        "dropped_unknown_session",
        "dropped_stale",
        "dropped_duplicate",
        "dropped_unsent",
        "dropped_by_fault",
        "floods_cut",
        "peers_connected",
        "peers_interrupted",
        "peers_refused",
        "peers_lost",
        "pulls_started",
        "pulls_done",
        "blocks_pulled",
        "reads",
        "targets_ready",
        "initiators_ready",
        "slots_quarantined",
        "initiators_recycled",
        "initiators_hung",
        "targets_hung",
        "missed_not_held",
        "missed_refused",
        "missed_timed_out",
        "missed_lease_lost",
        "missed_transfer_failed",
        "missed_no_space",
        "missed_queue_full",
        "missed_peer_down",
        "missed_helpers_down",
        "missed_aborted",
        "missed_cache_reset",
        "missed_corrupted",
        "missed_content",
        "blocks_hashed",
        "blocks_checked",
        "blocks_corrupted",
    ),
    "target": ("beats",),
    "initiator": (
        "beats",
        "controls_hung",
        "peers_added",
        "peers_failed",
        "peers_removed",
        "reads",
        "reads_failed",
        "reads_refused",
        "blocks_read",
        "bytes_read",
        "records_dropped",
    ),
}
_ROLES: Final = list(NAMES)
assert all(len(names) <= _native.COUNTERS_PER_ROLE for names in NAMES.values())

NAMES_DIGEST: Final = zlib.crc32(repr(NAMES).encode())


class Counters:
    """Counters of one role; they only grow, from 0 when the ledger is made."""

    __slots__ = ("_add", "_ledger", "_positions", "_role")

    def __init__(self, ledger: _native.LedgerCore, role: str) -> None:
        self._ledger = ledger
        self._add = ledger.counter_add
        self._positions = {name: position for position, name in enumerate(NAMES[role])}
        self._role = _ROLES.index(role)

    def add(self, name: str, n: int = 1) -> None:
        """Add `n`, not negative. An unknown name is a KeyError."""
        self._add(self._role, self._positions[name], n)

    def value(self, name: str) -> int:
        """One counter. An unknown name is a KeyError."""
        return self._ledger.counter_read(self._role, self._positions[name])

    def read(self) -> dict[str, int]:
        """All counters of the role, each read at its own moment."""
        read = self._ledger.counter_read
        return {name: read(self._role, position) for name, position in self._positions.items()}
