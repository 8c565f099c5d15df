"""Share groups and streams groups, which are not replayed: their members are told so at once.

Nothing less would do. A member that got a recorded assignment would wait for records for ever, and
one that does not find the API in ApiVersions does not say so to the broker.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproxy.replay.call import Call
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.errors import CODES

if TYPE_CHECKING:
    from kproxy.replay.state import State

_INVALID_REQUEST = CODES["INVALID_REQUEST"]
"""Clients tell its text; that of UNSUPPORTED_VERSION would be theirs."""


def _refuse(kind: str, response: Any, state: State, call: Call) -> Any:
    text = f"{kind} groups are not replayed by kproxy"
    state.report.add("not served", f"group {call.body.group_id}: {text}")
    return response(error_code=_INVALID_REQUEST, error_message=text)


HANDLERS = {
    "ShareGroupHeartbeat": partial(_refuse, "share", messages.ShareGroupHeartbeatResponse),
    "StreamsGroupHeartbeat": partial(_refuse, "streams", messages.StreamsGroupHeartbeatResponse),
}
