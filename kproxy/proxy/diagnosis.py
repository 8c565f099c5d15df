"""The likely mistake when a peer does not speak Kafka, or hangs up, and what to change."""

from __future__ import annotations

from typing import Any

from kproxy.proxy.framer import Violation
from kproxy.proxy.mechanisms import mechanism_of
from kproxy.wire.protocol import codec, error_name

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI ")
_REQUEST_BYTES_MIN = 8
LOGIN_KEYS = _SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
"""SaslHandshake and SaslAuthenticate."""
_NAMES_LENGTH_MAX = 200
SESSION_OVER = (
    "the broker hung up: the client did not log in anew before its session was over"
    " (connections.max.reauth.ms, or the lifetime of its token)"
)


def address_source(node_id: int | None) -> str:
    """Return the setting that names the broker of a connection."""
    return "--bootstrap" if node_id is None else f"advertised.listeners of node {node_id}"


def check_request(data: bytes, position: int, bytes_max: int, in_login: bool) -> None:
    """Raise a Violation if no Kafka request starts here, naming the likely mistake."""
    size = int.from_bytes(data[position : position + 4], signed=True)
    if not _REQUEST_BYTES_MIN <= size <= bytes_max:
        raise Violation(request_mistake(data[position : position + 4], bytes_max, in_login))


def request_mistake(start: bytes, bytes_max: int, in_login: bool) -> str:
    """Name the likely mistake where no Kafka request starts with these four bytes. In a login they
    may be of a token, so that they are not told, not even as a number."""
    if start[:2] == b"\x16\x03":
        return (
            "the client speaks TLS to a plaintext port: run kproxy with --listen-tls, or set"
            " security.protocol=PLAINTEXT (or SASL_PLAINTEXT) in the client"
        )
    if start in _HTTP:
        return "the client speaks HTTP: this port speaks the Kafka protocol"
    size = int.from_bytes(start, signed=True)
    if size < 0:
        return "a frame of a negative size: the client does not speak the Kafka protocol"
    if size < _REQUEST_BYTES_MIN:
        return f"a frame of {size} bytes is too small for a request header"
    request = "a request" if in_login else f"a request of {size} bytes"
    return (
        f"{request} is over the limit of {bytes_max} bytes (socket.request.max.bytes), or the"
        " client does not speak the Kafka protocol"
    )


def check_response(data: bytes, position: int, address_source: str) -> None:
    """Raise a Violation if no Kafka response starts here, naming the likely mistake."""
    start = data[position : position + 5]
    if start[:2] == b"\x15\x03":
        raise Violation(
            f"the broker answered with a TLS alert: its port ({address_source}) speaks TLS, and"
            " kproxy connects to it in plaintext: run it with --broker-tls"
        )
    if start.startswith(b"HTTP/"):
        raise Violation(
            f"the broker answered in HTTP: {address_source} does not name a Kafka broker"
        )
    size = int.from_bytes(start[:4], signed=True)
    if size < 4 and len(data) - position >= 4:
        size_named = "a negative size" if size < 0 else f"{size} bytes"
        raise Violation(f"the broker sent a frame of {size_named}: it does not speak Kafka")


def explain_hang_up(
    address_source: str, has_responded: bool, api_key: int, silent_tls: bool, answers: bool
) -> str | None:
    """Explain why a broker may have ended a connection with a pending request; None: no idea.

    `has_responded`: it responded to something other than ApiVersions; `api_key`: of the request
    that waits; `silent_tls`: it agreed on TLS, and sent no byte; `answers`: it answered another
    connection, so that it is not the wrong port.
    """
    if silent_tls:
        return (
            "the broker hung up without a response: if it requires a certificate of its clients,"
            " run kproxy with --broker-tls-cert"
        )
    if has_responded or api_key in LOGIN_KEYS or (answers and api_key == codec.API_VERSIONS):
        return None
    if api_key == codec.API_VERSIONS:
        return (
            f"the broker hung up without a response: if its listener ({address_source}) speaks TLS,"
            " run kproxy with --broker-tls"
        )
    return (
        "the broker hung up on the first request after ApiVersions: if it wants SASL, set"
        " security.protocol=SASL_PLAINTEXT (SASL_SSL with --listen-tls) and sasl.mechanism in the"
        " client"
    )


def bound_to_host(mechanism: str) -> str | None:
    """Return what to expect of a login that names the host; None: the mechanism names none."""
    why = mechanism_of(mechanism).bound_to_host
    return f"a client logs in with {mechanism}: {why} (kproxy help tls)" if why else None


def login_refusal(body: Any, mechanism: str, user: str = "") -> str:
    """Return why the broker refuses a login, by its response to SaslHandshake or SaslAuthenticate;
    empty: it does not.

    The broker's own words may quote a token, and are left out.
    """
    if mechanism == "OAUTHBEARER" and getattr(body, "auth_bytes", b""):
        # The answer names an error, else it is empty.
        return refused_credentials(mechanism, user=user)
    if not body.error_code:
        return ""
    error = error_name(body.error_code)
    if error == "ILLEGAL_SASL_STATE":
        return (
            f"the broker takes no login now ({error}): its listener wants none, or the connection"
            " is logged in already, as --authenticate does (then set security.protocol=PLAINTEXT,"
            " or SSL, in the client)"
        )
    if hasattr(body, "mechanisms"):
        offered = ", ".join(body.mechanisms)[:_NAMES_LENGTH_MAX]
        return (
            f"the broker does not offer {mechanism[:_NAMES_LENGTH_MAX]}, only {offered} ({error})"
        )
    return refused_credentials(mechanism, f" ({error})", user)


def refused_credentials(mechanism: str, error: str = "", user: str = "") -> str:
    """Return that the broker refuses what a client logs in with, and what may be wrong; without a
    mechanism, there was no SaslHandshake."""
    if not mechanism:
        return (
            "the broker hung up on a frame that is no request: if it is a SASL token without a"
            " SaslHandshake, only a SASL proxy, or a broker with GSSAPI, takes it"
        )
    wrong = mechanism_of(mechanism).wrong
    login = f"the login of user {user}" if user else "the login"
    return f"the broker refuses {login} with {mechanism[:_NAMES_LENGTH_MAX]}{error}: {wrong}"
