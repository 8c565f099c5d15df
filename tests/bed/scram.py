"""The client's side of SCRAM (RFC 5802), as clients of Kafka have it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Generator


def tokens(
    mechanism: str, user: str, password: str, nonce: str = "abc"
) -> Generator[bytes, bytes, None]:
    """The client's tokens in turn; each takes the broker's answer, and the last is checked."""
    hash_name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()

    def sign(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, hash_name).digest()

    first = f"n={user},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    assert fields["r"].startswith(nonce) and len(fields["r"]) > len(nonce) + 10
    salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, rounds)
    bare = f"c=biws,r={fields['r']}"
    message = f"{first},{challenge},{bare}".encode()
    key = sign(salted, b"Client Key")
    signature = sign(hashlib.new(hash_name, key).digest(), message)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    answer = yield f"{bare},p={proof}".encode()
    expected = base64.b64encode(sign(sign(salted, b"Server Key"), message)).decode()
    assert answer.decode() == f"v={expected}", "the broker knows the password, too"
