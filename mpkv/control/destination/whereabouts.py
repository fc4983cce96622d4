"""Where a peer's name leads, and when it is looked up again.

A peer that comes back under its name may be at another address, and its old one may be
silent, refuse, or be somebody else's by now. So whenever a peer does not answer, what was
known of its name is doubted.
"""

import math

from mpkv.control.destination.session import NameSource, Phase, Session
from mpkv.control.network.addresses import join_address, split_address
from mpkv.messages import MissReason

# While nothing answers the name is looked up again so often, and waited for at most so long.
RENEW_S = 0.5
# Peers are pinged every second, and should have answered by then.
UNANSWERED_S = 1.5
# For so long after a pull was refused it matters where else its peer could be.
ASKED_S = 5.0


class Whereabouts:
    """Looks sessions' names up; never waits."""

    def __init__(self, names: NameSource) -> None:
        self._names = names

    def endpoint(self, session: Session, waited_s: float, now: float) -> str | OSError | None:
        """Where to connect, `waited_s` after the try began; why that is nowhere; or None while
        the name is being looked up."""
        host, port = split_address(session.address) or ("", 0)
        found: str | OSError | None = None
        if session.doubted_at <= now:
            found = self._names.renewed(host, session.doubted_at, now)
            if found is None and waited_s < RENEW_S:
                return None
        if not isinstance(found, str):
            # Of a resolver that does not answer, what it said before.
            found = self._names.find(host, now)
        return join_address(found, port) if isinstance(found, str) else found

    def moved(self, session: Session, now: float) -> bool:
        """Whether the name leads elsewhere than the session, whose peer does not answer."""
        up = session.phase is Phase.UP
        answers = up and now - session.heard_at <= UNANSWERED_S
        if up and not answers:
            session.doubted_at = min(session.doubted_at, now)
        if now < session.doubted_at or not (session.route or _refused(session, now)):
            return False
        host, port = split_address(session.address) or ("", 0)
        found = self._names.renewed(host, session.doubted_at, now)
        if found is None:
            return False
        session.doubted_at = math.inf if answers else now + RENEW_S
        return isinstance(found, str) and join_address(found, port) != session.endpoint


def _refused(session: Session, now: float) -> bool:
    """By whoever is at the address now. Other failures are followed by another try soon."""
    wanted = session.configured or now - session.asked_at < ASKED_S
    idle = session.phase is Phase.IDLE
    return idle and wanted and session.failure.reason is MissReason.REFUSED
