"""The pump with machines of every shape: with one end, with defects, with something to do later."""

from __future__ import annotations

import contextlib
import itertools
import socket
import statistics
import struct
import time
import typing
from collections.abc import Callable

import attrs
import pytest
import trio

from kproxy.exchange.entries import Side
from kproxy.net import pump
from kproxy.net.descriptors import Descriptors
from kproxy.net.security import Security
from kproxy.net.transport import SocketTransport
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Dial,
    Eof,
    Listen,
    Log,
    Pause,
    Send,
    Unlisten,
)
from kproxy.proxy.machine import Accepted
from tests.net.proxied import receive_exactly, unused_port
from tests.net.pumped import Pumped, by, pumped
from tests.proxy.machines import Answerer, Caller

RESPONSE = b"response"


async def asked(at: Pumped, data: bytes = b"x") -> bytes:
    """What a new client is answered."""
    async with await at.connect() as client:
        await client.send_all(data)
        return await receive_exactly(client, len(RESPONSE))


def test_every_action_is_performed() -> None:
    assert set(pump.PERFORMERS) == set(typing.get_args(Action))


# ---- one end


async def test_a_machine_may_be_a_broker_itself() -> None:
    machine = Answerer(RESPONSE)
    async with pumped(machine) as at:
        assert await asked(at, b"request") == RESPONSE
        assert at.pump.connections_accepted == 1
    assert machine.received == {}


async def test_a_machine_is_told_when_a_slow_client_has_taken_all() -> None:
    class Told(Answerer):
        """Counts what it is told."""

        told: typing.ClassVar[list[tuple[int, Side]]] = []

        def all_sent(self, number, side, now) -> list[Action]:
            self.told.append((number, side))
            return []

    large = bytes(32 << 20)  # more than the system takes at once
    async with pumped(Told(large)) as at, await at.connect() as client:
        await client.send_all(b"x")
        assert await receive_exactly(client, 1) and not Told.told
        await receive_exactly(client, len(large) - 1)
        while not Told.told:
            await trio.sleep(0.001)
    assert Told.told == [(1, Side.CLIENT)]


async def test_a_machine_may_be_a_client() -> None:
    broker = Answerer(RESPONSE)
    caller = Caller()
    async with pumped(broker) as at, pumped(caller) as calling:
        calling.pump.perform(caller.call(1, ("127.0.0.1", at.port), b"request"))
        while not caller.received.get(1):
            await trio.sleep(0.001)
        assert caller.received == {1: RESPONSE} and broker.received == {1: b"request"}
        calling.pump.perform(caller.call(2, ("127.0.0.1", unused_port()), b"request"))
        while not caller.refused:
            await trio.sleep(0.01)
        assert "refuses connections" in caller.refused[2]
        assert calling.pump.connections_open == 1


# ---- dialling


class Dialling(Answerer):
    """Dials for each client, and echoes; it remembers in what order things happened."""

    def __init__(self, address: Address) -> None:
        super().__init__(RESPONSE)
        self.address = address
        self.events: list[str] = []

    def accepted(self, client, now) -> list[Action]:
        self.events.append("accepted")
        super().accepted(client, now)
        return [Dial(client.number, [self.address])]

    def dialled(self, *about) -> list[Action]:
        self.events.append("dialled")
        return []

    def not_dialled(self, number, reason, refused, now) -> list[Action]:
        self.events.append(reason)
        return self.closed(number, Side.BROKER, "eof", reason, now)

    def receive(self, number, side, data, now) -> list[Action]:
        self.events.append("received")
        return super().receive(number, side, data, now)


