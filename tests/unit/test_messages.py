"""Records of helpers that have gone mad raise nothing that their readers do not expect."""

import msgspec
import pytest

from mpkv.messages import (
    AddPeer,
    CancelPull,
    FromRegistration,
    InitiatorReady,
    KeyGroup,
    MissReason,
    PeerAdded,
    PeerFailed,
    Pull,
    Pulled,
    PullFailed,
    Read,
    ReadDone,
    ReadFailed,
    RemovePeer,
    SlotsReturned,
    TargetReady,
    ToControl,
    ToEngine,
    ToInitiator,
)

DEEP = b"\x91" * 100_000 + b"\xc0"

READERS = [
    (ToControl, Pull(1, "r", "p:1", (), b"", 0, 0.0, 0.0)),
    (ToControl, CancelPull(1)),
    (ToEngine, Pulled(1, b"", b"", 0.0, 0.0, 0.0)),
    (ToEngine, PullFailed(1, MissReason.ABORTED, "", False)),
    (ToEngine, SlotsReturned(1)),
    (ToInitiator, AddPeer("i", "a", b"", 0, 1, 1)),
    (ToInitiator, RemovePeer("i")),
    (ToInitiator, Read(1, "i", b"", b"")),
    (FromRegistration, TargetReady("a", b"", 0)),
    (FromRegistration, InitiatorReady("a")),
    (FromRegistration, PeerAdded("i", 0.0)),
    (FromRegistration, PeerFailed("i", "")),
    (FromRegistration, ReadDone(1, 0.0)),
    (FromRegistration, ReadFailed(1, "", False)),
    (KeyGroup, KeyGroup(b"", 1, 0)),
]


@pytest.mark.parametrize(("reader", "record"), READERS)
def test_a_record_that_nests_too_deeply_is_malformed(
    reader: type[msgspec.Struct], record: msgspec.Struct
) -> None:
    whole = msgspec.msgpack.encode(record)
    decoder = msgspec.msgpack.Decoder(reader)
    assert decoder.decode(whole) == record
    for fields in range(1, whole[0] - 0x90 + 1):
        values = [msgspec.Raw(msgspec.msgpack.encode(v)) for v in msgspec.msgpack.decode(whole)]
        values.insert(fields, msgspec.Raw(DEEP))
        with pytest.raises(msgspec.MsgspecError):
            decoder.decode(msgspec.msgpack.encode(values))
