"""Broker addresses in responses: finding them, replacing them.

Every struct of a client-facing response that has a node id, a host and a port is an address
(Metadata, FindCoordinator, DescribeCluster and the NodeEndpoints of KIP-951); they are found in
the schema, never in a list. Node ids, racks and the cluster id stay as they are::

    frame ─▶ find ─▶ [BrokerAddress …] ─▶ replace(address of each node) ─▶ splices ─▶ frame

A frame is never encoded again: a splice replaces the bytes of a host or a port and corrects the
sizes around them. Where a frame has begun to leave before its addresses were seen (a Fetch of
many megabytes, whose endpoints come after the records), `replace_tail` changes them without
changing the length.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Generator, Sequence

import attrs

from kproxy.exchange.entries import Buffer, Splice, apply_splices
from kproxy.exchange.meanings import PREDICATES, RECORDS
from kproxy.proxy.actions import Address
from kproxy.wire.protocol import ProtocolError, codec, schema, wire
from kproxy.wire.protocol.select import select

Locate = Callable[[bytes, int], tuple[list[tuple[int, int, int, int]], int]]

_CLIENT_FACING = "broker"
"""The listener, in Kafka's definitions, whose APIs clients use."""

_NODE_ID_NAMES = ("node_id", "broker_id")
_PADDING_TAGS = (2_097_151, 16_383, 127, 2_097_150, 16_382, 126)
"""Tag numbers that Kafka does not use, three, two and one byte long, and spare ones."""


@attrs.frozen(eq=False)
class AddressFields:
    """The fields of one version of a response that hold addresses."""

    body: int
    """The offset of the body if the response header has no tagged fields: size, correlation id and,
    in flexible versions, a count of 0."""
    locate: Locate
    field: str
    """The top-level field that holds the addresses."""
    tagged: bool
    """That field is a tagged one."""
    compact: bool
    """Strings have compact lengths."""
    port_format: str
    behind_records: bool
    """A field of unbounded size comes before the addresses."""
    message: schema.Message
    api_version: int
    paths: tuple[str, ...]
    """The paths of node id, host and port."""

    @functools.cached_property
    def locate_tail(self) -> Locate:
        """The `locate` for a tail: from `field` on, or from the tagged section that holds it."""
        return codec.locate(self.message, self.api_version, self.paths, first=self.field)

    @functools.cached_property
    def locate_list(self) -> Locate:
        """The function that finds the whole of `field` in a tail."""
        return codec.locate(self.message, self.api_version, (self.field,), first=self.field)


@attrs.frozen
class BrokerAddress:
    """One address as the broker sent it, and where its bytes are."""

    node_id: int
    host: str
    port: int
    host_span: tuple[int, int]
    port_span: tuple[int, int]
    tagged_span: tuple[int, int, int] | None
    """The tagged field around it, if any: start of its size, start and end of its content."""

    @property
    def usable(self) -> bool:
        """True if a client could connect to it (an absent coordinator is -1, "", -1)."""
        return self.node_id >= 0 and self.host != "" and self.port > 0


@functools.lru_cache(maxsize=4096)
def address_fields(api_key: int, api_version: int) -> AddressFields | None:
    """Return the address fields of a response; None if it has none."""
    request = schema.message(api_key, schema.REQUEST)
    message = schema.message(api_key, schema.RESPONSE)
    if request is None or message is None or api_version not in message.versions:
        return None
    if _CLIENT_FACING not in request.listeners:
        return None
    place = next((p for p in select(message, _is_host).places if p.in_version(api_version)), None)
    if place is None:
        return None
    beside = {field.name: field for field in place.beside if api_version in field.versions}
    node_id = next((name for name in _NODE_ID_NAMES if name in beside), None)
    if node_id is None or "port" not in beside:
        return None
    top, port = place.fields[0], beside["port"]
    above = place.path.removesuffix("host")
    paths = (above + node_id, place.path, above + "port")
    tagged = top.tag is not None and api_version in top.tagged_versions
    return AddressFields(
        body=8 + codec.response_header_version(api_key, api_version),
        # Not further than the last address: the bytes behind need not even be well formed.
        locate=codec.locate(message, api_version, paths, whole=False),
        field=top.name,
        tagged=tagged,
        compact=api_version in message.flexible_versions,
        port_format=">H" if port.type == "uint16" else ">i",
        behind_records=_has_records_before(message, top, api_version, tagged),
        message=message,
        api_version=api_version,
        paths=paths,
    )


