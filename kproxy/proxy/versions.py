"""ApiVersions: the part that the proxy must take in it.

ApiVersions passes through. But a version that kproxy's table lacks, of an API whose responses carry
broker addresses, would lead clients past the proxy without a word. So for these APIs, and only
these, the newest version that a broker offers is lowered to the newest that kproxy can rewrite; and
an ApiVersions request that is itself too new gets the response of an old broker (KIP-511: version
0, UNSUPPORTED_VERSION, our range), after which the client requests again with a version that we
know. A version that cannot be lowered is logged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from kproxy.exchange.entries import Splice
from kproxy.proxy import rewrite
from kproxy.proxy.verdicts import Verdict
from kproxy.wire.protocol import (
    ProtocolError,
    Response,
    api_name,
    codec,
    encode_response,
    messages,
    schema,
)

API_VERSIONS = codec.API_VERSIONS
_UNREADABLE = (
    "the broker's response to ApiVersions cannot be decoded: versions that kproxy cannot rewrite"
    " may be negotiated"
)
_UNSUPPORTED_VERSION = codec.UNSUPPORTED_VERSION.to_bytes(2)


@functools.cache
def newest_with_addresses() -> Mapping[int, int]:
    """Return the newest version in the table of each API whose responses carry addresses."""
    newest: dict[int, int] = {}
    for api_key in schema.api_names():
        message = schema.message(api_key, schema.RESPONSE)
        if message is None or not message.versions:
            continue
        if rewrite.address_fields(api_key, max(message.versions)) is not None:
            newest[api_key] = max(message.versions)
    return newest


def lower_versions(frame: bytes, api_version: int) -> tuple[tuple[Splice, ...], list[str]]:
    """Return the splices that lower versions in an ApiVersions response, and lines to log."""
    refused = frame[8:10] == _UNSUPPORTED_VERSION
    if refused:
        api_version = 0
    message = schema.message(API_VERSIONS, schema.RESPONSE)
    if message is None or api_version not in message.versions:
        return (), []
    paths = ("api_keys.api_key", "api_keys.min_version", "api_keys.max_version")
    try:
        spans, _ = codec.locate(message, api_version, paths, whole=False)(frame, 8)
    except ProtocolError:
        return (), [] if refused else [_UNREADABLE]
    splices: list[Splice] = []
    reports: list[str] = []
    api_key = least = 0
    for index, start, _, end in spans:
        value = int.from_bytes(frame[start:end], signed=True)
        if index == 0:
            api_key = value
        elif index == 1:
            least = value
        elif index == 2 and value > newest_with_addresses().get(api_key, value):
            newest = newest_with_addresses()[api_key]
            name = api_name(api_key)
            if least > newest:
                reports.append(
                    f"the broker has {name} from version {least} on, kproxy rewrites it up to"
                    f" {newest}: clients will see the broker's own addresses; update kproxy"
                )
                continue
            splices.append((start, end - start, newest.to_bytes(2)))
            reports.append(
                f"the broker offers {name} {value}; clients are told {newest}, the newest that"
                " kproxy can rewrite"
            )
    return tuple(splices), reports


def too_new_report(api_key: int, api_version: int) -> str | None:
    """Return a line to log about a request in a version that the table lacks.

    None unless the API's responses carry broker addresses, which then cannot be rewritten.
    """
    if api_key not in newest_with_addresses():
        return None
    return (
        f"a client sends {api_name(api_key)} version {api_version}, which kproxy does not know: its"
        " response passes as it is, with the broker's own addresses"
    )


def answer_as_old_broker(frame: bytes) -> Verdict:
    """Return the verdict on an ApiVersions request in a version that the table lacks."""
    message = schema.message(API_VERSIONS, schema.REQUEST)
    assert message is not None
    kind = messages.ApiVersionsResponse
    ours = kind.ApiVersion(
        api_key=API_VERSIONS,
        min_version=min(message.versions),
        max_version=max(message.versions),
    )
    body = kind(error_code=codec.UNSUPPORTED_VERSION, api_keys=[ours])
    header = messages.ResponseHeader(correlation_id=int.from_bytes(frame[8:12], signed=True))
    data = encode_response(Response(header, body, 0), API_VERSIONS)
    return Verdict(frames=(), response=Verdict(frames=(data,)))
