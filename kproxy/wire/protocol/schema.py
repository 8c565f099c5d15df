"""The messages of Kafka as a table: `messages.txt`, read lazily, and what it means per version.

::

    messages.txt ──▶ Message (fields over all versions) ──▶ Layout (one version, ready to compile)
        index: one cheap pass         parsed on first use          cached by the codec

The table holds one line per field; its own head explains the columns. It is written by
`kproxy.wire.protocol.generate` and by nothing else. A definition of (ApiKey, direction, version) is
Kafka 4.4.0's where that release knows the version, else 3.9.2's.

`coordinator_records.txt` is a second table, of the same form: the keys and values of the records
that Kafka's coordinators keep in topics of their own. It is read when the first of them is asked
for.

Invariants: a `Message` never changes after it was parsed; a `Layout` is one definition of one
version in wire order, so that decode, encode, locate and seek are compiled from the same facts.
"""

from __future__ import annotations

import functools
import os
import uuid
from typing import Any

import attrs

REQUEST = "request"
RESPONSE = "response"
HEADER = "header"
DATA = "data"
RECORD_KEY = "coordinator-key"
RECORD_VALUE = "coordinator-value"

MESSAGES_TABLE = "messages.txt"
RECORDS_TABLE = "coordinator_records.txt"

NO_UUID = uuid.UUID(int=0)

Versions = tuple[int, ...]
"""Every version, ascending; () is none."""

FIXED_WIDTHS = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
"""Bytes of the types whose encoding always has the same size."""

PRIMITIVES = frozenset(FIXED_WIDTHS) | {"string", "bytes", "records"}


@attrs.frozen
class Field:
    """One field of a message or of a struct in it, over all versions."""

    name: str
    """The field's name in Kafka's definition, in snake_case."""
    type: str
    """`int32`, `string`, a struct's name, or one of these after `[]`."""
    versions: Versions
    nullable_versions: Versions = ()
    tag: int | None = None
    tagged_versions: Versions = ()
    """The versions in which it travels as a tagged field (KIP-482)."""
    default: str | None = None
    """As written in the definition; None is the type's own default."""
    entity: str | None = None
    """Kafka's entityType: topicName, groupId, transactionalId, producerId, brokerId."""
    map_key: bool = False
    """True if it is (part of) the key of the array that its struct is an element of."""
    flexible: bool = True
    """False where the field keeps its old encoding in flexible versions (the client id)."""
    fields: tuple[Field, ...] = ()
    """The fields of a struct or of an array of structs."""

    @property
    def is_array(self) -> bool:
        """True if the type is an array."""
        return self.type.startswith("[]")

    @property
    def defaults_to_struct(self) -> bool:
        """True if its default is an object with defaults.

        A tagged struct is None when it is absent: cheaper than an object in each partition of a
        Fetch, and one that was sent with nothing but defaults stays different from none.
        """
        is_struct = bool(self.fields) and not self.is_array
        return is_struct and self.default != "null" and self.tag is None

    @property
    def element(self) -> str:
        """The type without `[]`."""
        return self.type.removeprefix("[]")


@attrs.frozen
class Message:
    """One request, response, header, data schema, or key or value of a coordinator's record, over
    all versions."""

    name: str
    api_key: int | None
    """None for headers and data schemas; of coordinators' records the type of the record."""
    direction: str
    """REQUEST, RESPONSE, HEADER, DATA, RECORD_KEY or RECORD_VALUE."""
    versions: Versions
    flexible_versions: Versions
    """Versions with compact lengths and tagged fields (KIP-482)."""
    listeners: tuple[str, ...]
    """The kinds of nodes that answer it in the newest release that knows it: broker, controller,
    zkBroker."""
    fields: tuple[Field, ...]
    structs: dict[str, tuple[Field, ...]]
    """Kafka's struct name → its fields; a struct name is unique within one message."""
    topic: str | None = None
    """The topic that a coordinator keeps its records in."""

    def __hash__(self) -> int:
        return hash(self.name)


@attrs.define(eq=False)
class Slot:
    """One field in one version, as it is on the wire."""

    field: Field
    name: str
    kind: str
    """The element's type: a primitive's name, or "struct"."""
    is_array: bool
    nullable: bool
    flexible: bool
    """True if lengths are unsigned varints plus one (compact types)."""
    struct: Layout | None
    """The layout of the struct, if the kind is "struct"."""
    tag: int | None
    """None where the field is not tagged in this version."""
    default: Any
    """A value of the field's Python type; see `default_value`."""

    @property
    def width(self) -> int | None:
        """The bytes of its encoding if their number is always the same, else None."""
        return None if self.is_array else FIXED_WIDTHS.get(self.kind)

    @property
    def null_marker(self) -> int:
        """The int8 in front of a nullable struct that says that it is null; 1 says that it follows.

        In a tagged field it is a varint, and 0 is null.
        """
        return -1 if self.tag is None else 0


