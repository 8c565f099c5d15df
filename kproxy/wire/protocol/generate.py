"""Maintainer's tool: Kafka's jars → `messages.txt`, `messages.pyi`, `coordinator_records.txt`.

    kafka-clients ───────────────────────────▶ messages.txt, messages.pyi
    kafka-{group,transaction,share}-coordinator ▶ coordinator_records.txt

A new Kafka release is an hour's work:

1. Get its jars, those of kafka-clients and of the three coordinators:
   `mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.5.0`.
2. `python -m kproxy.wire.protocol.generate` with these jars and those of 3.9.2, which has no
   kafka-share-coordinator. It verifies the merge and rewrites the files of the jars that it was
   given. With `--check` it writes nothing and exits 1 if the files would change.
3. Read `git diff` of the tables, a line per field, for: new response fields that name a host and a
   port (the proxy rewrites those by itself; look that the names are the usual ones), new fields
   that hold secrets (redaction), renamed fields (recordings show the names of the table that reads
   them), new error codes (copy them from the release's `Errors` into `errors.py`).
4. Run the tests: the codec's own, and the oracle tests with the new jars' version in
   `tests/wire/protocol/`.

The merge: for each (message, version) the newest jar that knows the version defines it. The table
writes the chosen definitions of all versions as one field list; the tool expands the list again
and refuses to write if any version differs from the release that it was chosen from.

Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Field, Layout, Message, Versions

HEAD = """\
# Every message of Kafka, one line per field. Written by `python -m kproxy.wire.protocol.generate`.
# Source: the message definitions inside kafka-clients {sources}.
#
#   direction Name versions key <api key> flexible <versions> listeners <where it is answered>
#     name type versions [nullable versions] [tag n versions] [default value] [key] [inflexible]
#     [entity type]
#
# Indentation nests the fields of a struct below the first field of that struct's type.
# "3+" is from 3 to the message's last version. After "tag": its number, and where it is tagged.
"""

RECORDS_HEAD = """\
# The records of Kafka's coordinators, in the topics where they keep them: keys and values, one line
# per field. Written by `python -m kproxy.wire.protocol.generate`.
# Source: the definitions inside kafka-*-coordinator {sources}.
#
#   direction Name versions key <type of the record> flexible <versions> topic <topic>
#     a line per field, as in messages.txt
#
# A key has its record's type in front, as an int16, and a value its version.
"""

COORDINATOR_JAR = re.compile(r"kafka-(group|transaction|share)-coordinator-(\d.*)\.jar")
TOPICS = {
    "group": "__consumer_offsets",
    "transaction": "__transaction_state",
    "share": "__share_group_state",
}
"""Coordinator → the topic of its records."""

RENAMED = {"request_api_key": "api_key", "request_api_version": "api_version"}
"""Fields of RequestHeader that read better without "request"."""

Release = dict[str, Message]


# ── reading jars ─────────────────────────────────────────────────────────────────────────────


def read_jar(path: Path) -> tuple[str, Release]:
    """Return the release's version and its messages by name, without those that have no version
    left."""
    with zipfile.ZipFile(path) as jar:
        properties = jar.read("kafka/kafka-version.properties").decode()
        found = re.search(r"^version=(.+)$", properties, re.MULTILINE)
        if found is None:
            raise SystemExit(f"{path}: no version in kafka/kafka-version.properties")
        return found[1].strip(), {one.name: one for one in _definitions(jar)}


def read_coordinator(path: Path) -> tuple[str, Release]:
    """Return the version of a coordinator's jar, as its name says, and the keys and values of its
    records."""
    found = COORDINATOR_JAR.fullmatch(path.name)
    assert found is not None, path
    topic = TOPICS[found[1]]
    with zipfile.ZipFile(path) as jar:
        read = {one.name: one for one in _definitions(jar)}
    if any(one.direction == schema.DATA for one in read.values()):
        read = _with_types(read)
    return found[2], {name: attrs.evolve(one, topic=topic) for name, one in read.items()}


def _with_types(release: Release) -> Release:
    """Return the keys and values that a release before 4.1 defines as those from then on do.

    Before, a key's version was the type of its record, and a value had the name alone in common
    with its key.
    """
    found: Release = {}
    for key in release.values():
        if not key.name.endswith("Key"):
            continue
        value = release[key.name.removesuffix("Key") + "Value"]
        fields = tuple(attrs.evolve(field, versions=(0,)) for field in key.fields)
        for number in key.versions:
            found[f"{key.name} {number}"] = attrs.evolve(
                key,
                api_key=number,
                direction=schema.RECORD_KEY,
                versions=(0,),
                fields=fields,
            )
            found[f"{value.name} {number}"] = attrs.evolve(
                value, api_key=number, direction=schema.RECORD_VALUE
            )
    return found


def _definitions(jar: zipfile.ZipFile) -> Iterator[Message]:
    for name in jar.namelist():
        if name.startswith("common/message/") and name.endswith(".json"):
            message = read_definition(jar.read(name).decode())
            if message is not None:
                yield message


def read_definition(text: str) -> Message | None:
    """Return one definition in Kafka's JSON with

    comments; None if it has no (valid) versions.
    """
    strings_or_comments = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*')
    plain = strings_or_comments.sub(lambda found: found[1] or "", text)
    definition, _ = json.JSONDecoder().raw_decode(plain.strip())
    versions = schema.parse_versions(definition.get("validVersions", "none"))
    if not versions:
        return None
    structs: dict[str, tuple[Field, ...]] = {}
    for common in definition.get("commonStructs", ()):
        structs[common["name"]] = _read_fields(common["fields"], versions, structs)
    fields, structs = schema.nest(_read_fields(definition["fields"], versions, structs), structs)
    return Message(
        name=definition["name"],
        api_key=definition.get("apiKey"),
        direction=definition["type"],
        versions=versions,
        flexible_versions=schema.parse_versions(definition["flexibleVersions"], versions),
        listeners=tuple(definition.get("listeners", ())),
        fields=fields,
        structs=structs,
    )


def snake_case(name: str) -> str:
    """Return a name in snake_case: `IsrNodes` → `isr_nodes`, `V3AndBelowTopics` →
    `v3_and_below_topics`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return RENAMED.get(name, name)


