"""ApiVersions: the APIs of the replaying broker, in all versions that the codec knows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kproxy.replay.call import Call
from kproxy.wire.protocol import api_key, messages, schema
from kproxy.wire.protocol.codec import UNSUPPORTED_VERSION

if TYPE_CHECKING:
    from kproxy.replay.state import State

API_VERSIONS = 18

_GREATEST = {"InitProducerId": 5}
"""Version 6 is for two-phase commit (KIP-939), which is not released."""
_NEVER = frozenset({"GetTelemetrySubscriptions", "PushTelemetry"})
_CLIENT_FACING_KEYS_MAX = 75
"""Recorded exchanges of higher keys are those of share and streams groups, and of controllers."""


def ranges(state: State, served: frozenset[str]) -> dict[int, tuple[int, int]]:
    """Return the least and greatest served version by API key."""
    return dict(_ranges(served, frozenset(state.loaded.others)))


@functools.lru_cache(maxsize=64)
def _ranges(served: frozenset[str], others: frozenset[int]) -> dict[int, tuple[int, int]]:
    names = set(served)
    for key in others:
        name = schema.api_name(key)
        if key <= _CLIENT_FACING_KEYS_MAX and name and name not in _NEVER:
            names.add(name)
    found = {}
    for name in names:
        key = api_key(name)
        if key is not None and (known := _versions(key)):
            found[key] = known[0], _GREATEST.get(name, known[-1])
    return dict(sorted(found.items()))


@functools.cache
def _versions(key: int) -> tuple[int, ...]:
    request = schema.message(key, schema.REQUEST)
    return request.versions if request else ()


def response(found: dict[int, tuple[int, int]]) -> Any:
    """Return the response to any known version."""
    kind = messages.ApiVersionsResponse
    entries = [
        kind.ApiVersion(api_key=key, min_version=least, max_version=greatest)
        for key, (least, greatest) in found.items()
    ]
    return kind(api_keys=entries)


def refusal(found: dict[int, tuple[int, int]]) -> Any:
    """Return the response, in version 0, to an unknown version (KIP-511)."""
    body = response({API_VERSIONS: found[API_VERSIONS]})
    body.error_code = UNSUPPORTED_VERSION
    return body


def api_versions(state: State, call: Call) -> Any:
    """ApiVersions."""
    return response(state.ranges)


HANDLERS = {"ApiVersions": api_versions}
