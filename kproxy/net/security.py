"""The security of each side of a connection: plaintext, or TLS as the user has set it.

::

    files ─ each second, in a thread ─▶ ContextSource ─ context ─▶ Handshakes ─▶ Secure

Nothing here waits for a disk in the event loop, once it runs.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from kproxy.net.handshake import Handshakes, Secure, plaintext
from kproxy.net.tls.contexts import ContextSource, broker_contexts, listen_contexts
from kproxy.net.tls.settings import BrokerTls, ListenTls

_CHECK_SECONDS = 1.0


@attrs.frozen
class Security:
    """The functions that make connections to brokers, and from clients, ready."""

    broker: Secure = plaintext
    client: Secure = plaintext
    tasks: Sequence[Callable[[], Awaitable[None]]] = ()
    """What must run meanwhile: the handshakes, and the look after the files."""
    tls_failures: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    """The failures of TLS, by the peer ("client", "broker") and the kind."""


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
    sources: list[ContextSource] = []
    if broker:
        source = broker_contexts(broker, log)
        sources.append(source)
        to_broker = handshakes.with_brokers(source.context, broker.server_name)
        if not broker.verified:
            log("certificates of brokers are not verified: whoever is there is taken for one")
        elif not broker.names_verified:
            log("host names of brokers are not verified: any certificate that is trusted is taken")
    if client:
        source = listen_contexts(client, _listener_names(names), log)
        sources.append(source)
        to_client = handshakes.with_clients(source.context)
    if not sources:
        return PLAINTEXT
    tasks = [handshakes.run, *(partial(_keep_loaded, source) for source in sources)]
    return Security(to_broker, to_client, tasks, handshakes.failures)


async def _keep_loaded(source: ContextSource) -> None:
    """Load the files of a source again when they change, until cancelled; a disk that hangs holds
    up nothing else."""
    while True:
        await trio.sleep(_CHECK_SECONDS)
        checked = await trio.to_thread.run_sync(source.check, abandon_on_cancel=True)
        if checked:
            source.take(checked)


def _listener_names(names: Sequence[str]) -> list[str]:
    """Return all names and addresses at which this machine may be reached, without duplicates."""
    local = ["localhost", socket.gethostname(), "127.0.0.1", "::1"]
    wildcards = ("0.0.0.0", "::", "")
    return list(dict.fromkeys(name for name in (*names, *local) if name not in wildcards))
