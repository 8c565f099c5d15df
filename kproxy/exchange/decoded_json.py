"""What the key and the value of a record mean, as keys beside them in JSON.

{"value": {"base64": …}, "value_decoded": {"customer": "ann"}, "value_by": "JSON, schema 17"}
{"value": {"base64": …}, "value_undecoded": "schema 18 is not in the recording"}
"""

from __future__ import annotations

from typing import Any, Protocol

from kproxy.payloads.decoding import Headers, decode
from kproxy.payloads.meaning import Decoded, Undecoded
from kproxy.payloads.plain import json_text
from kproxy.payloads.schemas import Schemas

PARTS = ("key", "value")
KEYS = tuple(f"{part}_{what}" for part in PARTS for what in ("decoded", "by", "undecoded"))
"""For each part its decoded value, by what it was decoded, and why it was not."""


class Record(Protocol):
    """A record, wherever it comes from."""

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def headers(self) -> Headers:
        """Its headers."""
        ...


def decoded_json(topic: str, record: Record, schemas: Schemas) -> dict[str, Any]:
    """Return the keys that a record has, with their values: none where no schema is named."""
    found: dict[str, Any] = {}
    for part in PARTS:
        match decode(part, topic, record.key, record.value, record.headers, schemas):
            case Decoded(value, by):
                found |= {f"{part}_decoded": value, f"{part}_by": by}
            case Undecoded(why):
                found[f"{part}_undecoded"] = why
            case None:
                pass
    return found


def members(found: dict[str, Any]) -> str:
    """Return keys and values as the further members of a JSON object: `, "key": value`."""
    return "".join([f', "{name}": {json_text(value)}' for name, value in found.items()])
