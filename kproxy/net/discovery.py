"""The first look at the cluster: is a broker there, and which brokers are there?

The brokers are asked for (Metadata v1, no topics) on a connection of our own that is not recorded,
so that the listener of every broker is open before a client comes: one that knew us before a
restart goes straight to its broker's port. A broker that does not answer an unauthenticated client
is left alone; its listeners open when a response first names it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import trio

from kproxy import protocol
from kproxy.net.pump import DIAL_SECONDS, why
from kproxy.protocol import messages
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.rewrite import BrokerAddress

_RETRY_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 1 << 20
_METADATA, _VERSION = 3, 1


async def discover(
    bootstrap: Sequence[Address],
    named: Callable[[list[BrokerAddress]], None],
    log: Callable[[str], None],
) -> None:
    """Try the bootstrap addresses until one answers, and hand on the brokers that it names.

    That none answers is said in one line, and that one answers then in another.
    """
    told = False
    while True:
        reasons = []
        for host, port in bootstrap:
            try:
                with trio.fail_after(DIAL_SECONDS):
                    stream = await trio.open_tcp_stream(host, port)
            except (OSError, UnicodeError, trio.TooSlowError) as error:
                reasons.append(f"{host}:{port} {why(error)}")
                continue
            if told:
                log(f"{host}:{port} answers now")
            async with stream:
                named(await _ask(stream))
            return
        if not told:
            log(f"no broker yet: {', '.join(reasons)}; kproxy keeps trying")
            told = True
        await trio.sleep(_RETRY_SECONDS)


async def _ask(stream: trio.SocketStream) -> list[BrokerAddress]:
    header = messages.RequestHeader(
        api_key=_METADATA, api_version=_VERSION, correlation_id=0, client_id="kproxy"
    )
    request = protocol.Request(header, messages.MetadataRequest(topics=[]))
    answer = b""
    try:
        with trio.move_on_after(_ANSWER_SECONDS):
            await stream.send_all(protocol.encode_request(request))
            while not _whole(answer):
                chunk = await stream.receive_some()
                if not chunk or len(answer) > _ANSWER_BYTES_MAX:
                    return []
                answer += chunk
            return rewrite.find_all(answer, _METADATA, _VERSION)
    except (trio.BrokenResourceError, protocol.ProtocolError):
        pass
    return []


def _whole(answer: bytes) -> bool:
    return len(answer) >= 4 and len(answer) - 4 >= struct.unpack_from(">i", answer)[0]