def _is_host(field: schema.Field, beside: tuple[schema.Field, ...]) -> bool:
    """Return whether a field has the host of a broker."""
    names = {other.name for other in beside}
    return field.name == "host" and "port" in names and not names.isdisjoint(_NODE_ID_NAMES)


def _has_records_before(
    message: schema.Message, top: schema.Field, version: int, tagged: bool
) -> bool:
    """Return whether records stand before a field; tagged fields stand behind all others."""
    order = {field.name: index for index, field in enumerate(message.fields)}
    return any(
        tagged or order[place.fields[0].name] < order[top.name]
        for place in select(message, PREDICATES[RECORDS]).places
        if place.in_version(version)
    )


def find_all(frame: bytes, api_key: int, api_version: int) -> list[BrokerAddress]:
    """Return the addresses in any response.

    Raises:
        ProtocolError: the body is not what its schema says.
    """
    fields = address_fields(api_key, api_version)
    body = codec.response_body(frame, api_key, api_version)
    return find(frame, fields, body) if fields else []


def find(frame: bytes, fields: AddressFields, body: int) -> list[BrokerAddress]:
    """Return the addresses in a response whose body starts at offset `body`.

    Raises:
        ProtocolError: the body is not what its schema says.
    """
    return _read_addresses(frame, fields.locate(frame, body)[0], fields)


def _read_addresses(data: bytes, spans, fields: AddressFields) -> list[BrokerAddress]:
    found = []
    inside = None
    node_id = host = port = None
    for index, start, content, end in spans:
        if index < 0:
            inside = (start, content, end)
            continue
        if index == 0:
            node_id = start
        elif index == 1:
            host = (start, content, end)
        else:
            port = (start, end)
        if node_id is None or host is None or port is None:
            continue
        text = data[host[1] : host[2]].decode("utf-8", "surrogateescape")
        (number,) = struct.unpack_from(">i", data, node_id)
        (port_number,) = struct.unpack_from(fields.port_format, data, port[0])
        around = inside if inside and port[0] < inside[2] else None
        found.append(BrokerAddress(number, text, port_number, (host[0], host[2]), port, around))
        node_id = host = port = None
    return found


def splices(
    found: list[BrokerAddress], advertised: Callable[[int], Address], fields: AddressFields
) -> tuple[Splice, ...]:
    """Return the splices that make each usable address `advertised(node_id)`, in order."""
    changes: list[Splice] = []
    grown: dict[tuple[int, int, int], int] = {}
    for address in found:
        if not address.usable:
            continue
        host, port = advertised(address.node_id)
        new_host = _encode_string(host, fields.compact)
        start, end = address.host_span
        changes.append((start, end - start, new_host))
        start_port, end_port = address.port_span
        new_port = struct.pack(fields.port_format, port)
        changes.append((start_port, end_port - start_port, new_port))
        if address.tagged_span:
            growth = len(new_host) - (end - start)
            grown[address.tagged_span] = grown.get(address.tagged_span, 0) + growth
    for (start, content, end), growth in grown.items():
        changes.append((start, content - start, wire.write_varint(end - content + growth)))
    return tuple(sorted(changes))


def apply(frame: bytes, changes: Sequence[Splice]) -> bytes:
    """Return the frame with the splices applied and its size prefix corrected."""
    body = b"".join(apply_splices(frame, changes, 4))
    return struct.pack(">i", len(body)) + body


def difference(before: bytes, after: bytes) -> tuple[Splice, ...]:
    """Return the splice that makes one whole frame another, from behind the size prefix on."""
    if before == after:
        return ()
    shorter = min(len(before), len(after))
    start = 4 + _common_prefix_bytes(before[4:shorter], after[4:shorter])
    longest = shorter - start
    end = _common_prefix_bytes(
        before[len(before) - longest :][::-1], after[len(after) - longest :][::-1]
    )
    return ((start, len(before) - end - start, after[start : len(after) - end]),)


