"""What Kafka's own tool, kafka-console-consumer, prints of the records of Kafka's own topics.

Its formatters are Java: `Format.java` gives them the records, all in one JVM.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kproxy.protocol.generate import snake_case
from tests.bed import jvm

_VERSION = "4.3.1"

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


def _renamed(found: Any) -> Any:
    if isinstance(found, dict):
        return {snake_case(name): _renamed(value) for name, value in found.items()}
    return [_renamed(each) for each in found] if isinstance(found, list) else found
