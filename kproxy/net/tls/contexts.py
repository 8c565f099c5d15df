"""OpenSSL contexts from settings, made again when a file changes.

::

    event loop: context ─▶ handshake          take: the new one is in use from here on
    a thread:   check ─▶ do the files differ (inode, size, times)? ─▶ load them ─▶ Checked ─┘

While new files cannot be used, the old ones stay in use; that is logged once, and tried again.

Invariants: only `check` touches a disk, which may hang; it changes nothing.

Errors: `TlsError` at the start; later a line in the log.
"""

from __future__ import annotations

import math
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from kproxy.levels import Logger
from kproxy.net.tls.settings import VERSIONS, BrokerTls, Identity, ListenTls, TlsError, Trust
from kproxy.net.tls.stores import load_identity, load_pem, load_revoked, load_trust

OPTIONS = ssl.OP_NO_RENEGOTIATION | getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
"""A peer may end without close_notify, as many clients do: frames of Kafka say their length, so
that nothing is cut off unseen. OpenSSL would answer by an alert, and end the other way, too."""


_RETRY_SECONDS = 10.0
"""The pause before files that cannot be used are tried again, if they do not change before."""

_LEAF_IN_USE_SECONDS = 60 * 86_400
"""A certificate by kproxy's own CA is replaced after this time, long before it ends."""

_FileStates = list[tuple[int, ...] | None]


@attrs.frozen
class Checked:
    """New files, or files that are due to be tried again."""

    states: _FileStates
    context: ssl.SSLContext | None
    """The context of these files; None: they cannot be used."""
    failure: str = ""
    """The reason why they cannot be used."""
    asked: bool = False
    """Somebody asked for them to be loaded, and wants to hear."""


class ContextSource:
    """Owns a context and the state of its files."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        side: str,
        files: list[Path],
        log: Logger,
        lasts_seconds: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the first context, for TLS "to brokers" or "to clients". One that is older than
        `lasts_seconds` by the clock is made anew.

        Raises:
            TlsError: the files cannot be used.
        """
        self._make = make
        self.side = side
        self._files = files
        self.log = log
        self._lasts_seconds = lasts_seconds
        self._clock = clock
        self._failure = ""
        """The reason that was logged why new files are not in use."""
        self._states = self._file_states()
        self._context = make()
        self._due = clock() + lasts_seconds
        """When the context is made anew though no file has changed."""

    def context(self) -> ssl.SSLContext:
        """Return the context for a handshake now."""
        return self._context

    def replace(self, other: ContextSource) -> None:
        """Use the context and the files of another one from here on."""
        self._make, self._files = other._make, other._files
        self._states, self._context = other._states, other._context

    def check(self, asked: bool = False) -> Checked | None:
        """Load the files if they have changed, are due, or if somebody `asked`; otherwise return
        None. May block."""
        states = self._file_states()
        if states == self._states and self._clock() < self._due and not asked:
            return None
        try:
            return Checked(states, self._make(), asked=asked)
        except Exception as error:  # files of other people: nothing in them may end the proxy
            return Checked(states, None, str(error), asked)

    def take(self, checked: Checked) -> None:
        """Use what was found, or go on without it."""
        new_files = checked.states != self._states or self._failure
        self._states = checked.states
        if checked.context is None:
            self._due = self._clock() + _RETRY_SECONDS
            if checked.asked or checked.failure != self._failure:
                what = f"TLS {self.side} goes on with the files from before"
                self.log(f"{what}: {checked.failure}", "warning")
        else:
            self._due = self._clock() + self._lasts_seconds
            self._context = checked.context
            files = f"files of TLS {self.side}"
            what = f"{files} have changed and are" if new_files else "a renewed certificate is"
            what = f"{files} are loaded again and" if checked.asked else what
            self.log(f"{what} in use")
        self._failure = checked.failure

    def _file_states(self) -> _FileStates:
        return [_state(path) for path in self._files]


def broker_contexts(tls: BrokerTls, log: Logger) -> ContextSource:
    """Return the contexts for connections to brokers.

    Raises:
        TlsError: a file cannot be used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and host name
        context.minimum_version, context.maximum_version = tls.versions
        _restrict_ciphers(context, tls.ciphers)
        context.options |= OPTIONS
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: any trusted one ends it
        context.check_hostname = tls.verified and tls.names_verified
        context.verify_mode = ssl.CERT_REQUIRED if tls.verified else ssl.CERT_NONE
        if tls.trust:
            load_trust(context, tls.trust)
        else:
            context.load_default_certs()
        if tls.revoked:
            load_revoked(context, tls.revoked)
        if tls.identity:
            load_identity(context, tls.identity)
        _log_keys(context, tls.key_log)
        return context

    return ContextSource(make, "to brokers", _files(tls.identity, tls.trust, tls.revoked), log)


def listen_contexts(
    tls: ListenTls,
    names: list[str],
    log: Logger,
    clock: Callable[[], float] = time.time,
) -> ContextSource:
    """Return the contexts for connections from clients; `names` are for a certificate of kproxy's
    own CA.

    Raises:
        TlsError: a file cannot be used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = VERSIONS
        context.options |= OPTIONS
        if tls.identity:
            load_identity(context, tls.identity)
        else:
            from kproxy.net.tls.authority import authority_file, make_leaf

            load_pem(context, make_leaf(names), authority_file())
        if tls.clients:
            load_trust(context, tls.clients)
            context.verify_mode = ssl.CERT_REQUIRED
        _log_keys(context, tls.key_log)
        return context

    lasts_seconds = math.inf if tls.identity else _LEAF_IN_USE_SECONDS
    files = _files(tls.identity, tls.clients)
    return ContextSource(make, "to clients", files, log, lasts_seconds, clock)


def _log_keys(context: ssl.SSLContext, path: Path | None) -> None:
    if path:
        try:
            path.touch(0o600)
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):  # a pipe would hold up the proxy
                raise TlsError(f"--tls-key-log: {path} is no regular file")
            if mode & 0o077:
                what = f"others may open {path} (mode {mode & 0o777:04o})"
                raise TlsError(f"--tls-key-log: {what}: chmod 600 it, or give another file")
            context.keylog_filename = str(path)
        except OSError as error:
            raise TlsError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _restrict_ciphers(context: ssl.SSLContext, ciphers: str | None) -> None:
    if ciphers:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise TlsError(f"ssl.cipher.suites: OpenSSL has none of {ciphers}") from error


def _files(
    identity: Identity | None, trust: Trust | None, revoked: Path | None = None
) -> list[Path]:
    found = [identity.certificate, identity.key] if identity else []
    return [path for path in (*found, trust and trust.authorities, revoked) if path]


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
