"""Handshakes by the hundred: who has a turn, who waits, and whom that holds up."""

from __future__ import annotations

import contextlib
import functools
import ssl
import time
from collections.abc import AsyncIterator, Iterator

import attrs
import pytest
import trio

from kproxy.net.handshake import Failures, HandshakeFailed, Handshakes, Secured
from kproxy.net.tls_transport import TlsTransport
from tests.bed import certificates
from tests.bed.certificates import Certificates

CLIENTS = 40
STEP_SECONDS = 0.01
"""What a step takes here, as on a slow machine with long keys."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of both sides."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@attrs.define(eq=False)
class Rounds(trio.abc.Instrument):
    """Counts the rounds of the scheduler."""

    number: int = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


@contextlib.contextmanager
def counted() -> Iterator[Rounds]:
    """The rounds of the scheduler in a block."""
    rounds = Rounds()
    trio.lowlevel.add_instrument(rounds)
    try:
        yield rounds
    finally:
        trio.lowlevel.remove_instrument(rounds)


@attrs.define(eq=False)
class Steps:
    """The steps of handshakes that were taken: the descriptor, and the round of the scheduler."""

    rounds: Rounds
    taken: list[tuple[int, int]] = attrs.field(factory=list)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Have steps take long in a block, and note them."""
        steps, shake_hands = self, TlsTransport.shake_hands

        def slowly(transport: TlsTransport) -> bool:
            steps.taken.append((transport.fileno(), steps.rounds.number))
            until = time.monotonic() + STEP_SECONDS
            while time.monotonic() < until:
                pass
            return shake_hands(transport)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TlsTransport, "shake_hands", slowly)
            yield


def server(made: Certificates) -> ssl.SSLContext:
    """The context of who has the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.broker)
    return context


def client(made: Certificates) -> ssl.SSLContext:
    """The context of who verifies it."""
    return ssl.create_default_context(cafile=made.ca)


@contextlib.asynccontextmanager
async def running(handshakes: Handshakes) -> AsyncIterator[trio.Nursery]:
    """Run handshakes, and tasks beside them."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handshakes.run)
            yield nursery
            nursery.cancel_scope.cancel()


async def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a TCP connection."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        left = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
        return left, await listener.accept()


async def test_many_at_once_take_turns(made: Certificates) -> None:
    """One after the other, with a turn for others between any two steps; who has begun goes first,
    kproxy itself too, and nobody's time is over because he must wait."""
    seconds = CLIENTS * STEP_SECONDS * 2 * 0.9
    handshakes = Handshakes(Failures(), seconds)
    ended: list[str] = []
    with counted() as rounds:
        steps = Steps(rounds)
        secure = handshakes.with_clients(functools.partial(server, made))
        to_broker = handshakes.with_brokers(lambda: client(made), "localhost")

        async def come(number: int, all_here: trio.Event) -> None:
            ours, theirs = await pair()
            tls = trio.SSLStream(theirs, client(made), server_hostname="localhost")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tls.do_handshake)
                await trio.lowlevel.wait_readable(ours.socket)
                here.append(number)
                if len(here) == CLIENTS:
                    all_here.set()
                await all_here.wait()
                secured = await secure(ours, "")
                ended.append("client")
            secured.transport.close(False)
            await trio.aclose_forcefully(tls)

        async def dial(all_here: trio.Event) -> None:
            ours, theirs = await pair()
            tls = trio.SSLStream(theirs, server(made), server_side=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tls.do_handshake)
                await all_here.wait()
                while len(ended) < 3:
                    await trio.lowlevel.checkpoint()
                before = len(steps.taken)
                secured = await to_broker(ours, "")
                ended.append(f"broker after {len(steps.taken) - before} steps of clients")
            secured.transport.close(False)
            await trio.aclose_forcefully(tls)

        here: list[int] = []
        with steps.watched():
            async with running(handshakes) as nursery, trio.open_nursery() as coming:
                all_here = trio.Event()
                coming.start_soon(dial, all_here)
                for number in range(CLIENTS):
                    coming.start_soon(come, number, all_here)
        assert nursery.cancel_scope.cancel_called
    in_rounds = [number for _, number in steps.taken]
    assert len(set(in_rounds)) == len(in_rounds), "two steps without a turn for others"
    assert ended.count("client") == CLIENTS
    (broker,) = (word for word in ended if word != "client")
    assert int(broker.split()[2]) <= 6, broker
    first_steps = [descriptor for descriptor, _ in steps.taken]
    second = first_steps.index(first_steps[0], 1)
    assert second <= 4, f"the first one had to wait for {second} new ones"


