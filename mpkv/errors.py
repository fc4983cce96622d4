"""The closed set of errors that mpkv raises.

Each message says what was expected, what was found and what to do about it.
"""


class MpkvError(Exception):
    """Base of every error mpkv raises on purpose."""


class ConfigRefused(MpkvError):
    """A cluster file or a setting cannot be used; names the file and the key."""


class SegmentRefused(MpkvError):
    """A shared-memory segment is not what its reader was built for."""


class RingClaimed(MpkvError):
    """A ring's producer or consumer side already has an owner."""


class HelperFailed(MpkvError):
    """A helper process did not start, or did not do what it was asked."""


class WireRefused(MpkvError):
    """A message from a peer is malformed, too long or out of order."""