@attrs.define(eq=False)
class Layout:
    """One struct (or a whole message) in one version."""

    message: Message
    version: int
    name: str
    """The struct's name; the message's own for the top level."""
    path: tuple[str, ...]
    """Names from the message's top level to here."""
    flexible: bool
    """True if a section of tagged fields ends it."""
    slots: tuple[Slot, ...]
    """The untagged fields in wire order."""
    tagged: tuple[Slot, ...]
    """The tagged fields by tag."""
    absent: tuple[Field, ...]
    """The fields that this version does not have."""

    def slot(self, name: str) -> Slot | None:
        """Return the field of that name, tagged or not; None if this version does not have it."""
        for slot in self.slots + self.tagged:
            if slot.name == name:
                return slot
        return None


def parse_versions(text: str, limit: Versions | None = None) -> Versions:
    """Read `0-3`, `2+`, `1`, `0,2+` or `none`; all within `limit`, whose last version ends `2+`."""
    found: list[int] = []
    for part in () if text == "none" else text.split(","):
        low, _, high = part.removesuffix("+").partition("-")
        last = limit[-1] if part.endswith("+") and limit else int(high or low)
        found += range(int(low), last + 1)
    return tuple(found if limit is None else [version for version in found if version in limit])


def default_value(field: Field) -> Any:
    """Return the value of a field that is absent.

    It is the definition's default, else its type's: 0, "", False, an empty list, zero UUID. None
    also stands for an object with defaults, where the field says so (`defaults_to_struct`).
    """
    text = field.default
    if text == "null":
        return None
    if field.is_array:
        return []
    match field.type:
        case "string":
            return text or ""
        case "bytes":
            return b""
        case "uuid":
            return NO_UUID
        case "bool":
            return text == "true"
        case "float64":
            return float(text or 0)
        case "int8" | "int16" | "uint16" | "int32" | "int64":
            return int(text or "0", 0)
        case _:
            return None


# ── the table ────────────────────────────────────────────────────────────────────────────────


def parse_message(block: str) -> Message:
    """Read one block of the table: a head line, then a line per field, indented by depth."""
    lines = block.splitlines()
    head = lines[0].split()
    options = dict(zip(head[3::2], head[4::2], strict=True))
    versions = parse_versions(head[2])
    structs: dict[str, tuple[Field, ...]] = {}
    top: list[Field] = []
    open_structs: list[tuple[list[Field], Versions, str]] = [(top, versions, "")]
    for line in lines[1:]:
        text = line.lstrip()
        depth = (len(line) - len(text)) // 2
        while len(open_structs) > depth:
            fields, _, name = open_structs.pop()
            structs[name] = tuple(fields)
        field = _parse_field(text.split(), open_structs[-1][1])
        open_structs[-1][0].append(field)
        open_structs.append(([], versions, field.element))
        if field.element in PRIMITIVES or field.element in structs:
            open_structs.pop()
    for fields, _, name in open_structs[1:]:
        structs[name] = tuple(fields)
    nested, structs = nest(tuple(top), structs)
    key = options.get("key")
    return Message(
        name=head[1],
        api_key=None if key is None else int(key),
        direction=head[0],
        versions=versions,
        flexible_versions=parse_versions(options.get("flexible", "none"), versions),
        listeners=tuple(options["listeners"].split(",")) if "listeners" in options else (),
        fields=nested,
        structs=structs,
        topic=options.get("topic"),
    )


def nest(
    fields: tuple[Field, ...], structs: dict[str, tuple[Field, ...]]
) -> tuple[tuple[Field, ...], dict[str, tuple[Field, ...]]]:
    """Put the fields of its struct into each field that has one, at every depth.

    Returns both the message's own fields and its structs like this.
    """
    nested: dict[str, tuple[Field, ...]] = {}

    def below(name: str) -> tuple[Field, ...]:
        if name not in nested:
            nested[name] = tuple(map(whole, structs[name]))
        return nested[name]

    def whole(field: Field) -> Field:
        name = field.element
        return attrs.evolve(field, fields=below(name)) if name in structs else field

    return tuple(map(whole, fields)), {name: below(name) for name in structs}


def _parse_field(words: list[str], limit: Versions) -> Field:
    name, kind, versions = words[:3]
    rest = iter(words[3:])
    options: dict[str, Any] = {}
    for word in rest:
        match word:
            case "nullable":
                options["nullable_versions"] = parse_versions(next(rest), limit)
            case "tag":
                options["tag"] = int(next(rest))
                options["tagged_versions"] = parse_versions(next(rest), limit)
            case "default":
                options["default"] = next(rest)
            case "key":
                options["map_key"] = True
            case "inflexible":
                options["flexible"] = False
            case _:
                options["entity"] = word
    return Field(name, kind, parse_versions(versions, limit), **options)


def layout(message: Message, version: int) -> Layout:
    """Make the layout of one version; ValueError if the message does not have it."""
    if version not in message.versions:
        raise ValueError(f"{message.name} has no version {version}")
    return _layout(message, version, message.name, message.fields, ())


