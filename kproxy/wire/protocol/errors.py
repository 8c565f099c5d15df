"""Errors: bytes that are not Kafka's protocol, and Kafka's own error codes.

`ProtocolError` is the only exception that this room raises about bytes that it was given.
Error codes that `codes` does not have are passed on and shown as numbers.
"""

from __future__ import annotations

from kproxy.wire.protocol import codes


class ProtocolError(Exception):
    """Bytes that are not what they claim to be, or a value that a message cannot carry.

    `str()` is one line that says what, where and of which API. It never contains payload bytes.
    """

    def __init__(
        self,
        what: str,
        *,
        api_key: int | None = None,
        api_version: int | None = None,
        offset: int | None = None,
        field: str | None = None,
        message: str | None = None,
        truncated: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        """The mistake in words."""
        self.api_key = api_key
        self.api_version = api_version
        self.offset = offset
        """The place of the mistake, in bytes from the start of the data."""
        self.field = field
        """The field's dotted path, e.g. "topics.partitions.error_code"."""
        self.message = message
        """The name of the message, e.g. "MetadataResponse"."""
        self.truncated = truncated
        """True if the data ended too early, so that more bytes could make it valid."""

    def __str__(self) -> str:
        name = self.message or (None if self.api_key is None else f"api key {self.api_key}")
        place = [] if name is None else [name]
        if self.api_version is not None:
            place.append(f"v{self.api_version}")
        if self.field is not None:
            place.append(self.field)
        if self.offset is not None:
            place.append(f"at offset {self.offset}")
        return f"{' '.join(place)}: {self.what}" if place else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.what, {k: v for k, v in self.__dict__.items() if k != "what"})


def _rebuild(what: str, attributes: dict[str, object]) -> ProtocolError:
    error = ProtocolError(what)
    error.__dict__.update(attributes)
    return error


CODES: dict[str, int] = {name: code for name, code in vars(codes).items() if isinstance(code, int)}
"""Kafka's name → code."""

_RETRIABLE = """
CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER
REQUEST_TIMED_OUT REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS
COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND
NOT_CONTROLLER CONCURRENT_TRANSACTIONS KAFKA_STORAGE_ERROR FETCH_SESSION_ID_NOT_FOUND
INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
OFFSET_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE
ELECTION_NOT_NEEDED UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED UNKNOWN_TOPIC_ID
INCONSISTENT_TOPIC_ID FETCH_SESSION_TOPIC_ID_ERROR SHARE_SESSION_NOT_FOUND
INVALID_SHARE_SESSION_EPOCH SHARE_SESSION_LIMIT_REACHED
"""
ERRORS = {code: (name, name in _RETRIABLE.split()) for name, code in CODES.items()}
"""Code → Kafka's name and whether clients retry."""


def error_name(code: int) -> str:
    """Return Kafka's name of an error code; UNKNOWN_ERROR_CODE_<n> for one that the table lacks."""
    known = ERRORS.get(code)
    return known[0] if known else f"UNKNOWN_ERROR_CODE_{code}"


def error_code(name: str) -> int | None:
    """Return the code of an error name, e.g. "NOT_LEADER_OR_FOLLOWER" → 6; None if there is
    none."""
    return CODES.get(name)


def is_retriable(code: int) -> bool:
    """Return whether Kafka's clients retry after this error; False for codes that the table
    lacks."""
    known = ERRORS.get(code)
    return known is not None and known[1]
