"""Names of topics: of their ids, and out of the structs that stand around a field.

Newer versions carry only the id of a topic (Fetch 13, Produce 13, …). `TopicNames` knows the names
that a recording has told: in its notes, and in responses that have both::

    topic_id note ───────────▶ TopicNames ─▶ name of an id
    Metadata and its like ───▶     └ looked into when a name is missing, not before
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import attrs

from kproxy.exchange import meanings
from kproxy.exchange.beginnings import Beginnings
from kproxy.exchange.entries import Frame
from kproxy.exchange.meanings import is_named_topic_id, is_own_topic_name, tells_topic_ids
from kproxy.exchange.unpacking import Unpacking
from kproxy.wire import protocol
from kproxy.wire.payloads.schemas import NOTE, Schemas
from kproxy.wire.protocol import ProtocolError, schema
from kproxy.wire.protocol.plain import parse_uuid, uuid_text
from kproxy.wire.protocol.schema import Field
from kproxy.wire.protocol.select import select_of

_NO_ID = bytes(16)
_UNREAD_MAX = 16
_UNOPENED_MAX = 10_000


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


# ── topic ids ────────────────────────────────────────────────────────────────────────────────


NAMING = frozenset(("topic_id", "fault_rules", "fault", "session_refused", NOTE))
"""The events whose notes tell names, and schemas of records."""

_DELAYS = frozenset(("latency",))
"""The actions that delay, whatever another rule does to the same exchange."""


@attrs.define(eq=False)
class TopicNames:
    """The names of topic ids, of fault rules and of the recording that one stream of entries has
    told so far, the schemas of its records, and what begins in it.

    Memory is bounded by the number of topics; only a few responses are kept unread.
    """

    reads_ahead: bool = True
    """False makes `offer` forget the oldest unread response instead of reading it when there are
    many: responses must not be decoded on an event loop."""
    recording: str = ""
    """The name of the recording, where several are read; "" otherwise."""
    beginnings: Beginnings = attrs.field(factory=Beginnings, init=False)
    schemas: Schemas = attrs.field(factory=Schemas)
    unpacking: Unpacking = attrs.field(factory=Unpacking.endless)
    """What its records may unpack to: the reader's, where all of a recording is read."""
    _names: dict[bytes, str] = attrs.field(factory=dict, init=False)
    _unread: list[Frame] = attrs.field(factory=list, init=False)
    _unopened: deque[Callable[[], Frame | None]] = attrs.field(
        factory=lambda: deque(maxlen=_UNOPENED_MAX), init=False
    )
    _noted: bool = attrs.field(default=False, init=False)
    _rules: dict[int, str] = attrs.field(factory=dict, init=False)
    _delaying: dict[int, bool] = attrs.field(factory=dict, init=False)
    """Fault rule → whether it delays only, as far as it has fired."""

    def __len__(self) -> int:
        """Return the number of names and unread responses that are kept."""
        return len(self._names) + len(self._unread)

    def note(self, body: dict[str, Any]) -> None:
        """Take the body of a note of `NAMING`."""
        self.schemas.note(body)
        for rule in [{**body, "name": body.get("rule")}, *(body.get("rules") or ())]:
            match rule:
                case {"fault_id": int(fault_id), "name": str(name)}:
                    self._rules[fault_id] = name
                case _:
                    pass
        match body:
            case {"event": "fault", "fault_id": int(fault_id), "action": str(action)}:
                self._delaying[fault_id] = action in _DELAYS
            case _:
                pass
        topic_id, topic = body.get("topic_id"), body.get("topic")
        if isinstance(topic_id, str) and isinstance(topic, str):
            try:
                self._names[parse_uuid(topic_id).bytes] = topic
            except ValueError:
                return
            self._noted = True

    @property
    def wants_any(self) -> bool:
        """True while no note has named a topic id: responses may name some."""
        return not self._noted

    def wants(self, api_key: int, api_version: int) -> bool:
        """Return whether a response of this API and version may name topic ids that no note
        does."""
        return not self._noted and tells_topic_ids(api_key, api_version)

    def rule(self, fault_id: int) -> str:
        """Return the name of a fault rule; its number if the name is not known."""
        return self._rules.get(fault_id, str(fault_id))

    def delays(self, fault_id: int) -> bool | None:
        """Return whether a fault rule delays and does nothing else; None if that is not known.
        Whatever else happened to an exchange, only one of its rules did."""
        return self._delaying.get(fault_id)

    def offer(self, response: Frame) -> None:
        """Take a whole response; it is read when a name is missing, if there are no notes."""
        if not self.wants(response.api_key, response.api_version):
            return
        self._unread.append(response)
        if len(self._unread) >= _UNREAD_MAX:
            if self.reads_ahead:
                self._read()
            else:
                del self._unread[0]

    def offer_unopened(self, opener: Callable[[], Frame | None]) -> None:
        """Take a function that opens a whole response; it is called when a name is missing."""
        self._unopened.append(opener)

    def learn(self, body: Any) -> None:
        """Learn the names that stand beside ids in a body."""
        named = select_of(type(body), is_named_topic_id)
        for _, topic_id, within in named.found(body) if named.places else ():
            self.learn_name(topic_id.bytes, own_topic_name(within[-1]))

    def learn_name(self, topic_id: bytes, name: str) -> None:
        """Learn the name of an id; an empty name and an id of zeros are ignored."""
        if name and topic_id != _NO_ID:
            self._names[topic_id] = name

    def name(self, topic_id: UUID | None) -> str | None:
        """Return the name of a topic; None if it is not known, or if there is no id."""
        return None if topic_id is None else self._name(topic_id.bytes)

    def text(self, topic_id: UUID) -> str:
        """Return the name of a topic; if it is not known, its id as Kafka prints it."""
        return self.name(topic_id) or uuid_text(topic_id)

    def _name(self, topic_id: bytes) -> str | None:
        name = self._names.get(topic_id)
        if name is None and (self._unread or self._unopened):
            self._read()
            name = self._names.get(topic_id)
        return name

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        opened = [opener() for opener in self._unopened]
        self._unopened.clear()
        for frame in [*unread, *(frame for frame in opened if frame is not None)]:
            try:
                response = protocol.decode_response(frame.data, frame.api_key, frame.api_version)
            except ProtocolError:
                continue
            self.learn(response.body)


