"""Discovery: the first request to the cluster, for a list of its brokers.

The brokers are asked for (Metadata v1, no topics) on a connection of our own that is not recorded,
so that the listener of every broker is open before a client comes: after a restart of kproxy,
clients go straight to their broker's port. A broker that wants a login gets kproxy's own, if it has
one. One that does not answer then is left alone; its listeners open when a response first names it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import trio

from kproxy.levels import Logger
from kproxy.net.dial import Ourselves, Unreachable, dial
from kproxy.net.handshake import Secure, plaintext
from kproxy.net.listeners import Listening
from kproxy.net.transport import Transport
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.wire import protocol
from kproxy.wire.protocol import messages

_RETRY_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_ANSWER_BYTES_MAX = 1 << 20
_METADATA, _VERSION = 3, 1


async def discover(
    bootstrap: Sequence[Address],
    discovered: Callable[[list[BrokerAddress]], None],
    log: Logger,
    ours: Listening,
    secure: Secure = plaintext,
) -> None:
    """Try the bootstrap addresses until one answers, and report the brokers that it names.

    If none answers, that is logged once, and so is the first answer then.
    """
    logged = False
    while True:
        try:
            found = await dial(bootstrap, ours, secure)
        except Ourselves as error:
            found = Unreachable(str(error))
        if not isinstance(found, Unreachable):
            break
        if found.final:
            log(f"kproxy's login to ask for the brokers failed: {found.reason}", "warning")
            discovered([])
            return
        if not logged:
            log(f"no broker yet: {found.reason}; kproxy keeps trying", "warning")
            logged = True
        await trio.sleep(_RETRY_SECONDS)
    if logged:
        log("{}:{} answers now".format(*found.address))
    try:
        brokers = await _request_brokers(found.secured.transport)
    finally:
        found.close()
    discovered(brokers)


async def _request_brokers(transport: Transport) -> list[BrokerAddress]:
    header = messages.RequestHeader(
        api_key=_METADATA, api_version=_VERSION, correlation_id=0, client_id="kproxy"
    )
    request = protocol.Request(header, messages.MetadataRequest(topics=[]))
    answer = b""
    try:
        with trio.move_on_after(_ANSWER_SECONDS):
            transport.try_send(protocol.encode_request(request))  # which fits into any socket
            while not _is_whole(answer):
                await trio.lowlevel.wait_readable(transport.fileno())
                chunk = transport.try_receive()
                if chunk == b"" or len(answer) > _ANSWER_BYTES_MAX:
                    return []
                answer += chunk or b""
            return rewrite.find_all(answer, _METADATA, _VERSION)
    except (OSError, protocol.ProtocolError):
        pass
    return []


def _is_whole(answer: bytes) -> bool:
    return len(answer) >= 4 and len(answer) - 4 >= struct.unpack_from(">i", answer)[0]