def _read_fields(
    definitions: list[dict[str, Any]], limit: Versions, structs: dict[str, tuple[Field, ...]]
) -> tuple[Field, ...]:
    fields: list[Field] = []
    for definition in definitions:
        if "fields" in definition:
            name = definition["type"].removeprefix("[]")
            structs[name] = _read_fields(definition["fields"], limit, structs)
        nullable = definition.get("nullableVersions", "none")
        tagged = definition.get("taggedVersions", "none")
        versions = schema.parse_versions(str(definition.get("versions", tagged)), limit)
        default = definition.get("default")  # null is none, as Kafka's generator has it
        default = "" if default is None else str(default).strip()
        field = Field(
            name=snake_case(definition["name"]),
            type=definition["type"].strip(),
            versions=versions,
            nullable_versions=schema.parse_versions(nullable, versions),
            tag=int(definition["tag"]) if "tag" in definition else None,
            tagged_versions=schema.parse_versions(tagged, versions),
            default=(default.lower() if default in ("True", "False") else default) or None,
            entity=definition.get("entityType"),
            map_key=definition.get("mapKey", False),
            flexible=definition.get("flexibleVersions") != "none",
        )
        if versions:
            fields.append(field)
    return tuple(fields)


# ── merging releases ─────────────────────────────────────────────────────────────────────────


