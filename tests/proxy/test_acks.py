"""Whether a Produce request is answered stands in its acks."""

from __future__ import annotations

import pytest

from kproxy.exchange.entries import NO_RESPONSE
from kproxy.wire.protocol import decode_request
from tests.proxy.playing import Player, produce


@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 13])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks_are_read_in_every_version(version: int, acks: int) -> None:
    player = Player()
    player.connect()
    player.client(produce(acks, version))
    assert bool(player.frames()[0].flags & NO_RESPONSE) == (acks == 0)


def test_acks_are_read_anew_where_a_client_changes_its_version() -> None:
    """What are acks of -1 in version 2 is the length of no transactional id in version 3."""
    player = Player()
    player.connect()
    player.client(produce(-1, 2))
    player.client(produce(0, 3))
    assert [bool(frame.flags & NO_RESPONSE) for frame in player.frames()] == [False, True]


@pytest.mark.parametrize("cut", [16, 5000])
def test_acks_are_not_read_from_the_records_of_a_client_without_an_id(cut: int) -> None:
    """Its length is -1, and as an unsigned number it leads far into the records."""
    whole = produce(-1, size=70_000)
    client_id_bytes = int.from_bytes(whole[12:14])
    anonymous = whole[4:12] + b"\xff\xff" + whole[14 + client_id_bytes :]
    anonymous = len(anonymous).to_bytes(4) + anonymous
    player = Player()
    player.connect()
    player.client(anonymous[:cut])
    player.client(anonymous[cut:])
    assert not player.frames()[0].flags & NO_RESPONSE
    assert decode_request(anonymous).body.acks == -1
