"""Which of the addresses that a pull may ask it asks next."""

from collections import deque
from collections.abc import Callable

from mpkv.control.destination.session import Failure, Phase, Session

Want = Callable[[str, float], Session | Failure]


def choose(sources: deque[str], want: Want, now: float) -> tuple[Session | None, Failure | None]:
    """The session to ask, whose address leaves `sources`: the first that is up, or else the
    first that may come up. Addresses that cannot be asked leave too; the second value says why
    the first of those before it cannot: what the ones behind it lack is for it to say."""
    why: Failure | None = None
    greeted: tuple[str, Session] | None = None
    for address in list(sources):
        session = want(address, now)
        if isinstance(session, Failure):
            sources.remove(address)
            if greeted is None:
                why = why or session
        elif session.phase is Phase.UP:
            sources.remove(address)
            return session, why
        elif greeted is None:
            greeted = (address, session)
    if greeted is None:
        return None, why
    sources.remove(greeted[0])
    return greeted[1], why