def merge(releases: list[tuple[str, Release]]) -> Release:
    """Return one table of all releases, newest first; each version as its newest release defines
    it.

    SystemExit if a version cannot be written into the common field list unchanged.
    """
    merged: Release = {}
    identity: dict[tuple[int | None, str, str], str] = {}
    for _, release in releases:
        for message in release.values():
            by_key = message.api_key is not None
            key = (message.api_key, message.direction, "" if by_key else message.name)
            name = identity.setdefault(key, message.name)
            if name in merged:
                merged[name] = _add_older(merged[name], message)
            else:
                merged[name] = message
    verify(merged, releases)
    return merged


def chosen(
    merged: Message, releases: list[tuple[str, Release]], version: int
) -> tuple[str, Message]:
    """Return the newest release that defines this version, and its definition."""
    for release_version, release in releases:
        for message in release.values():
            same = (
                (message.api_key, message.direction) == (merged.api_key, merged.direction)
                if merged.api_key is not None
                else message.name == merged.name
            )
            if same and version in message.versions:
                return release_version, message
    raise SystemExit(f"{merged.name} v{version} is in no release")


def verify(merged: Release, releases: list[tuple[str, Release]]) -> None:
    """Compare each version of the merged table with the release that it was chosen from."""
    for message in merged.values():
        for version in message.versions:
            release_version, definition = chosen(message, releases, version)
            refuse_empty(schema.layout(message, version))
            if shape(schema.layout(message, version)) != shape(schema.layout(definition, version)):
                raise SystemExit(
                    f"{message.name} v{version}: the merged field list differs from "
                    f"{release_version}'s definition"
                )


def refuse_empty(layout: Layout) -> None:
    """Raise SystemExit if a struct can take no bytes; see `schema.least_bytes`."""
    for slot in layout.slots + layout.tagged:
        if slot.struct is not None:
            if schema.least_bytes(slot.struct) == 0:
                where = ".".join(slot.struct.path)
                raise SystemExit(f"{layout.message.name} v{layout.version}: {where} has no bytes")
            refuse_empty(slot.struct)


def shape(layout: Layout) -> tuple[Any, ...]:
    """Return everything that matters in one version: names, types, nullability, tags, defaults,
    nesting."""
    return (
        layout.flexible,
        tuple(
            (
                slot.name,
                slot.kind,
                slot.is_array,
                slot.nullable,
                slot.flexible,
                slot.tag,
                slot.default,
                shape(slot.struct) if slot.struct else None,
            )
            for slot in layout.slots + layout.tagged
        ),
    )


def _add_older(newer: Message, older: Message) -> Message:
    """Return a message with the versions that only the older release has added to it."""
    only = tuple(version for version in older.versions if version not in newer.versions)
    if not only:
        return newer
    structs = dict(newer.structs)
    aliases: dict[str, str] = {}
    fields = _add_fields(newer.fields, older.fields, only, older, structs, aliases)
    fields, structs = schema.nest(fields, structs)
    return attrs.evolve(
        newer,
        versions=_union(newer.versions, only),
        flexible_versions=_union(newer.flexible_versions, _cut(older.flexible_versions, only)),
        fields=fields,
        structs=structs,
    )


def _add_fields(
    newer: tuple[Field, ...],
    older: tuple[Field, ...],
    only: Versions,
    message: Message,
    structs: dict[str, tuple[Field, ...]],
    aliases: dict[str, str],
) -> tuple[Field, ...]:
    fields = list(newer)
    position = 0
    for field in older:
        field = attrs.evolve(
            field,
            versions=_cut(field.versions, only),
            nullable_versions=_cut(field.nullable_versions, only),
            tagged_versions=_cut(field.tagged_versions, only),
        )
        if not field.versions:
            continue
        below = message.structs.get(field.element)
        for index, other in enumerate(fields):
            if other.name == field.name and _same_type(other, field):
                fields[index] = attrs.evolve(
                    other,
                    versions=_union(other.versions, field.versions),
                    nullable_versions=_union(other.nullable_versions, field.nullable_versions),
                    tagged_versions=_union(other.tagged_versions, field.tagged_versions),
                )
                position = index + 1
                name = other.element
                break
        else:
            fields.insert(position, field)
            position += 1
            name = field.element
        if below is not None and aliases.setdefault(field.element, name) == name:
            above = structs.get(name, ())
            structs[name] = _add_fields(above, below, only, message, structs, aliases)
    return tuple(fields)