async def test_who_says_nothing_takes_no_turn_and_ends_alone(made: Certificates) -> None:
    failures = Failures()
    handshakes = Handshakes(failures, seconds=0.05)
    failed: list[tuple[int, str]] = []
    with counted() as rounds:
        steps = Steps(rounds)
        secure = handshakes.with_clients(functools.partial(server, made))

        async def come(ours: trio.SocketStream) -> None:
            with pytest.raises(HandshakeFailed) as caught:
                await secure(ours, "")
            failed.append((rounds.number, str(caught.value)))

        pairs = [await pair() for _ in range(CLIENTS)]
        with steps.watched():
            async with running(handshakes), trio.open_nursery() as coming:
                for ours, _ in pairs:
                    coming.start_soon(come, ours)
        for _, theirs in pairs:
            async with theirs:
                assert await theirs.receive_some() == b""
    assert steps.taken == []
    assert {why for _, why in failed} == {"no TLS handshake within 0.05 s"}
    assert failures.tls == {("client", "timeout"): CLIENTS}
    assert len({number for number, _ in failed}) == CLIENTS, (
        "several ends without a turn for others"
    )


async def test_who_sends_byte_by_byte_ends(made: Certificates) -> None:
    """However often it sends, the time is that from the first step on."""
    handshakes = Handshakes(Failures(), seconds=0.3)
    secure = handshakes.with_clients(functools.partial(server, made))
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client(made).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    written = hello.read()
    ours, theirs = await pair()

    async def trickle() -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for byte in written:
                await theirs.send_all(bytes([byte]))
                await trio.sleep(0.02)

    async with running(handshakes) as nursery:
        nursery.start_soon(trickle)
        with pytest.raises(HandshakeFailed, match=r"no TLS handshake within 0\.3 s"):
            await secure(ours, "")
        await trio.aclose_forcefully(theirs)


async def test_who_is_given_up_leaves_nothing(made: Certificates) -> None:
    """A client that waits, one that has its turn next, and one in the middle are cancelled; the
    next with the same descriptors are served."""
    handshakes = Handshakes(Failures())
    secure = handshakes.with_clients(functools.partial(server, made))
    async with running(handshakes):
        for rounds_before in range(6):
            ours, theirs = await pair()
            tls = trio.SSLStream(theirs, client(made), server_hostname="localhost")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(secure, ours, "")
                if rounds_before:
                    nursery.start_soon(tls.do_handshake)
                for _ in range(rounds_before):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await trio.aclose_forcefully(theirs)
        ours, theirs = await pair()
        tls = trio.SSLStream(theirs, client(made), server_hostname="localhost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tls.do_handshake)
            secured = await secure(ours, "")
        assert secured.tls and secured.tls.version == "TLSv1.3"
        secured.transport.close(False)
        await trio.aclose_forcefully(tls)


async def test_what_comes_with_the_end_of_the_handshake_is_received(made: Certificates) -> None:
    """A client may send its first request with its last message: the descriptor tells of it."""
    ours, theirs = await pair()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client(made).wrap_bio(incoming, outgoing, server_hostname="localhost")
    handshakes = Handshakes(Failures())
    secured: list[Secured] = []

    async def accept() -> None:
        secured.append(await handshakes.with_clients(functools.partial(server, made))(ours, ""))

    async with running(handshakes) as nursery, theirs:
        nursery.start_soon(accept)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await theirs.send_all(outgoing.read())
                incoming.write(await theirs.receive_some())
        tls.write(b"first words")
        await theirs.send_all(outgoing.read())
        while not secured:
            await trio.lowlevel.checkpoint()
        transport = secured[0].transport
        await trio.lowlevel.wait_readable(transport.fileno())
        assert transport.try_receive() == b"first words"
        transport.close(False)