async def held_back(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Let connections be made only when the event that is returned is set."""
    go = trio.Event()
    open_tcp_stream = trio.open_tcp_stream

    async def late(host, port, **more):
        if port == 1:
            await go.wait()
            raise ConnectionRefusedError
        return await open_tcp_stream(host, port, **more)

    monkeypatch.setattr(trio, "open_tcp_stream", late)
    return go


async def test_while_a_broker_is_dialled_its_client_is_not_read(monkeypatch) -> None:
    go = await held_back(monkeypatch)
    machine = Dialling(("127.0.0.1", 1))
    machine.not_dialled = lambda number, reason, refused, now: []  # it goes on with one end
    async with pumped(machine) as at, await at.connect() as client:
        await client.send_all(b"x" * 100_000)
        while not machine.events:
            await trio.sleep(0.001)
        await asked_elsewhere()
        assert machine.events == ["accepted"]
        go.set()
        assert await receive_exactly(client, len(RESPONSE)) == RESPONSE


async def asked_elsewhere() -> None:
    """Give everything that is ready a turn: another pump does something meanwhile."""
    async with pumped(Answerer(RESPONSE)) as other:
        assert await asked(other) == RESPONSE


async def test_an_address_that_nothing_can_have_is_down_like_any_other() -> None:
    """A broker may advertise what it likes."""
    for address in (("127.0.0.1", 70_000), ("a\0b", 9092), ("a" * 70, 9092), ("", 9092)):
        machine = Dialling(address)
        async with pumped(machine) as at, await at.connect() as client:
            assert await client.receive_some() == b""
            assert machine.events[1].startswith(f"no broker: {address[0]}:{address[1]} ")
            assert not at.logs


# ---- time


async def test_a_machine_is_woken_when_it_wants_to_be() -> None:
    machine = Answerer(RESPONSE, delay_ns=20_000_000)
    late_ns = []
    async with pumped(machine) as at, await at.connect() as client:
        for number in range(20):
            machine.delay_ns = (5 + number) * 1_000_000
            await client.send_all(b"x")
            await receive_exactly(client, len(RESPONSE))
    for due, woken in machine.woken:
        assert woken >= due
        late_ns.append(woken - due)
    # As a rule within a millisecond or two; a busy machine may be late now and then.
    assert statistics.median(late_ns) < 30_000_000
    assert max(late_ns) < 500_000_000


async def test_while_nothing_is_due_nothing_runs() -> None:
    machine = Answerer(RESPONSE, delay_ns=3600 * 10**9)
    polled: list[int] = []

    class Counted(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            polled.append(1)

    async with pumped(machine) as at, await at.connect() as client:
        await client.send_all(b"x")
        while not machine.busy:
            await trio.sleep(0.001)
        await trio.sleep(0.05)
        trio.lowlevel.add_instrument(counted := Counted())
        await trio.sleep(1.2)
        trio.lowlevel.remove_instrument(counted)
    assert sum(polled) <= 3, "only this test"


async def test_a_client_that_takes_nothing_is_closed_at_its_time(monkeypatch) -> None:
    usual_seconds = pump.CLOSE_SECONDS
    monkeypatch.setattr(pump, "CLOSE_SECONDS", 0.1)
    machine = Answerer(b"r" * (64 << 20))
    async with pumped(machine) as at, await at.connect() as client:
        await client.send_all(b"x")
        await receive_exactly(client, 1)
        started = time.monotonic()
        at.pump.perform(machine.stop(0))
        assert at.pump.connections_open == 1, "there is more to send"
        while at.pump.connections_open:
            await trio.sleep(0.005)
        assert 0.09 < time.monotonic() - started < usual_seconds


# ---- defects: each ends its connection only


EVENTS = ["accepted", "receive", "dialled", "not_dialled", "closed"]


@attrs.define
class Juggle:
    """An action that nobody knows."""

    connection: int


def _raise(*_: object) -> list[Action]:
    raise ZeroDivisionError("oh")


def _unknown(number: int, *_: object) -> list[Action]:
    return [Juggle(number)]  # type: ignore[list-item]


def _to_nobody(number: int, *_: object) -> list[Action]:
    return [Send(number, Side.BROKER, [b"x"], [])]


@pytest.mark.parametrize(
    ("event", "defect"),
    [
        *itertools.product(EVENTS, [_raise, _unknown]),
        ("accepted", _to_nobody),
        ("not_dialled", _to_nobody),
    ],
)
async def test_a_defect_ends_its_connection_only(
    event: str, defect: Callable[..., list[Action]]
) -> None:
    async with pumped(Answerer(RESPONSE)) as broker:
        port = unused_port() if event == "not_dialled" else broker.port
        machine = Dialling(("127.0.0.1", port))
        healthy = getattr(machine, event)

        def first_is_broken(of: int | Accepted, *more: object) -> list[Action]:
            number = of.number if isinstance(of, Accepted) else of
            return defect(number, *more) if number == 1 else healthy(of, *more)

        setattr(machine, event, first_is_broken)
        async with pumped(machine) as at:
            with contextlib.suppress(OSError, trio.BrokenResourceError):  # reset, at any time
                async with await at.connect() as client:
                    await client.send_all(b"x")
                    if event == "closed":
                        await receive_exactly(client, len(RESPONSE))
                        await client.send_eof()
                    while await client.receive_some():
                        pass
            lines = [line for line in at.logs if "defect" in line]
            assert lines[0].startswith("connection 1 ended by a defect in kproxy, please report it")
            assert all("\n" not in line for line in at.logs)
            while at.pump.connections_open:
                await trio.sleep(0.001)
            if event != "not_dialled":
                assert await asked(at) == RESPONSE
            else:
                async with await at.connect() as second:
                    assert await second.receive_some() == b""
            assert at.pump.connections_accepted == 2


async def test_a_defect_in_a_timer_is_logged_and_not_repeated_at_once() -> None:
    class Broken(Answerer):
        def wake(self, now: int) -> list[Action]:
            raise ZeroDivisionError("oh")

    machine = Broken(RESPONSE, delay_ns=1_000_000)
    async with pumped(machine) as at, await at.connect() as client:
        await client.send_all(b"x")
        while not at.logs:
            await trio.sleep(0.01)
        await trio.sleep(0.2)
        assert len(at.logs) == 1 and at.logs[0].startswith("a timer failed by a defect in kproxy")
        machine.delay_ns = 0
        assert await asked(at) == RESPONSE


async def test_a_defect_while_stopping_does_not_hold_up_the_end() -> None:
    class Broken(Answerer):
        def stop(self, now: int) -> list[Action]:
            raise ZeroDivisionError("oh")

    async with pumped(Broken(RESPONSE)) as at:
        await at.pump.drain(0.05)
        assert at.logs == [
            "stopping failed by a defect in kproxy, please report it: ZeroDivisionError: oh"
        ]


# ---- transports that have something to flush


class Sluggish:
    """Takes all that it is given, and sends a little of it at a time, as TLS may."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._inner = SocketTransport(stream)
        self._kept = b""
        self._ended = False
        self.fileno, self.try_receive = self._inner.fileno, self._inner.try_receive
        self.close = self._inner.close

    @property
    def wants_write(self) -> bool:
        return bool(self._kept) or self._ended

    def try_send(self, data: bytes | memoryview) -> int:
        if self._kept:
            return 0
        self._kept = bytes(data)
        return len(data)

    def flush(self) -> None:
        sent = self._inner.try_send(self._kept[:1000])
        self._kept = self._kept[sent:]
        if self._ended and not self._kept:
            self._ended = False
            self._inner.send_eof()

    def send_eof(self) -> None:
        self._ended = True


SLUGGISH = Security(by(Sluggish), by(Sluggish))


async def test_what_a_transport_holds_back_is_flushed_before_it_ends() -> None:
    response = b"r" * 50_000

    class Ending(Answerer):
        def receive(self, number, side, data, now) -> list[Action]:
            actions = super().receive(number, side, data, now)
            if data == b"half":
                return [*actions, Eof(number, Side.CLIENT)]
            return [*actions, Close(number, False)]

    for word in (b"half", b"all"):
        async with (
            pumped(Ending(response), security=SLUGGISH) as at,
            await at.connect() as client,
        ):
            await client.send_all(word)
            assert await receive_exactly(client, len(response)) == response
            assert await client.receive_some() == b""
            assert at.pump.connections_open == (1 if word == b"half" else 0)


class Rekeying(Sluggish):
    """Sends the rest when it receives something, as TLS may for a peer that wants new keys."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.try_receive = self._send_and_receive

    def flush(self) -> None:
        return

    def _send_and_receive(self) -> bytes | None:
        received = self._inner.try_receive()
        if self._kept and received:
            assert self._inner.try_send(self._kept) == len(self._kept)
            self._kept = b""
        return received


async def test_a_machine_is_told_that_all_was_sent_while_something_was_received() -> None:
    class Pausing(Answerer):
        """Sends a response; then it wants no more from the client."""

        told: typing.ClassVar[list[str]] = []

        def receive(self, number, side, data, now) -> list[Action]:
            self.told.append(data.decode())
            if data == b"2":
                return [Pause(number, side)]
            return super().receive(number, side, data, now)

        def all_sent(self, number, side, now) -> list[Action]:
            self.told.append("all sent")
            return []

    security = Security(by(Rekeying), by(Rekeying))
    async with (
        pumped(Pausing(RESPONSE), security=security) as at,
        await at.connect() as client,
    ):
        await client.send_all(b"1")
        while not Pausing.told:
            await trio.sleep(0.001)
        await client.send_all(b"2")
        assert await receive_exactly(client, len(RESPONSE)) == RESPONSE
        while "2" not in Pausing.told:
            await trio.sleep(0.001)
    assert Pausing.told == ["1", "all sent", "2"]


# ---- open files


async def test_listeners_leave_half_of_the_open_files_to_clients() -> None:
    class Many(Answerer):
        """Wants a listener for each of a hundred nodes."""

        opened: typing.ClassVar[list[int]] = []
        refused: typing.ClassVar[list[str]] = []

        def listening(self, node_id, address, now) -> list[Action]:
            self.opened.append(node_id)
            return []

        def not_listening(self, node_id, reason, now) -> list[Action]:
            self.refused.append(reason)
            return [Log("as the machine says")] if node_id == 99 else []

    machine = Many(RESPONSE)
    async with pumped(machine, descriptors=Descriptors(80)) as at:
        at.pump.perform([Listen(node_id, 0) for node_id in range(100)])
        assert len(machine.opened) == 19 and len(machine.refused) == 81
        assert "ulimit -n 80" in machine.refused[0]
        assert len(at.logs) == 2 and "ulimit -n 80 allows 20 listeners" in at.logs[0]
        assert at.pump.acceptor.connections_max == 10
        assert await asked(at) == RESPONSE


async def test_a_lack_of_descriptors_while_accepting_is_one_line(monkeypatch) -> None:
    accept = socket.socket.accept
    failing = [24, 24, 23, 105]

    def starved(self: socket.socket) -> tuple[socket.socket, object]:
        if failing:
            raise OSError(failing.pop(), "no")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", starved)
    async with pumped(Answerer(RESPONSE)) as at:
        assert await asked(at) == RESPONSE
        assert at.logs == ["clients must wait to be accepted: no buffer space available"]


async def test_a_listener_that_is_closed_leaves_its_clients(monkeypatch) -> None:
    class Opening(Answerer):
        port = 0

        def listening(self, node_id, address, now) -> list[Action]:
            self.port = address[1]
            return []

    machine = Opening(RESPONSE)
    async with pumped(machine) as at:
        at.pump.perform([Listen(1, 0)])
        async with await trio.open_tcp_stream("127.0.0.1", machine.port) as client:
            await client.send_all(b"x")
            assert await receive_exactly(client, len(RESPONSE)) == RESPONSE
            assert len(at.pump.acceptor.listening) == 2
            at.pump.perform([Unlisten(1)])
            assert (
                len(at.pump.acceptor.listening) == 1
                and machine.port not in at.pump.acceptor.listening.ports
            )
            with pytest.raises(OSError, match="all attempts to connect"):
                await trio.open_tcp_stream("127.0.0.1", machine.port)
            await client.send_all(b"y")
            assert await receive_exactly(client, len(RESPONSE)) == RESPONSE
        at.pump.perform([Listen(1, machine.port)])
        assert await asked(at) == RESPONSE
        assert not at.logs


@attrs.define(eq=False)
class Closer(Answerer):
    """A broker that answers with more than a socket takes, and closes behind it."""

    ended: list[str] = attrs.field(factory=list)
    """The ends of connections that it was told of."""

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """See Machine."""
        return [Send(number, Side.CLIENT, [bytes(32 << 20)], []), Close(number, False)]

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """See Machine."""
        self.ended.append(how)
        return []


async def test_a_reset_while_the_last_bytes_leave_ends_the_connection_once() -> None:
    machine = Closer(RESPONSE)
    async with pumped(machine) as at:
        client = await at.connect()
        await client.send_all(b"request")
        await client.receive_some(1)
        linger = struct.pack("ii", 1, 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await client.aclose()
        with trio.fail_after(3):  # less than a link is kept to send its last bytes
            while at.pump.connections_open:
                await trio.sleep(0.01)
    assert machine.ended == []