def _common_prefix_bytes(one: bytes, other: bytes) -> int:
    """Return how many bytes two strings have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Tail:
    """The end of a response that streams past: walked until its addresses, then held back."""

    def __init__(
        self, fields: AddressFields, walk: Generator[None, Buffer, int], body: int
    ) -> None:
        self.fields = fields
        self.pieces: list[Buffer] = []
        self.held_bytes = 0
        """The size of the pieces."""
        self.offset: int | None = None
        """The offset in the frame at which the tail starts; None until it is found."""
        self._walk = walk
        self._body = body
        self._seen_bytes = 0
        next(walk)

    def bytes_to_forward(self, piece: Buffer) -> int:
        """Take the next bytes of the frame; return how many of them may leave at once.

        Raises:
            ProtocolError: the body is not what its schema says.
        """
        start = self._seen_bytes
        self._seen_bytes += len(piece)
        offset = self.offset
        if offset is None:
            try:
                self._walk.send(memoryview(piece)[max(0, self._body - start) :])
                return len(piece)
            except StopIteration as found:
                offset = self.offset = self._body + found.value
        passed = max(0, min(len(piece), offset - start))
        self.pieces.append(piece[passed:])
        self.held_bytes += len(piece) - passed
        return passed


def tail(front: bytes, api_key: int, api_version: int) -> Tail | None:
    """Return the tail of a response that streams past and begins with `front`.

    None if the response must be held whole.
    """
    fields = address_fields(api_key, api_version)
    message = schema.message(api_key, schema.RESPONSE)
    if fields is None or message is None:
        return None
    try:
        body = codec.response_body(front, api_key, api_version)
    except ProtocolError:
        return None  # the header is not whole
    return Tail(fields, codec.seek(message, api_version, fields.field), body)


def find_in_tail(tail: bytes, fields: AddressFields) -> list[BrokerAddress]:
    """Return the addresses in the end of a response, from `fields.field` on.

    Raises:
        ProtocolError: the tail is not what its schema says.
    """
    return _read_addresses(tail, fields.locate_tail(tail, 0)[0], fields)


def replace_tail(
    tail: bytes,
    found: list[BrokerAddress],
    advertised: Callable[[int], Address],
    fields: AddressFields,
) -> bytes:
    """Return the tail with our addresses in it, at exactly the same length.

    Where our addresses are shorter, an unknown tagged field fills the gap; where they are longer,
    the list is left out, and the client asks for metadata instead of taking the hint (KIP-951
    makes it optional).

    Raises:
        ProtocolError: the tail is not what its schema says.
    """
    changes = splices(found, advertised, fields)
    if not changes:
        return tail
    end = fields.locate_tail(tail, 0)[1]
    replaced = b"".join(apply_splices(tail[:end], changes))
    for candidate in (replaced, _drop_list(tail[:end], fields)):
        padded = _pad(candidate, fields, end)
        if padded is not None:
            return padded + tail[end:]
    raise ProtocolError("no room to replace broker addresses in place", field=fields.field)


def _drop_list(tail: bytes, fields: AddressFields) -> bytes:
    if not fields.tagged:
        return b"\x01" + tail[_section_start(tail, fields) :]
    return wire.write_tags([], tuple(each for each in _read_tags(tail, 0) if each[0]))


def _section_start(tail: bytes, fields: AddressFields) -> int:
    """Return the offset of the tagged section in a tail that starts with the address list."""
    return 0 if fields.tagged else fields.locate_list(tail, 0)[0][0][3]


def _pad(tail: bytes, fields: AddressFields, length: int) -> bytes | None:
    """Return the tail filled up to `length` by an unknown tagged field, or None if that fails."""
    gap = length - len(tail)
    if gap == 0:
        return tail
    section = _section_start(tail, fields)
    tags = _read_tags(tail, section)
    used = {number for number, _ in tags}
    for number in _PADDING_TAGS:
        if number in used:
            continue
        for size_bytes in range(1, 6):
            content = gap - len(wire.write_varint(number)) - size_bytes
            if content < 0 or len(wire.write_varint(content)) != size_bytes:
                continue
            padded = tail[:section] + wire.write_tags([(number, bytes(content))], tags)
            if len(padded) == length:
                return padded
    return None


def _read_tags(data: bytes, position: int) -> wire.Tags:
    return wire.tags(data, position + 1, data[position])[0]


def _encode_string(text: str, compact: bool) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return (wire.write_varint(len(data) + 1) if compact else struct.pack(">h", len(data))) + data
