"""The security of each side of a connection: plaintext, or TLS as the user has set it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import attrs

from kproxy.net.handshake import Handshakes, Secure, plaintext
from kproxy.tls.contexts import broker_contexts, listen_contexts
from kproxy.tls.settings import BrokerTls, ListenTls


@attrs.frozen
class Security:
    """The functions that make connections to brokers, and from clients, ready."""

    broker: Secure = plaintext
    client: Secure = plaintext


PLAINTEXT = Security()


def security(
    broker: BrokerTls | None,
    client: ListenTls | None,
    names: Sequence[str],
    log: Callable[[str], None],
) -> Security:
    """Load the TLS contexts. `names` are the hosts at which clients reach us, the preferred first.

    Raises:
        TlsError: a certificate, a key or a store cannot be used.
    """
    handshakes = Handshakes()
    to_broker = to_client = plaintext
    if broker:
        to_broker = handshakes.with_brokers(broker_contexts(broker, log), broker.server_name)
        if not broker.verified:
            log("certificates of brokers are not verified: whoever is there is taken for one")
        elif not broker.names_verified:
            log("host names of brokers are not verified: any certificate that is trusted is taken")
    if client:
        to_client = handshakes.with_clients(listen_contexts(client, _listener_names(names), log))
    return Security(to_broker, to_client)


def _listener_names(names: Sequence[str]) -> list[str]:
    """Return all names and addresses at which this machine may be reached, without duplicates."""
    local = ["localhost", socket.gethostname(), "127.0.0.1", "::1"]
    wildcards = ("0.0.0.0", "::", "")
    return list(dict.fromkeys(name for name in (*names, *local) if name not in wildcards))
