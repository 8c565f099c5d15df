"""What the key and the value of a record mean, as keys beside them in JSON.

{"value": {"base64": …}, "value_decoded": {"customer": "ann"}, "value_by": "JSON, schema 17"}
{"value": {"base64": …}, "value_undecoded": "schema 18 is not in the recording"}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kproxy.payloads.decoding import Headers, decode, decodes_only_by_schema
from kproxy.payloads.framing import may_have_id
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


def writer(topic: str, schemas: Schemas) -> Callable[[bytes | None, bytes | None, Headers], str]:
    """Return the function that writes what `decoded_json` returns of a topic's records."""
    only_by_schema = decodes_only_by_schema(topic, schemas)

    def write(key: bytes | None, value: bytes | None, headers: Headers) -> str:
        # Most records name no schema.
        if only_by_schema and not (headers or may_have_id(key) or may_have_id(value)):
            return ""
        return members(decoded_json(topic, Content(key, value, headers), schemas))

    return write


class Content(NamedTuple):
    """What decides of a record what it means."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def members(found: dict[str, Any]) -> str:
    """Return keys and values as the further members of a JSON object: `, "key": value`."""
    return "".join([f', "{name}": {json_text(value)}' for name, value in found.items()])
