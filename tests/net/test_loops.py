"""kproxy never connects to itself, whatever a broker advertises and a user types."""

from __future__ import annotations

import functools
import socket
import struct

import pytest
import trio

from kproxy.net import listeners, serve
from kproxy.net.listeners import Listening
from kproxy.net.unusable import Unusable
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import decode_response, messages
from tests.bed.logged import to
from tests.net.proxied import proxied, receive_exactly, unused_port
from tests.net.test_pump import answer, answering, ask
from tests.proxy.playing import metadata, request, response


def own_addresses() -> list[str]:
    """Addresses of this machine beside 127.0.0.1, as far as they are easily found."""
    found = []
    for family, remote in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect((remote, 9))
            except OSError:
                continue
            found.append(sock.getsockname()[0])
    return found


@pytest.mark.parametrize(
    ("host", "also", "not_"),
    [
        ("127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"], ["127.0.0.2", "198.51.100.1"]),
        ("0.0.0.0", ["127.0.0.1", "127.9.9.9", "0.0.0.0", *own_addresses()[:1]], ["198.51.100.1"]),
        ("::", ["127.0.0.1", "::1", "::", *own_addresses()], ["198.51.100.1", "2001:db8::1"]),
    ],
)
async def test_what_leads_to_us_is_known(host: str, also: list[str], not_: list[str]) -> None:
    ours = Listening()
    try:
        opened = (await listeners.resolve(host)).open(0)
    except listeners.ListenError as error:
        pytest.skip(str(error))
    ours.add(opened)
    port = opened[0].getsockname()[1]
    for listener in opened:
        listener.close()
    assert list(ours.ports) == [port]
    assert [ip for ip in also if not ours.has(ip, port)] == []
    assert [ip for ip in [*also, *not_] if ours.has(ip, port + 1)] == []
    assert [ip for ip in not_ if ours.has(ip, port)] == []


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0", *own_addresses()[:1]])
async def test_a_broker_that_advertises_our_address_is_one_line_and_no_storm(name: str) -> None:
    """As plain TCP proxies have it: the broker's advertised listener is the proxy's."""
    where: list[int] = []

    async def broker(stream: trio.SocketStream) -> None:
        async with stream:
            header = await receive_exactly(stream, 12)
            size, _, version, number = struct.unpack(">ihhi", header)
            await receive_exactly(stream, size - 8)
            body = metadata((1, name, where[0]))
            await stream.send_all(response(3, version, body, number))
            await stream.receive_some()

    listen = "127.0.0.1" if name in ("127.0.0.1", "localhost") else "0.0.0.0"
    async with proxied(broker, listen_host=listen) as proxy:
        where.append(proxy.port)
        async with await proxy.connect() as client:
            await client.send_all(request(3, 9, messages.MetadataRequest(topics=None), 1))
            size = await receive_exactly(client, 4)
            frame = size + await receive_exactly(client, int.from_bytes(size))
        (named,) = decode_response(frame, 3, 9).body.brokers
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", named.port) as node:
                assert await node.receive_some() == b""
        (line,) = [line for line in proxy.logs if "opens the cluster" not in line]
        assert f"{name}:{proxy.port} is kproxy itself" in line and "advertised.listeners" in line
    opened = [e for e in proxy.entries if getattr(e, "body", {}).get("event") == "opened"]
    assert len(opened) == 4, "each client's connection, and none of our own"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_bootstrap_address_that_is_ours_ends_it_at_once(name: str, tmp_path) -> None:
    port = unused_port()
    path = tmp_path / "r.mcap"
    options = serve.Options(Settings([(name, port)], listen_port=port), record_path=path)
    with pytest.raises(Unusable) as found:
        await serve.serve(options, print, print)
    assert str(found.value) == (
        f"--bootstrap {name}:{port} is where kproxy itself listens;"
        " give the address of a broker, or another --listen"
    )
    assert not path.exists()


async def test_one_of_several_bootstrap_addresses_that_is_ours_is_left_out() -> None:
    port = unused_port()
    async with trio.open_nursery() as nursery:
        serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(serve_tcp, answering, 0)
        broker = listener.socket.getsockname()[:2]
        settings = Settings([("127.0.0.1", port), broker], listen_port=port)
        logs: list[str] = []
        stop, ready = trio.Event(), trio.Event()

        async def run() -> None:
            options = serve.Options(settings, discover=False)
            await serve.serve(options, lambda _: ready.set(), to(logs), None, stop)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await ready.wait()
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(ask(1))
            assert await receive_exactly(client, len(answer(1))) == answer(1)
        stop.set()
    (line,) = logs
    assert line == (
        f"--bootstrap 127.0.0.1:{port} is where kproxy itself listens;"
        " going on with the other bootstrap addresses"
    )
