"""What looks like a secret is found; what does not is left in peace."""

from __future__ import annotations

import json
import random
import time

import pytest

from kproxy.exchange.secrets import find, find_named, hint

JWT = (
    b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0"
    b".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)
KEY = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----"

SECRETS = {
    "JWT": (b"x " + JWT + b" y", "JWT", JWT),
    "private key": (KEY, "private key", KEY[:50]),
    "JSON": (b'{"user": "ann", "password": "hunter2!"}', "password", b"hunter2!"),
    "JSON in JSON": (b'{"a": "{\\"password\\": \\"hunter2!\\"}"}', "password", b"hunter2!"),
    "camel case": (b'{"dbPassword":"hunter2!"}', "password", b"hunter2!"),
    "properties": (b"ssl.keystore.password=hunter2!\nx=1", "password", b"hunter2!"),
    "JAAS": (b'PlainLoginModule username="a" password="s3cr3t";', "password", b"s3cr3t"),
    "YAML": (b"db:\n  passwd: hunter2\n", "password", b"hunter2"),
    "query": (b"https://h/x?api_key=9f8e7d6c5b4a&b=1", "password", b"9f8e7d6c5b4a"),
    "connection string": (
        b"Endpoint=sb://x;SharedAccessKeyName=r;SharedAccessKey=abcdEFGH1234+/=;E=y",
        "password",
        b"abcdEFGH1234+/=",
    ),
    "URL": (b"jdbc postgres://ann:hunter2@db:5432/x", "password in a URL", b"hunter2"),
    "redis": (b"redis://:hunter2@cache:6379", "password in a URL", b"hunter2"),
    "bearer": (
        b"Authorization: Bearer 8f14e45fceea167a5a36",
        "bearer token",
        b"8f14e45fceea167a5a36",
    ),
    "basic": (b"Authorization: Basic YW5uOmh1bnRlcjI=", "user and password", b"YW5uOmh1bnRlcjI="),
    "AWS": (b"AKIAIOSFODNN7EXAMPLE", "token", b"AKIAIOSFODNN7EXAMPLE"),
    "PKCS #8": (
        b"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END",
        "private key",
        b"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n",
    ),
    "GitHub": (b"ghp_" + b"a1B2" * 9, "token", b"ghp_" + b"a1B2" * 9),
    "access token": (
        b'{"access_token": "Zm9vYmFyYmF6cXV4MTIzNA"}',
        "token",
        b"Zm9vYmFyYmF6cXV4MTIzNA",
    ),
}
TOKENS = {
    "AWS, for a while": b"ASIA" + b"IOSFODNN7EXAMPLE",
    "GitHub, for some": b"github_pat_" + b"a1B2c" * 5,
    "GitLab": b"glpat-" + b"a1B2" * 5,
    "Google": b"AIza" + b"a1B2c" * 7,
    "Stripe": b"sk_live_" + b"a1B2" * 4,
    "npm": b"npm_" + b"a1B2" * 9,
    "SendGrid": b"SG." + b"a1B2" * 4 + b"." + b"a1B2" * 4,
    "Vault": b"hvs." + b"a1B2" * 6,
}
SECRETS |= {name: (b"x " + each + b" y", "token", each) for name, each in TOKENS.items()}


@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_is_found_where_it_is(what: str) -> None:
    data, kind, secret = SECRETS[what]
    (found,) = find(b"\x00\xff" + data)
    assert found.kind == kind
    assert (b"\x00\xff" + data)[found.start : found.end].startswith(secret)


NO_SECRETS = [
    {"order": 17, "state": "paid", "customer": "c-1", "total": 12.5, "key": "customer-3"},
    {"password_reset": True, "passwordLength": 12, "password": None, "token": "abc"},
    {"password": "********", "secret": "${VAULT_SECRET}", "api_key": "<your key>"},
    {"id": "9f8e7d6c-5b4a-3210-9f8e-7d6c5b4a3210", "next_token": "page-2", "keyboard": "qwerty"},
    {"url": "https://example.com:8443/a@b?x=1", "mail": "ann@example.com", "time": "12:30:00"},
    {"text": "I forgot my password: please help", "secretary": "Bob", "basic": "Basic training"},
    {"hash": "d41d8cd98f00b204e9800998ecf8427e", "bearer": "bearer of bad news", "monkey": "chimp"},
    {"primary_key": "order_id", "partition_key": "customer", "passport": "K1234567"},
]


@pytest.mark.parametrize("payload", NO_SECRETS, ids=str)
def test_ordinary_payloads_are_no_secrets(payload: dict[str, object]) -> None:
    assert find(json.dumps(payload).encode()) == []
    assert find(json.dumps(payload, indent=2).encode()) == []


def test_random_bytes_are_no_secrets() -> None:
    assert find(random.Random(7).randbytes(1 << 20)) == []


def test_a_value_is_judged_with_its_name() -> None:
    (found,) = find_named(b"x-api-key", b"9f8e7d6c5b4a")
    assert (found.start, found.end) == (0, 12)
    assert find_named(b"content-type", b"application/json") == []
    assert find_named(b"password", b"{}") == []


def test_a_hint_does_not_give_the_secret_away() -> None:
    assert hint(b"hunter2") == "h… (7 characters)"
    assert hint(b"abc") == "… (3 characters)"
    assert hint(b"\xff" * 64).endswith("… (64 characters)")


@pytest.mark.parametrize(
    "unit",
    [b"eyJ-", b"a.", b"xoxb-", b"password", b"password=", b"://a:", b"Bearer ", b"-----BEGIN A "],
)
def test_hostile_bytes_take_linear_time(unit: bytes) -> None:
    data = (unit * (1 << 17))[: 1 << 17] + b"://eyJbearer PRIVATE KEY-----"
    started = time.process_time()
    find(data)
    assert time.process_time() - started < 10
