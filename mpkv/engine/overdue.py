"""When a pull without an answer means a control plane that hangs."""

from mpkv.engine.booked_pull import Record
from mpkv.engine.supervisor import Link

# After its deadline.
OVERDUE_S = 2.0
# What a machine with much else to do may need to start a control plane.
START_S = 30.0
# A pause of the whole machine ends for the engine first, maybe.
AGAIN_S = 0.2


class Overdue:
    """Looked at with the oldest open pull, and only when no answer waits to be read."""

    def __init__(self) -> None:
        self._since = 0.0

    def look(self, record: Record | None, link: Link, now: float) -> bool:
        """Whether the control plane hangs: one that lives answers every pull by its deadline."""
        if record is None or now <= max(record.deadline, link.since + START_S) + OVERDUE_S:
            self._since = 0.0
            return False
        self._since = self._since or now
        return now > self._since + AGAIN_S
