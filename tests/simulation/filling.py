"""Random messages of every API and version, made from the table of messages and one generator.

A `Filler` fills whatever a layout has. Three kinds of values are not left to chance, and what it
puts there is kept, so that a check can say afterwards, without looking into any frame again, what
must have become of it:

* broker addresses, in the responses that have them (`addressed`);
* secrets: each is a text that occurs nowhere else (`secrets`);
* records: slices of one block, of a chosen size.

What is an address and what is a secret is written down here by hand, from Kafka's documentation
and not from the proxy's tables.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Callable
from typing import Any

from kproxy.wire.protocol import codec, messages, schema
from kproxy.wire.protocol.schema import Layout, Slot

ADDRESSES = {
    "Produce": range(10, 14),
    "Fetch": range(16, 19),
    "Metadata": range(14),
    "FindCoordinator": range(7),
    "DescribeCluster": range(3),
    "ShareFetch": range(3),
    "ShareAcknowledge": range(3),
}
"""The responses that lead clients to brokers, and since when."""

SECRETS: dict[tuple[str, str], set[str]] = {
    ("SaslAuthenticate", "request"): {"auth_bytes"},
    ("SaslAuthenticate", "response"): {"auth_bytes", "error_message"},
    ("CreateDelegationToken", "response"): {"token_id", "hmac"},
    ("RenewDelegationToken", "request"): {"hmac"},
    ("ExpireDelegationToken", "request"): {"hmac"},
    ("DescribeDelegationToken", "response"): {"token_id", "hmac"},
    ("AlterUserScramCredentials", "request"): {"salt", "salted_password"},
    ("Envelope", "request"): {"request_data", "request_principal"},
    ("Envelope", "response"): {"response_data"},
    ("CreateTopics", "request"): set(),
    ("CreateTopics", "response"): set(),
    ("AlterConfigs", "request"): set(),
    ("IncrementalAlterConfigs", "request"): set(),
    ("DescribeConfigs", "response"): set(),
}
"""Fields that are secret; no fields where values of configs can be."""

SENSITIVE = {api for api, _ in SECRETS} | {"DescribeUserScramCredentials", "SaslHandshake"}
"""Of all their messages nothing is kept that no field explains."""

SECRET_KEYS = (
    "ssl.keystore.password",
    "sasl.jaas.config",
    "ssl.keystore.key",
    "connect.api.key",
    "ssl.truststore.certificates",
    "listener.name.x.ssl.key.password",
)
PLAIN_KEYS = ("retention.ms", "cleanup.policy", "ssl.protocol", "a")

BLOCK = random.Random(0).randbytes(1 << 20) * 2
"""Where records are cut from."""

_WORDS = ("", "orders", "a", "topic-ä", "group.with.a.long.name" * 4, "\udcff\udc80", "x" * 130)
_INTS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}
_TAGS = (60, 127, 128, 16_383, 70_000, 2_097_151, 268_435_455)


def is_sensitive(api_key: int) -> bool:
    """Whether messages of this API can hold secrets, if only where no field is."""
    return schema.api_name(api_key) in SENSITIVE


@functools.cache
def _layout(api_key: int, direction: str, version: int) -> Layout:
    return codec.layout(schema.message(api_key, direction), version)


class Filler:
    """Makes messages; one for each seed."""

    def __init__(self, rng: random.Random, address: Callable[[], tuple[int, str, int]]) -> None:
        self._rng = rng
        self._address = address
        self.secrets: list[bytes] = []
        """Every secret made so far."""
        self.addressed: list[Any] = []
        """The structs of the last body that have an address."""
        self._records_max = 0
        self._array_min = 0
        self._fields: set[str] = set()
        self._has_addresses = self._has_configs = False
        self._config_is_secret = False

    def body(self, api_key: int, direction: str, version: int, records_max: int = 200) -> Any:
        """A random body; its records are at most so large, and there if that is a lot."""
        name = schema.api_name(api_key)
        self.addressed = []
        self._records_max = records_max
        self._array_min = 1 if records_max > 1000 else 0
        self._has_addresses = direction == "response" and version in ADDRESSES.get(name, ())
        found = SECRETS.get((name, direction))
        self._fields = found or set()
        self._has_configs = found == set()
        layout = _layout(api_key, direction, version)
        return self._struct(layout, messages.message_class(layout.message.name), None)

    def secret(self, size: int = 0) -> bytes:
        """A new secret text."""
        rng = self._rng
        text = b"S3" + b"%012x" % rng.getrandbits(48) + b"!" * size
        self.secrets.append(text)
        return text

    def tags(self, known: int = -1) -> tuple[tuple[int, bytes], ...]:
        """Unknown tagged fields with numbers above `known`; mostly none."""
        rng = self._rng
        if rng.random() < 0.9:
            return ()
        numbers = sorted(rng.sample(_TAGS, rng.randint(1, 3)))
        return tuple((n, rng.randbytes(rng.randint(0, 9))) for n in numbers if n > known)

    def _struct(self, layout: Layout, made_of: type, outer: type | None) -> Any:
        rng = self._rng
        names = {slot.name for slot in (*layout.slots, *layout.tagged)}
        is_config = self._has_configs and {"name", "value"} <= names
        if is_config and layout.name != "DescribeConfigsSynonym":
            self._config_is_secret = rng.random() < 0.6
        top = outer or made_of
        values: dict[str, Any] = {}
        for slot in layout.slots:
            values[slot.name] = self._slot(slot, top)
        for slot in layout.tagged:
            if rng.random() < 0.5 or self._array_min:
                values[slot.name] = self._slot(slot, top)
        if layout.flexible:
            values["unknown_tags"] = self.tags(max((s.tag or 0 for s in layout.tagged), default=-1))
        if is_config:
            self._config(values, 1_200_000 if layout.flexible else 30_000)
        made = made_of(**values)
        if self._has_addresses and {"host", "port"} <= names:
            node_id, made.host, made.port = self._address()
            setattr(made, "node_id" if "node_id" in names else "broker_id", node_id)
            if node_id >= 0 and made.host and made.port > 0:
                self.addressed.append(made)
        return made

    def _config(self, values: dict[str, Any], size_max: int) -> None:
        rng = self._rng
        if self._config_is_secret:
            values["name"] = rng.choice(SECRET_KEYS)
            size = size_max if rng.random() < 0.004 else rng.choice((0, 0, 200))
            values["value"] = self.secret(size).decode()
        else:
            values["name"] = rng.choice(PLAIN_KEYS)

    def _slot(self, slot: Slot, top: type) -> Any:
        rng = self._rng
        if slot.nullable and not self._array_min and rng.random() < 0.15:
            return None
        if slot.is_array:
            count = max(self._array_min, rng.choice((0, 1, 1, 2, 3)))
            return [self._value(slot, top) for _ in range(count)]
        return self._value(slot, top)

    def _value(self, slot: Slot, top: type) -> Any:
        rng, kind = self._rng, slot.kind
        if slot.name in self._fields:
            secret = self.secret()
            return secret.decode() if kind == "string" else secret
        if kind in _INTS:
            return self._int(_INTS[kind], kind != "uint16")
        match kind:
            case "string":
                return rng.choice(_WORDS)
            case "bool":
                return rng.random() < 0.5
            case "uuid":
                return uuid.UUID(int=rng.getrandbits(128))
            case "float64":
                return rng.random()
            case "bytes":
                return BLOCK[: rng.randint(0, 20)]
            case "records":
                size = rng.randint(self._records_max // 2, self._records_max)
                start = rng.randint(0, 1000)
                return BLOCK[start : start + size]
            case _:
                return self._struct(slot.struct, getattr(top, slot.struct.name), top)

    def _int(self, bits: int, signed: bool) -> int:
        rng = self._rng
        chosen = rng.random()
        if chosen < 0.5:
            return rng.randrange(8)
        value = rng.getrandbits(bits)
        return -value - 1 if signed and chosen > 0.75 else value
