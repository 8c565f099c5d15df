"""kproxy's own logins at brokers, and the tokens for them.

::

    Credentials ─▶ Logins ── secured ─▶ Secure: connect, TLS, log in ─▶ Secured with a LoginSession
                     │   └── log_in ──▶ the same login anew, on a connection that is in use
                     └ fetch_token: a command, a file, an endpoint, AWS ─ kept until it is old

Invariants: a login, the wait for its token included, ends within `LOGIN_SECONDS`, and holds up no
other connection. No secret, and no output of a command or an endpoint, is in an error.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from functools import partial
from typing import Any

import attrs
import trio

from kproxy.defects import defect
from kproxy.net.handshake import Failures, Secure, Secured
from kproxy.net.tls.credentials import MSK_IAM, OAUTHBEARER, Credentials, without_login
from kproxy.net.transport import Transport
from kproxy.proxy.authenticate import KINDS, Account, LoginFailed, LoginSession, authenticate
from kproxy.wire.protocol import ProtocolError, codec

LOGIN_SECONDS = 10.0
_FETCH_SECONDS = 5.0
_FETCH_AGAIN_SECONDS = 1.0
"""The pause after a token could not be fetched."""
_THREADS_MAX = 8
"""Threads that a slow endpoint, or a broker that wants much to be computed, can hold up."""
_KEPT_SECONDS = 60.0
"""A token that does not say how long it holds is fetched again after this time."""
_KEPT_SHARE = 0.75
"""A token is fetched again when this share of its time is over: before a session ends with it."""
_TOKEN_BYTES_MAX = 64 << 10
_BEARER = re.compile(r"[\w.~+/-]+=*", re.ASCII)
"""A bearer token (RFC 6750, 2.1)."""
_RESPONSE_BYTES_MAX = 1 << 20


@attrs.frozen
class Token:
    """A token, and for how long it holds."""

    text: str = attrs.field(repr=False)
    seconds: float


class Logins:
    """Logs in at brokers, with one account."""

    def __init__(self, credentials: Credentials, failures: Failures) -> None:
        self._credentials = credentials
        self._failures = failures.logins
        self._failures.update(dict.fromkeys(KINDS, 0))  # an increase is from a number
        self._fetching = trio.Lock()
        self._threads = trio.CapacityLimiter(_THREADS_MAX)
        self._token = ""
        self._fetch_at = self._ends_at = -math.inf
        self._failure = ""
        """The reason why the last attempt to fetch a token failed; empty: it did not."""

    def use(self, credentials: Credentials) -> None:
        """Log in with other credentials from here on."""
        self._credentials = credentials
        self._fetch_at = self._ends_at = -math.inf

    def secured(self, secure: Secure) -> Secure:
        """Return a function that makes a connection ready as `secure` does, and logs in."""
        return partial(self._secure, secure)

    async def _secure(self, secure: Secure, stream: trio.SocketStream, host: str) -> Secured:
        secured = await secure(stream, host)
        try:
            login = await self.log_in(secured.transport)
        except BaseException:
            secured.transport.close(False)
            raise
        return attrs.evolve(secured, login=login)

    async def log_in(
        self, transport: Transport, earlier: LoginSession | None = None
    ) -> LoginSession:
        """Log in on a connection, on which nothing else is under way.

        Raises:
            LoginFailed: the broker refuses it, or does not answer; or there is no token.
        """
        try:
            with trio.fail_after(LOGIN_SECONDS):
                return await self._exchange(transport, await self._account(), earlier)
        except LoginFailed as error:
            self._failures[error.kind] += 1
            raise
        except trio.TooSlowError:
            self._failures["timeout"] += 1
            raise LoginFailed("timeout", f"no login within {LOGIN_SECONDS:g} s") from None
        except OSError:
            self._failures["closed"] += 1
            raise LoginFailed("closed", "the broker hung up during kproxy's login") from None

    async def _exchange(
        self, transport: Transport, account: Account, earlier: LoginSession | None
    ) -> LoginSession:
        steps = authenticate(account, earlier)
        request = next(steps)
        while True:
            await _send(transport, request)
            response = await _receive_frame(transport)
            # In a thread: SCRAM computes as long as the broker wants it to.
            step = await trio.to_thread.run_sync(
                _next, steps, response, abandon_on_cancel=True, limiter=self._threads
            )
            if isinstance(step, LoginSession):
                return step
            request = step

    async def _account(self) -> Account:
        wanted = self._credentials
        if not wanted.by_token:
            return Account(wanted.mechanism, wanted.username, wanted.password)
        async with self._fetching:  # one at a time: the others take what it fetches
            await self._fetch_if_due()
            if self._failure and trio.current_time() >= self._ends_at:  # else the old one holds
                raise LoginFailed("token", f"no token for kproxy's login: {self._failure}")
        return Account(OAUTHBEARER, password=self._token, extensions=wanted.extensions)

    async def keep_token(self) -> None:
        """Fetch tokens before they end, so that no request waits for one, until cancelled."""
        while self._credentials.by_token:
            async with self._fetching:
                await self._fetch_if_due()
            again = trio.current_time() + _FETCH_AGAIN_SECONDS
            await trio.sleep_until(max(self._fetch_at, again))

    async def _fetch_if_due(self) -> None:
        began = trio.current_time()
        if began < self._fetch_at:
            return
        try:
            with trio.fail_after(_FETCH_SECONDS):
                token = await fetch_token(self._credentials, self._threads)
        except LoginFailed as error:
            self._failure = str(error)
        except trio.TooSlowError:
            self._failure = "it takes too long"
        except Exception as error:
            self._failure = defect(error)
        else:
            self._token, self._failure = token.text, ""
            self._fetch_at = began + token.seconds * _KEPT_SHARE
            self._ends_at = began + token.seconds
            return
        self._fetch_at = trio.current_time() + _FETCH_AGAIN_SECONDS


def _next(steps: Generator[bytes, bytes, LoginSession], response: bytes) -> bytes | LoginSession:
    """Return the next request of a login, or its end: a thread cannot raise StopIteration."""
    try:
        return steps.send(response)
    except StopIteration as stop:
        return stop.value


async def _send(transport: Transport, data: bytes) -> None:
    while data or transport.wants_write:
        data = data[transport.try_send(data) :] if data else data
        if data or transport.wants_write:
            await trio.lowlevel.wait_writable(transport.fileno())
            transport.flush()


async def _receive_frame(transport: Transport) -> bytes:
    data = bytearray()
    while True:
        try:
            if frames := codec.take_frames(data, _RESPONSE_BYTES_MAX):
                return frames[0]
        except ProtocolError:
            why = "the broker does not answer in Kafka's protocol (does its port speak TLS?)"
            raise LoginFailed("protocol", why) from None
        chunk = transport.try_receive()
        if chunk is None:
            await trio.lowlevel.wait_readable(transport.fileno())
            continue
        if not chunk:
            raise LoginFailed("closed", "the broker hung up during kproxy's login")
        data += chunk


# Tokens


async def fetch_token(wanted: Credentials, threads: trio.CapacityLimiter | None = None) -> Token:
    """Fetch a token from where these credentials say, in one of these threads.

    Raises:
        LoginFailed: there is none.
    """
    if wanted.token_command:
        return _token(await _output(wanted.token_command), "the command")
    fetch = _of_aws if wanted.mechanism == MSK_IAM else _of_file if wanted.token_file else _post
    return await trio.to_thread.run_sync(fetch, wanted, abandon_on_cancel=True, limiter=threads)


async def _output(command: str) -> bytes:
    """Run a command; return what it prints, or the beginning of too much. Nothing of it is left."""
    try:
        process = await trio.lowlevel.open_process(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=without_login(os.environ),
        )
    except (OSError, ValueError, IndexError) as error:
        what = getattr(error, "strerror", None) or "it is no command"
        raise _none(f"KPROXY_SASL_TOKEN_COMMAND: {what.lower()}") from None
    output = bytearray()

    async def read(stdout: trio.abc.ReceiveStream) -> None:
        async with stdout:
            while len(output) <= _TOKEN_BYTES_MAX and (data := await stdout.receive_some()):
                output.extend(data)
            if len(output) > _TOKEN_BYTES_MAX:
                _kill_group(process.pid)

    try:
        async with trio.open_nursery() as nursery:
            assert process.stdout is not None
            nursery.start_soon(read, process.stdout)
            await process.wait()
            _kill_group(process.pid)  # who still holds the pipe open
    finally:
        _kill_group(process.pid)
        with trio.CancelScope(shield=True):
            await process.wait()
    if process.returncode and len(output) <= _TOKEN_BYTES_MAX:
        raise _none(f"KPROXY_SASL_TOKEN_COMMAND ends with exit code {process.returncode}")
    return bytes(output)


def _kill_group(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _of_file(wanted: Credentials) -> Token:
    path = wanted.token_file
    assert path is not None
    try:
        with path.open("rb") as file:
            return _token(file.read(_TOKEN_BYTES_MAX + 1), str(path))
    except OSError as error:
        raise _none(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: another place would get the secret."""

    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
    ) -> None:
        """Refuse it."""


