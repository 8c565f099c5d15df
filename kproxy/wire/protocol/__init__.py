"""The Kafka wire format: bytes ↔ values. Knows no proxy, no file and no clock.

The table of all messages is `messages.txt`, that of the records of Kafka's coordinators
`coordinator_records.txt`; `schema` reads them, `codec` compiles them, `messages` makes classes of
them. A frame is an int32 size and that many bytes, and always includes its size here.
"""

from __future__ import annotations

from kproxy.wire.protocol.codec import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_known,
    request_body,
    request_header_version,
    response_body,
    response_header_version,
    response_version,
)
from kproxy.wire.protocol.errors import ProtocolError, error_code, error_name, is_retriable
from kproxy.wire.protocol.plain import to_json
from kproxy.wire.protocol.schema import api_key, api_name

__all__ = [
    "ProtocolError",
    "Request",
    "Response",
    "api_key",
    "api_name",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "error_code",
    "error_name",
    "is_known",
    "is_retriable",
    "request_body",
    "request_header_version",
    "response_body",
    "response_header_version",
    "response_version",
    "to_json",
]
