"""Actions on the API versions that clients see: max_version, hide_api."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kproxy.proxy.faults.action import Hit, Plan
from kproxy.proxy.faults.apis import parse_apis
from kproxy.proxy.faults.values import INT16_MAX, is_whole
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.codec import Response


def max_version(hit: Hit) -> Plan:
    """ApiVersions names no version above these: {Produce = 7, Fetch = 11}.

    Clients then speak as to an older broker. No API is capped below the broker's oldest version.
    """
    caps: Mapping[int, int] = hit.value

    def cap(response: Response) -> bool:
        changed = False
        for entry in response.body.api_keys:
            version = max(entry.min_version, caps.get(entry.api_key, entry.max_version))
            if version < entry.max_version:
                entry.max_version, changed = version, True
        return changed

    return Plan(change=hit.edit_response(cap))


def hide_api(hit: Hit) -> Plan:
    """ApiVersions does not name these APIs, one or a list: "DescribeCluster".

    Clients then do without them, or say that the broker is too old.
    """
    hidden: frozenset[int] = hit.value

    def hide(response: Response) -> bool:
        body = response.body
        kept = [entry for entry in body.api_keys if entry.api_key not in hidden]
        changed = len(kept) < len(body.api_keys)
        body.api_keys = kept
        return changed

    return Plan(change=hit.edit_response(hide))


def parse_caps(value: Any) -> dict[int, int]:
    """Read {Produce = 7, …}.

    Raises:
        ValueError: it is not such a table; the text says what is allowed.
    """
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} is not a table such as {{Produce = 7, Fetch = 11}}")
    found: dict[int, int] = {}
    for name, version in value.items():
        (key,) = parse_apis(name)
        if not is_whole(version, 0, INT16_MAX):
            raise ValueError(f"{version!r} is not a version of {schema.api_name(key)}")
        found[key] = version
    return found