def _same_type(one: Field, other: Field) -> bool:
    struct = one.element not in schema.PRIMITIVES and other.element not in schema.PRIMITIVES
    return one.is_array == other.is_array and (struct or one.element == other.element)


def _union(one: Versions, other: Versions) -> Versions:
    return tuple(sorted({*one, *other}))


def _cut(versions: Versions, limit: Versions) -> Versions:
    return tuple(version for version in versions if version in limit)


# ── writing ──────────────────────────────────────────────────────────────────────────────────


def write_versions(versions: Versions, limit: Versions = ()) -> str:
    """Return versions as text; the reverse of `schema.parse_versions`."""
    if limit and versions == limit:
        return "0+"  # as Kafka writes it, whatever the first version is that is left
    ranges: list[list[int]] = []
    for version in versions:
        if ranges and ranges[-1][1] == version - 1:
            ranges[-1][1] = version
        else:
            ranges.append([version, version])
    parts = [
        f"{low}+" if limit and high == limit[-1] else f"{low}" if low == high else f"{low}-{high}"
        for low, high in ranges
    ]
    return ",".join(parts) or "none"


def write_table(head: str, merged: Release) -> str:
    """Return the text of a table."""
    blocks = [head]
    for message in in_order(merged):
        block = "\n".join([_head_line(message), *_field_lines(message)])
        if schema.parse_message(block) != message:
            raise SystemExit(f"{message.name}: reading the table back gives something else")
        blocks.append(block + "\n")
    return "\n".join(blocks)


def in_order(merged: Release) -> list[Message]:
    """Return requests and responses by ApiKey, then headers, then data, by name; records by topic
    and type."""

    def place(one: Message) -> tuple[str, bool, bool, int, str]:
        is_data = one.direction == schema.DATA
        return one.topic or "", is_data, one.api_key is None, one.api_key or 0, one.name

    return sorted(merged.values(), key=place)


def _head_line(message: Message) -> str:
    words = [message.direction, message.name, write_versions(message.versions)]
    if message.api_key is not None:
        words += ["key", str(message.api_key)]
    words += ["flexible", write_versions(message.flexible_versions, message.versions)]
    if message.listeners:
        words += ["listeners", ",".join(message.listeners)]
    if message.topic is not None:
        words += ["topic", message.topic]
    return " ".join(words)


def _field_lines(message: Message) -> Iterator[str]:
    written: set[str] = set()

    def lines(fields: tuple[Field, ...], indent: str) -> Iterator[str]:
        for field in fields:
            yield indent + _field_line(field, message.versions)
            if field.element in message.structs and field.element not in written:
                written.add(field.element)
                yield from lines(message.structs[field.element], indent + "  ")

    yield from lines(message.fields, "  ")


def _field_line(field: Field, limit: Versions) -> str:
    words = [field.name, field.type, write_versions(field.versions, limit)]
    if field.nullable_versions:
        words += ["nullable", write_versions(field.nullable_versions, limit)]
    if field.tag is not None:
        words += ["tag", str(field.tag), write_versions(field.tagged_versions, limit)]
    if field.default is not None:
        words += ["default", field.default]
    if field.map_key:
        words.append("key")
    if not field.flexible:
        words.append("inflexible")
    if field.entity is not None:
        words.append(field.entity)
    return " ".join(words)


# ── messages.pyi ─────────────────────────────────────────────────────────────────────────────

STUB_HEAD = '''\
"""Types of Kafka's messages. Written by `python -m kproxy.wire.protocol.generate`.

One class per message, over all its versions; its structs are attributes of it. Every argument is
keyword-only and has the default of Kafka's definition.
"""

from uuid import UUID

import attrs

Tags = tuple[tuple[int, bytes], ...]
'''

TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
}


def write_stub(messages: Iterable[Message]) -> str:
    """Return the text of messages.pyi, the static types of the classes that `messages` builds.

    A field has the type that it has in any version: one that is nullable in some version is typed
    `… | None`.
    """
    lines = [STUB_HEAD]
    for message in messages:
        lines += ["@attrs.define(kw_only=True)", f"class {message.name}:"]
        for name, fields in message.structs.items():
            lines += ["    @attrs.define(kw_only=True)", f"    class {name}:"]
            lines += ["        " + line for line in _attributes(fields, message)]
            lines.append("")
        lines += ["    " + line for line in _attributes(message.fields, message)]
        lines.append("")
    lines += ["def message_class(name: str) -> type: ...", ""]
    return "\n".join(lines)


def _attributes(fields: tuple[Field, ...], message: Message) -> Iterator[str]:
    for field in fields:
        yield f"{field.name}: {annotation(field, message)} = ..."
    yield "unknown_tags: Tags = ..."


def annotation(field: Field, message: Message) -> str:
    """Return the Python type of a field, e.g. `list[MetadataResponse.MetadataResponseTopic] |
    None`."""
    text = TYPES.get(field.element, f"{message.name}.{field.element}")
    if field.is_array:
        text = f"list[{text}]"
    struct = bool(field.fields) and not field.is_array
    absent_is_none = struct and not field.defaults_to_struct
    nullable = field.nullable_versions or field.type == "records" or field.default == "null"
    if nullable or absent_is_none:
        text += " | None"
    return text


# ── the tool ─────────────────────────────────────────────────────────────────────────────────


def generate(jars: list[Path]) -> tuple[str, str]:
    """Return the texts of messages.txt and messages.pyi for these jars."""
    releases = _newest_first(map(read_jar, jars))
    merged = merge(releases)
    table = write_table(HEAD.format(sources=_sources(v for v, _ in releases)), merged)
    return table, write_stub(in_order(merged))


def generate_records(jars: list[Path]) -> str:
    """Return the text of coordinator_records.txt for these jars."""
    merged: Release = {}
    read = _newest_first(map(read_coordinator, jars))
    for topic in TOPICS.values():
        merged |= merge([each for each in read if topic in {m.topic for m in each[1].values()}])
    sources = _sources(dict.fromkeys(version for version, _ in read))
    return write_table(RECORDS_HEAD.format(sources=sources), merged)


def _newest_first(releases: Iterable[tuple[str, Release]]) -> list[tuple[str, Release]]:
    return sorted(releases, key=lambda one: _number(one[0]), reverse=True)


def _sources(versions: Iterable[str]) -> str:
    return " and, for what it dropped, ".join(versions)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the tables from jars; 1 with --check if anything would change."""
    parser = argparse.ArgumentParser(prog="python -m kproxy.wire.protocol.generate")
    kinds = "jars of kafka-clients and of kafka-*-coordinator"
    parser.add_argument("jars", nargs="+", type=Path, metavar="JAR", help=kinds)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a change")
    options = parser.parse_args(arguments)
    coordinators = [path for path in options.jars if COORDINATOR_JAR.fullmatch(path.name)]
    clients = [path for path in options.jars if path not in coordinators]
    outputs: dict[str, str] = {}
    if clients:
        outputs[schema.MESSAGES_TABLE], outputs["messages.pyi"] = generate(clients)
    if coordinators:
        outputs[schema.RECORDS_TABLE] = generate_records(coordinators)
    folder = Path(schema.__file__).parent
    stale = [
        folder / name
        for name, text in outputs.items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text
    ]
    for path in stale if not options.check else []:
        path.write_text(outputs[path.name], encoding="utf-8")
        print(f"wrote {path}")
    if not stale:
        print("the tables are up to date")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
