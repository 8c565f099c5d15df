"""Secrets are blanked out, frames stay valid, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import REDACTED, Side
from kproxy.proxy.redact import blank, has_token, is_sensitive, redact
from kproxy.wire.protocol import (
    ProtocolError,
    Request,
    Response,
    api_key,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    messages,
    schema,
)
from tests.proxy.playing import Player
from tests.wire.protocol.making import few
from tests.wire.protocol.strategies import bodies

SECRET = "s3cr3t-Pässword"


def request(api: str, version: int, **fields) -> bytes:
    body = getattr(messages, f"{api}Request")(**fields)
    header = messages.RequestHeader(
        api_key=api_key(api), api_version=version, correlation_id=7, client_id="app"
    )
    return encode_request(Request(header, body))


def response(api: str, version: int, **fields) -> bytes:
    body = getattr(messages, f"{api}Response")(**fields)
    header = messages.ResponseHeader(correlation_id=7)
    return encode_response(Response(header, body, version), api_key(api))


def versions(api: str) -> tuple[int, ...]:
    return schema.message(api_key(api), schema.REQUEST).versions


def config(kind, name: str, value: str | None):
    return kind(name=name, value=value)


def secret_frames(api: str, version: int) -> list[tuple[Side, bytes]]:
    """Frames of an API and version that hold SECRET wherever a secret can be."""
    m = messages
    raw = SECRET.encode()
    client, broker = Side.CLIENT, Side.BROKER
    match api:
        case "SaslAuthenticate":
            return [
                (client, request(api, version, auth_bytes=raw)),
                (broker, response(api, version, auth_bytes=raw, error_message=SECRET)),
            ]
        case "CreateDelegationToken":
            return [(broker, response(api, version, token_id=SECRET, hmac=raw))]
        case "RenewDelegationToken" | "ExpireDelegationToken":
            return [(client, request(api, version, hmac=raw))]
        case "DescribeDelegationToken":
            token = m.DescribeDelegationTokenResponse.DescribedDelegationToken(
                token_id=SECRET, hmac=raw
            )
            return [(broker, response(api, version, tokens=[token]))]
        case "AlterUserScramCredentials":
            upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name="user", salt=raw, salted_password=raw
            )
            return [(client, request(api, version, upsertions=[upsertion]))]
        case "Envelope":
            return [
                (client, request(api, version, request_data=raw)),
                (broker, response(api, version, response_data=raw)),
            ]
        case "AlterConfigs" | "IncrementalAlterConfigs":
            kind = getattr(m, f"{api}Request")
            entry = kind.AlterableConfig
            resource_kind = kind.AlterConfigsResource
            configs = [
                entry(name="cleanup.policy", value="compact"),
                entry(name="listener.name.ext.ssl.keystore.password", value=SECRET),
                entry(name="retention.ms", value=None),
                entry(name="sasl.jaas.config", value=SECRET),
            ]
            return [(client, request(api, version, resources=[resource_kind(configs=configs)]))]
        case "CreateTopics":
            kind = m.CreateTopicsRequest
            topic = kind.CreatableTopic(
                name="t",
                configs=[
                    kind.CreatableTopicConfig(name="confluent.secret", value=SECRET),
                    kind.CreatableTopicConfig(name="segment.bytes", value="1"),
                ],
            )
            return [(client, request(api, version, topics=[topic]))]
        case "DescribeConfigs":
            kind = m.DescribeConfigsResponse
            synonym = kind.DescribeConfigsSynonym(name="ssl.key.password", value=SECRET)
            configs = [
                kind.DescribeConfigsResourceResult(
                    name="ssl.key.password",
                    value=SECRET,
                    synonyms=[synonym],
                ),
                kind.DescribeConfigsResourceResult(name="min.insync.replicas", value="2"),
            ]
            result = kind.DescribeConfigsResult(configs=configs)
            return [(broker, response(api, version, results=[result]))]
    raise AssertionError(api)


APIS = [
    "SaslAuthenticate",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "AlterUserScramCredentials",
    "Envelope",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "CreateTopics",
    "DescribeConfigs",
]

CONVERSATIONS = [*APIS, "DescribeUserScramCredentials"]
"""The APIs whose frames may hold a secret where no field is."""


def decoded(side: Side, frame: bytes, key: int, version: int):
    if side is Side.CLIENT:
        return decode_request(frame)
    return decode_response(frame, key, version)


@pytest.mark.parametrize("api", APIS)
def test_no_version_keeps_a_secret_and_every_frame_stays_valid(api: str) -> None:
    for version in versions(api):
        for side, frame in secret_frames(api, version):
            assert SECRET.encode() in frame, "the test must hold what it looks for"
            redacted = redact(frame, side, api_key(api), version)
            assert is_sensitive(api_key(api))
            assert SECRET.encode() not in redacted
            assert len(redacted) == len(frame)
            assert decoded(side, redacted, api_key(api), version)
            unstarred = bytes(
                b if a == ord("*") else a for a, b in zip(redacted, frame, strict=True)
            )
            assert unstarred == frame, "only stars replace bytes"


@pytest.mark.parametrize(
    "name",
    [
        "azure.account.key",
        "fs.azure.storageAccountKey",
        "eventhub.connection.string",
        "azblob.connectionString",
        "azure.sas.token",
        "jdbc.pwd",
        "influx.token",
        "smtp.pass",
        "encryption.key",
        "connection.url",
        "connection.uri",
        "PWD",
        "token",
        "sentry.dsn",
        "AzureWebJobsSharedAccessKey",
    ],
)
def test_configs_that_look_secret_are_blanked(name: str) -> None:
    kind = messages.AlterConfigsRequest
    entry = kind.AlterableConfig(name=name, value=SECRET)
    frame = request("AlterConfigs", 1, resources=[kind.AlterConfigsResource(configs=[entry])])
    redacted = redact(frame, Side.CLIENT, api_key("AlterConfigs"), 1)
    assert redacted is not None and SECRET.encode() not in redacted
    topics = messages.CreateTopicsRequest
    config = topics.CreatableTopicConfig(name=name, value=SECRET)
    topic = topics.CreatableTopic(name="t", configs=[config])
    redacted = redact(
        request("CreateTopics", 5, topics=[topic]), Side.CLIENT, api_key("CreateTopics"), 5
    )
    assert redacted is not None and SECRET.encode() not in redacted


@pytest.mark.parametrize(
    "name",
    [
        "sasl.login.class",
        "ssl.endpoint.identification.algorithm",
        "delegation.token.max.lifetime.ms",
        "connections.max.idle.ms",
        "max.connections.per.ip",
        "compression.type",
        "key.converter",
        "message.timestamp.type",
    ],
)
def test_configs_that_only_concern_security_are_no_secrets(name: str) -> None:
    kind = messages.AlterConfigsRequest
    entry = kind.AlterableConfig(name=name, value="visible")
    frame = request("AlterConfigs", 1, resources=[kind.AlterConfigsResource(configs=[entry])])
    assert redact(frame, Side.CLIENT, api_key("AlterConfigs"), 1) is None


def test_what_cannot_be_walked_is_blanked_whole() -> None:
    frame = request("SaslAuthenticate", 2, auth_bytes=SECRET.encode())
    future = frame[:6] + (99).to_bytes(2) + frame[8:]
    broken = frame[:-3]
    for data, version in ((future, 99), (broken, 2)):
        redacted = redact(data, Side.CLIENT, api_key("SaslAuthenticate"), version)
        assert redacted == data[:12] + bytes(len(data) - 12)


# ── what no field explains


def structs(value: Any) -> Iterator[Any]:
    """A message and all structs in it."""
    if isinstance(value, list):
        for each in value:
            yield from structs(each)
    elif hasattr(value, "unknown_tags"):
        yield value
        for slot in type(value).__slots__:
            yield from structs(getattr(value, slot))


def is_flexible(side: Side, api: str, version: int) -> bool:
    direction = schema.REQUEST if side is Side.CLIENT else schema.RESPONSE
    return version in schema.message(api_key(api), direction).flexible_versions


@pytest.mark.parametrize("shorter", [1, 8, 12, len(SECRET)])
def test_a_token_whose_length_is_too_small_is_in_no_field_behind_it(shorter: int) -> None:
    kind = messages.RenewDelegationTokenRequest
    header = messages.RequestHeader(api_key=39, api_version=1, correlation_id=7)
    body = kind(hmac=SECRET.encode(), renew_period_ms=1)
    frame = bytearray(encode_request(Request(header, body)))
    frame[frame.index(SECRET.encode()) - 1] -= shorter
    redacted = redact(bytes(frame), Side.CLIENT, 39, 1)
    assert redacted is not None and len(redacted) == len(frame)
    for start in range(len(SECRET) - 5):
        assert SECRET.encode()[start : start + 6] not in redacted


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("api", CONVERSATIONS)
def test_nothing_that_no_field_explains_is_kept(api: str, side: Side) -> None:
    client = side is Side.CLIENT
    message = schema.message(api_key(api), schema.REQUEST if client else schema.RESPONSE)

    @few(8)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions(api)))
        body = data.draw(bodies(message, version, tame=True, tags=False))
        kind = messages.RequestHeader if client else messages.ResponseHeader
        header = kind(correlation_id=7)
        if client:
            header = attrs.evolve(header, api_key=api_key(api), api_version=version)
        hidden = SECRET.encode() + data.draw(st.binary(max_size=200))
        places = [*structs(header), *structs(body)] if is_flexible(side, api, version) else []
        for place in places:
            place.unknown_tags = ((9_999, hidden),) if data.draw(st.booleans()) else ()
        behind = data.draw(st.sampled_from([b"", hidden]))
        if client:
            frame = encode_request(Request(header, body, behind))
        else:
            frame = encode_response(Response(header, body, version, behind), api_key(api))
        redacted = redact(frame, side, api_key(api), version) or frame
        assert is_sensitive(api_key(api))
        assert SECRET.encode() not in redacted
        assert len(redacted) == len(frame)
        if behind and has_token(api_key(api), side):
            assert redacted == blank(frame, side)
            return
        whole = decoded(side, redacted, api_key(api), version)
        assert len(whole.trailing) == len(behind)
        now = [*structs(whole.header), *structs(whole.body)]
        if places:
            sizes = [[(tag, len(each)) for tag, each in s.unknown_tags] for s in places]
            assert [[(tag, len(each)) for tag, each in s.unknown_tags] for s in now] == sizes
        assert redact(redacted, side, api_key(api), version) in (None, redacted)

    check()


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("api", CONVERSATIONS)
def test_any_bytes_at_all_keep_nothing_that_cannot_be_decoded(api: str, side: Side) -> None:
    @few(8)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(-1, max(versions(api)) + 1))
        start = api_key(api).to_bytes(2) + version.to_bytes(2, signed=True)
        start = (start if side is Side.CLIENT else b"") + bytes(4)
        rest = data.draw(st.binary(max_size=40)) + SECRET.encode()
        size = len(start) + len(rest)
        frame = size.to_bytes(4) + start + rest
        redacted = redact(frame, side, api_key(api), version) or frame
        assert len(redacted) == len(frame) and redacted[:4] == frame[:4]
        try:
            decoded(side, frame, api_key(api), version)
        except (ProtocolError, ValueError):
            assert redacted == blank(frame, side)

    check()


def test_bytes_that_hide_a_token_are_not_recorded() -> None:
    """A token behind a length that is too small, and in an unknown tagged field."""
    kind = messages.SaslAuthenticateRequest
    token = SECRET.encode()
    key = api_key("SaslAuthenticate")
    short = messages.RequestHeader(api_key=key, api_version=0, correlation_id=1, client_id="app")
    tagged = attrs.evolve(short, api_version=2, correlation_id=2)
    frames = [
        encode_request(Request(short, kind(auth_bytes=b"\0"), token)),
        encode_request(Request(tagged, kind(auth_bytes=b"\0", unknown_tags=((5, token),)))),
    ]
    player = Player()
    player.connect()
    for frame in frames:
        player.client(frame)
    recorded = player.frames(Side.CLIENT)
    assert [frame.flags & REDACTED for frame in recorded] == [REDACTED] * 2
    assert [len(frame.data) for frame in recorded] == [len(frame) for frame in frames]
    assert not any(token in frame.data for frame in recorded)


def test_bytes_behind_configs_are_blanked_and_the_configs_stay() -> None:
    kind = messages.AlterConfigsRequest
    entry = kind.AlterableConfig(name="cleanup.policy", value="compact")
    frame = request("AlterConfigs", 1, resources=[kind.AlterConfigsResource(configs=[entry])])
    longer = frame + SECRET.encode()
    longer = (len(longer) - 4).to_bytes(4) + longer[4:]
    redacted = redact(longer, Side.CLIENT, api_key("AlterConfigs"), 1)
    assert redacted is not None
    assert redacted[4:] == frame[4:] + bytes(len(SECRET.encode()))