def _post(wanted: Credentials) -> Token:
    """Request a token with the credentials of a client (RFC 6749, 4.4), sent as Kafka's clients
    send them: what works for one of them works here."""
    form = {"grant_type": "client_credentials"} | ({"scope": wanted.scope} if wanted.scope else {})
    basic = base64.b64encode(f"{wanted.username}:{wanted.password}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
    where = f"the token endpoint at {urllib.parse.urlsplit(wanted.endpoint).hostname}"
    data = urllib.parse.urlencode(form).encode()
    try:
        request = urllib.request.Request(wanted.endpoint, data, headers)
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=_FETCH_SECONDS) as response:
            return _token(response.read(_TOKEN_BYTES_MAX + 1), where)
    except urllib.error.HTTPError as error:
        error.close()
        raise _none(f"{where} answers {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        why = getattr(cause, "verify_message", "") or getattr(cause, "strerror", "")
        raise _none(f"{where}: {why or 'no answer of HTTP'}") from None


def _of_aws(wanted: Credentials) -> Token:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    try:
        text, expires_ms = MSKAuthTokenProvider.generate_auth_token(wanted.region)
    except Exception as error:  # of botocore, which has many
        raise _none(f"AWS: {type(error).__name__}") from None
    return Token(text, expires_ms / 1000 - time.time())


def _token(output: bytes, where: str) -> Token:
    """Read a token: bare, or an answer of OAuth (RFC 6749, 5.1)."""
    try:
        text = output.decode("ascii").strip()
        body = json.loads(text) if text.startswith("{") else {"access_token": text}
        token, seconds = body["access_token"], body.get("expires_in")
        if not _BEARER.fullmatch(token) or len(output) > _TOKEN_BYTES_MAX:
            raise ValueError
        held_seconds = float(seconds) if seconds else _seconds_left(token)
        if not math.isfinite(held_seconds):
            raise ValueError
        return Token(token, held_seconds)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        raise _none(f"what {where} gives is no token") from None


def _seconds_left(token: str) -> float:
    """Return for how long a JWT holds; of another token, for how long it is kept."""
    try:
        claims = token.split(".")[1]
        decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return max(float(decoded["exp"]) - time.time(), 0)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return _KEPT_SECONDS


def _none(why: str) -> LoginFailed:
    return LoginFailed("token", why)
