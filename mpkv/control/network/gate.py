"""Shuts the listening socket while as many peers are connected as there is room for.

libzmq accepts whatever comes. When that fails for want of descriptors it tries again at once,
for ever, and this process cannot take a new initiator's descriptors either.
"""

import contextlib
import ctypes
import os
import socket
import struct

from mpkv.control.network.limits import max_connections, spare_descriptor

# Opens again when so many are free.
SLACK = 8
# Of connections made and not accepted yet; beyond, a peer tries again after a second.
BACKLOG = 64

_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
# One instruction of classic BPF: return 0, which drops the packet.
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)


class Gate:
    """Over libzmq's listening socket `fd`, which stays libzmq's."""

    def __init__(self, fd: int) -> None:
        self._listener = socket.socket(fileno=os.dup(fd))
        self._spare = spare_descriptor()
        self._connections: set[int] = set()
        self.shut = False

    def accepted(self, fd: int) -> bool:
        """Returns True if that was one too many, and the gate is shut now."""
        self._connections.add(fd)
        if self.shut or len(self._connections) < max_connections():
            return False
        self._shut()
        return True

    def ended(self, fd: int) -> None:
        self._connections.discard(fd)
        if self.shut and len(self._connections) <= max_connections() - SLACK:
            self.shut = False
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def exhausted(self) -> None:
        """No descriptor was left to accept with: turn away what waits to be accepted."""
        if not self.shut:
            self._shut()
        os.close(self._spare)
        with contextlib.suppress(OSError):
            for _ in range(2 * BACKLOG):
                # libzmq's listening socket does not block.
                self._listener.accept()[0].close()
        self._spare = spare_descriptor()

    def close(self) -> None:
        self._listener.close()
        os.close(self._spare)

    def _shut(self) -> None:
        """Peers that connect now are not answered, and try again by themselves."""
        self.shut = True
        instruction = ctypes.create_string_buffer(_DROP)
        program = struct.pack("HP", 1, ctypes.addressof(instruction))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
