"""What a recording gives: the state of a cluster, and what is beside it."""

from __future__ import annotations

from typing import Any

import attrs

from kproxy.protocol import decode_request, decode_response
from kproxy.replay.topics import ClusterState

PartitionKey = tuple[str, int]
"""Topic and partition."""


@attrs.frozen
class Committed:
    """An offset that a group has committed."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@attrs.define(eq=False)
class Other:
    """An exchange that no state is made of: its frames, decoded when they are asked for."""

    api_key: int
    api_version: int
    request_frame: bytes
    response_frame: bytes

    @property
    def request(self) -> Any:
        """The request's body."""
        return decode_request(self.request_frame).body

    @property
    def response(self) -> Any:
        """The response's body."""
        return decode_response(self.response_frame, self.api_key, self.api_version).body


@attrs.define(eq=False)
class Loaded:
    """What a recording gives."""

    cluster: ClusterState = attrs.Factory(ClusterState)
    committed: dict[str, dict[PartitionKey, Committed]] = attrs.Factory(dict)
    """By group: where it stood when the recording began."""
    groups: dict[str, str] = attrs.Factory(dict)
    """Every group that was seen: "classic" or "consumer"."""
    produced: set[PartitionKey] = attrs.Factory(set)
    """Partitions to which records were seen being produced."""
    unplaced: list[tuple[str, int, bytes]] = attrs.Factory(list)
    """Batches that were produced without the recording saying where they went (acks=0)."""
    refused: set[str] = attrs.Factory(set)
    """Topics of which a client was told an error when it asked where they are."""
    others: dict[int, list[Other]] = attrs.Factory(dict)
    """By api key, what `state` does not serve."""
    producer_id_max: int = -1
    exchanges: int = 0
    lacking: list[str] = attrs.Factory(list)
    """What the recording does not have, one line each, for a person."""
