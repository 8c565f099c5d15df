"""The security of each side of a connection: plaintext, or TLS as the user has set it.

::

    files ─ each second, in a thread ─▶ ContextSource ─ context ─▶ Handshakes ─▶ Secure

Nothing here waits for a disk in the event loop, once it runs.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from kproxy.levels import Logger
from kproxy.net.handshake import Failures, Handshakes, Secure, plaintext
from kproxy.net.logins import Logins
from kproxy.net.tls.contexts import ContextSource, broker_contexts, listen_contexts
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls, ListenTls
from kproxy.proxy.mechanisms import SCRAM

_CHECK_SECONDS = 1.0


@attrs.frozen
class Security:
    """The functions that make connections to brokers, and from clients, ready."""

    broker: Secure = plaintext
    client: Secure = plaintext
    query: Secure = plaintext
    """As `broker`, for kproxy's own requests: with its login, if it has one."""
    logins: Logins | None = None
    """kproxy's own logins; None: it has no credentials."""
    tasks: Sequence[Callable[[], Awaitable[None]]] = ()
    """What must run meanwhile: the handshakes, and the look after the files."""
    sources: Sequence[ContextSource] = ()
    failures: Failures = attrs.field(factory=Failures)
    """What has failed of all this."""

    async def use(self, broker: BrokerTls | None, credentials: Credentials | None) -> None:
        """Use other settings of TLS to brokers, and other credentials, from here on.

        Raises:
            TlsError: a file cannot be used.
            ValueError: TLS or a login would begin, or end.
        """
        source = next((each for each in self.sources if each.side == "to brokers"), None)
        if (source is None, self.logins is None) != (broker is None, credentials is None):
            raise ValueError("that TLS, or a login, begins or ends needs a restart")
        if source and broker:
            source.replace(await trio.to_thread.run_sync(broker_contexts, broker, source.log))
        if self.logins and credentials:
            self.logins.use(credentials)

    async def reload(self) -> None:
        """Load the files again, changed or not."""
        for source in self.sources:
            await _check(source, asked=True)


PLAINTEXT = Security()


def security(
    broker: BrokerTls | None,
    client: ListenTls | None,
    names: Sequence[str],
    log: Logger,
    credentials: Credentials | None = None,
    authenticate: bool = False,
) -> Security:
    """Load the TLS contexts. `names` are the hosts at which clients reach us, the preferred first;
    `authenticate`: use the credentials for clients, too.

    Raises:
        TlsError: a certificate, a key or a store cannot be used.
    """
    failures = Failures()
    handshakes = Handshakes(failures)
    to_broker = to_client = plaintext
    sources: list[ContextSource] = []
    if broker:
        source = broker_contexts(broker, log)
        sources.append(source)
        to_broker = handshakes.with_brokers(source.context, broker.server_name)
        if not broker.verified:
            what = "certificates of brokers are not verified: whoever is there is taken for one"
            log(what, "warning")
        elif not broker.names_verified:
            what = "any certificate that is trusted is taken"
            log(f"host names of brokers are not verified: {what}", "warning")
    if client:
        source = listen_contexts(client, _listener_names(names), log)
        sources.append(source)
        to_client = handshakes.with_clients(source.context)
    tasks: list[Callable[[], Awaitable[None]]] = [partial(_keep_loaded, each) for each in sources]
    if sources:
        tasks.append(handshakes.run)
    if credentials and credentials.mechanism not in SCRAM and not (broker and broker.verified):
        what = f"{credentials.mechanism} shows a password or a token to whoever is there"
        log(f"brokers to log in at are not verified, and {what}: use --broker-tls", "warning")
    logins = Logins(credentials, failures) if credentials else None
    query = logins.secured(to_broker) if logins else to_broker
    if logins and authenticate:
        to_broker = query
        tasks.append(logins.keep_token)
    return Security(to_broker, to_client, query, logins, tasks, sources, failures)


async def _keep_loaded(source: ContextSource) -> None:
    """Load the files of a source again when they change, until cancelled; a disk that hangs holds
    up nothing else."""
    while True:
        await trio.sleep(_CHECK_SECONDS)
        await _check(source)


async def _check(source: ContextSource, asked: bool = False) -> None:
    checked = await trio.to_thread.run_sync(source.check, asked, abandon_on_cancel=True)
    if checked:
        source.take(checked)


def _listener_names(names: Sequence[str]) -> list[str]:
    """Return all names and addresses at which this machine may be reached, without duplicates."""
    local = ["localhost", socket.gethostname(), "127.0.0.1", "::1"]
    wildcards = ("0.0.0.0", "::", "")
    return list(dict.fromkeys(name for name in (*names, *local) if name not in wildcards))