def _layout(
    message: Message, version: int, name: str, fields: tuple[Field, ...], path: tuple[str, ...]
) -> Layout:
    flexible = version in message.flexible_versions
    slots: list[Slot] = []
    tagged: list[Slot] = []
    absent: list[Field] = []
    for field in fields:
        if version not in field.versions:
            absent.append(field)
            continue
        is_struct = field.element not in PRIMITIVES
        below = (*path, field.name)
        slot = Slot(
            field=field,
            name=field.name,
            kind="struct" if is_struct else field.element,
            is_array=field.is_array,
            nullable=version in field.nullable_versions,
            flexible=flexible and field.flexible,
            struct=_layout(message, version, field.element, field.fields, below)
            if is_struct
            else None,
            tag=field.tag if version in field.tagged_versions else None,
            default=default_value(field),
        )
        (slots if slot.tag is None else tagged).append(slot)
    tagged.sort(key=lambda slot: slot.tag or 0)
    return Layout(
        message, version, name, path, flexible, tuple(slots), tuple(tagged), tuple(absent)
    )


def least_bytes(layout: Layout) -> int:
    """Return the fewest bytes that a struct can take.

    The generator refuses a struct that can take none: its count in an array would be a promise of a
    million elements without a byte behind it, and the memory of a decoder has to be bounded.
    """
    least = int(layout.flexible)
    for slot in layout.slots:
        if slot.struct and not slot.is_array and not slot.nullable:
            least += least_bytes(slot.struct)
        elif slot.struct and not slot.is_array:
            least += 1
        elif slot.width is not None:
            least += slot.width
        else:
            least += 1 if slot.flexible else 4 if slot.is_array else 2
    return least


def _read_table(name: str) -> str:
    """Return the text of a table, from wherever this package was loaded (a folder or a zip)."""
    path = os.path.join(os.path.dirname(__file__), name)
    loader: Any = __spec__.loader
    return loader.get_data(path).decode("utf-8")


@functools.cache
def _index(table: str) -> tuple[dict[str, str], dict[tuple[str | None, int, str], str]]:
    """Return name → block, and (topic, api_key or type of record, direction) → name; blocks are
    parsed when asked for."""
    blocks: dict[str, str] = {}
    names: dict[tuple[str | None, int, str], str] = {}
    for block in _read_table(table).split("\n\n"):
        if block.strip() and not block.startswith("#"):
            direction, name, _, *words = block[: block.find("\n")].split()
            options = dict(zip(words[::2], words[1::2], strict=True))
            blocks[name] = block
            if "key" in options:
                names[options.get("topic"), int(options["key"]), direction] = name
    return blocks, names


@functools.cache
def named(name: str) -> Message:
    """Return the message of that name, e.g. "MetadataResponse"; KeyError if there is none."""
    messages = _index(MESSAGES_TABLE)[0]
    return parse_message(messages[name] if name in messages else _index(RECORDS_TABLE)[0][name])


def record_part(topic: str, record_type: int, direction: str) -> Message | None:
    """Return what the key (RECORD_KEY) or the value of a type of records in a coordinator's topic
    is; None if it is unknown."""
    name = _index(RECORDS_TABLE)[1].get((topic, record_type, direction))
    return None if name is None else named(name)


def record_names() -> tuple[str, ...]:
    """Return the names of all keys and values of coordinators' records, in the table's order."""
    return tuple(_index(RECORDS_TABLE)[0])


def message(api_key: int, direction: str) -> Message | None:
    """Return the message of an ApiKey in one direction (REQUEST, RESPONSE); None if it is
    unknown."""
    name = _index(MESSAGES_TABLE)[1].get((None, api_key, direction))
    return None if name is None else named(name)


def message_names() -> tuple[str, ...]:
    """Return the names of all messages, without coordinators' records, in the table's order."""
    return tuple(_index(MESSAGES_TABLE)[0])


@functools.cache
def api_names() -> dict[int, str]:
    """Return ApiKey → name without "Request", e.g. 3 → "Metadata"."""
    return {
        key: name.removesuffix("Request")
        for (_, key, direction), name in _index(MESSAGES_TABLE)[1].items()
        if direction == REQUEST
    }


@functools.cache
def known_versions() -> frozenset[tuple[int, int]]:
    """Return every (api_key, api_version) that the table describes."""
    blocks, names = _index(MESSAGES_TABLE)
    return frozenset(
        (key, version)
        for (_, key, direction), name in names.items()
        if direction == REQUEST
        for version in parse_versions(blocks[name].split(None, 3)[2])
    )


@functools.lru_cache(maxsize=256)
def api_name(api_key: int) -> str:
    """Return the name of an ApiKey, e.g. "Metadata"; "Api<key>" for one that the table lacks."""
    return api_names().get(api_key) or f"Api{api_key}"


def api_key(name: str) -> int | None:
    """Return the ApiKey of that name, e.g. "Metadata" → 3; None if there is none."""
    return _api_keys().get(name)


@functools.cache
def _api_keys() -> dict[str, int]:
    return {name: key for key, name in api_names().items()}


@functools.cache
def schema_id() -> str:
    """Return the hash of this table: recordings keep it, so that readers know whose names their
    fields have."""
    import hashlib

    return hashlib.sha256(_read_table(MESSAGES_TABLE).encode()).hexdigest()[:16]
