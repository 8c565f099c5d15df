"""The result of loading a recording: the state of a cluster, and the exchanges outside of it."""

from __future__ import annotations

import uuid
from typing import Any

import attrs

from kproxy.replay.topics import ClusterState
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol import decode_request, decode_response

PartitionKey = tuple[str, int]
"""Topic and partition."""


@attrs.frozen
class Committed:
    """An offset that a group has committed."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@attrs.frozen
class CommittingGroups:
    """The groups that have committed offsets, by how they did."""

    in_transactions: set[str] = attrs.Factory(set)
    """In a transaction that was committed, with records or without."""
    plainly: set[str] = attrs.Factory(set)
    """In no transaction."""


@attrs.define(eq=False)
class Other:
    """An exchange of an API that the state does not model: its frames, decoded on access."""

    api_key: int
    api_version: int
    request_frame: bytes
    response_frame: bytes

    @property
    def request(self) -> Any:
        """The decoded body of the request."""
        return decode_request(self.request_frame).body

    @property
    def response(self) -> Any:
        """The decoded body of the response."""
        return decode_response(self.response_frame, self.api_key, self.api_version).body


@attrs.frozen
class RefusedBatch:
    """Produced bytes that were refused when they were recorded."""

    topic: str
    data: bytes
    error_code: int
    by_rule: bool
    """True if a fault rule had a part in it."""


@attrs.define(eq=False)
class Loaded:
    """The result of loading a recording."""

    cluster: ClusterState = attrs.Factory(ClusterState)
    committed: dict[str, dict[PartitionKey, Committed]] = attrs.Factory(dict)
    """Committed offsets at the beginning of the recording, by group."""
    groups: dict[str, str] = attrs.Factory(dict)
    """Kind of each recorded group: "classic" or "consumer"."""
    committing: CommittingGroups = attrs.Factory(CommittingGroups)
    produced: set[PartitionKey] = attrs.Factory(set)
    """Partitions to which clients produced."""
    unplaced: list[tuple[uuid.UUID, int, bytes]] = attrs.Factory(list)
    """Topic id, partition and bytes of produced batches whose offset is not recorded (acks=0)."""
    undecoded: list[Other] = attrs.Factory(list)
    """Produce requests that cannot be decoded, and that a broker took."""
    refused_batches: list[RefusedBatch] = attrs.Factory(list)
    refused: set[str] = attrs.Factory(set)
    """Topics for which a recorded Metadata response has an error."""
    others: dict[int, list[Other]] = attrs.Factory(dict)
    """Exchanges of APIs that `state` does not serve, by API key."""
    producer_id_max: int = -1
    exchanges: int = 0
    lacking: list[str] = attrs.Factory(list)
    """Lines for the user about parts that the recording lacks."""
    schemas: Schemas = attrs.Factory(Schemas)
    """The schemas that the recording tells."""
    schema_notes: list[dict[str, Any]] = attrs.Factory(list)
    """The notes that told them."""

    learned: list[str] = attrs.Factory(list)
    """Words (`ignored`) for what varies, as the recording says."""

    def __getstate__(self) -> dict[str, Any]:
        names = [each.name for each in attrs.fields(Loaded)]
        return {name: getattr(self, name) for name in names if name != "schemas"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)
        for body in self.schema_notes:
            self.schemas.note(body)

    def note_schema(self, body: dict[str, Any]) -> None:
        """Take the body of a note of a schema."""
        self.schemas.note(body)
        self.schema_notes.append(body)
