"""What Kafka's own tool, kafka-console-consumer, prints of the records of Kafka's own topics.

Its formatters are Java: `Format.java` gives them the records, all in one JVM.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kproxy.wire.protocol import plain, schema
from kproxy.wire.protocol.generate import snake_case
from kproxy.wire.protocol.schema import Field
from tests.bed import jvm

_VERSION = "4.3.1"

_NEWER = {"stored_description_topology_epoch", "failed_description_topology_epoch"}
"""What 4.4.0 has added to StreamsGroupMetadataValue."""
_NO_UUID = plain.uuid_text(schema.NO_UUID)

Record = tuple[str, bytes, bytes | None]
"""Topic, key, value."""


def printed(records: Iterable[Record]) -> list[dict[str, Any] | None]:
    """The JSON of each record, with our names of the fields; None where the formatter refuses."""
    jars = jvm.kafka_jars(_VERSION)
    classes = jvm.compiled(Path(__file__).parent / "clients" / "Format.java", jars)
    lines = [
        f"{topic} {key.hex()} {'-' if value is None else value.hex()}\n"
        for topic, key, value in records
    ]
    command = jvm.java([classes, jars], "Format")
    done = subprocess.run(
        command, input="".join(lines), capture_output=True, text=True, timeout=60, check=True
    )
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(lines), done.stderr
    return [_renamed(json.loads(each)) if each else None for each in answers]


def as_printed(values: Any, fields: tuple[Field, ...], version: int) -> Any:
    """Plain values as the tool has them: without tagged fields that have their default."""
    if isinstance(values, list):
        return [as_printed(each, fields, version) for each in values]
    if not isinstance(values, dict) or not fields:
        return values
    return {
        field.name: as_printed(values[field.name], field.fields, version)
        for field in fields
        if version in field.versions
        and field.name not in _NEWER
        and not (
            version in field.tagged_versions
            and values[field.name] in (schema.default_value(field), _NO_UUID)
        )
    }


def _renamed(found: Any) -> Any:
    if isinstance(found, dict):
        found = {snake_case(name): _renamed(value) for name, value in found.items()}
        # a tagged struct: null is no other than none for us
        if found.get("classic_member_metadata", ...) is None:
            del found["classic_member_metadata"]
        return found
    return [_renamed(each) for each in found] if isinstance(found, list) else found