# ── out of bodies ────────────────────────────────────────────────────────────────────────────


def topic_of(within: tuple[Any, ...], names: TopicNames) -> str:
    """Return the topic that the innermost of these structs names; "" if none does."""
    for struct in reversed(within):
        name = own_topic_name(struct)
        if name:
            return name
        topic_id = getattr(struct, "topic_id", None)
        if isinstance(topic_id, UUID) and topic_id.int:
            return names.text(topic_id)
    return ""


def partition_of(struct: Any) -> int:
    """Return the number of a struct's partition; -1 if it has none."""
    name = _partition_field(type(struct))
    return -1 if name is None else getattr(struct, name)


@functools.cache
def _partition_field(struct: type) -> str | None:
    fields = _fields(struct)
    is_partition = meanings.PREDICATES[meanings.PARTITION]
    numbers = (field for field in fields if is_partition(field, fields) and not field.is_array)
    return next((field.name for field in numbers), None)


@functools.cache
def _fields(struct: type) -> tuple[Field, ...]:
    message, _, name = struct.__qualname__.partition(".")
    found = schema.named(message)
    return found.structs[name] if name else found.fields


@functools.cache
def _topic_name_fields(struct: type) -> tuple[str, ...]:
    return tuple(f.name for f in _fields(struct) if is_own_topic_name(f))


def own_topic_name(struct: Any) -> str:
    """Return the topic's name in one of a struct's own fields; "" if there is none."""
    for name in _topic_name_fields(type(struct)):
        if value := getattr(struct, name):
            return value
    return ""
