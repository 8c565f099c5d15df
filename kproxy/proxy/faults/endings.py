"""Actions on a connection: drop, disconnect, reset, blackhole, truncate, slow_close, duplicate."""

from __future__ import annotations

from kproxy.proxy.faults.action import BEFORE, Hit, Plan
from kproxy.proxy.verdicts import Ending, Verdict


def end_connection(hit: Hit, ending: Ending, delay_ns: int = 0) -> Plan:
    """Plan the end of the connection in place of the request, or of its response."""
    if hit.phase == BEFORE:
        return Plan(Verdict(ending=ending, ending_delay_ns=delay_ns))
    if hit.view.no_response:
        whole = len(hit.view.frame)
        return Plan(Verdict(ending=ending, ending_bytes=whole, ending_delay_ns=delay_ns))
    response = Verdict(ending=ending, ending_delay_ns=delay_ns)
    return Plan(Verdict(response=response))


def drop(hit: Hit) -> Plan | None:
    """The response (after, the default) or the request (before) is lost; the connection goes on.

    Clients match responses to requests by their order: most close a connection on which one is
    missing as soon as the next response comes. A client that waits shows its own timeout.
    """
    if hit.phase == BEFORE:
        return Plan(Verdict(frames=()))
    if hit.view.no_response:
        return None
    return Plan(Verdict(response=Verdict(frames=())))


def disconnect(hit: Hit) -> Plan:
    """The connection is closed in place of the request (before, the default) or of its response."""
    return end_connection(hit, Ending.DISCONNECT)


def reset(hit: Hit) -> Plan:
    """The connection is reset in place of the request (before, the default) or of its response."""
    return end_connection(hit, Ending.RESET)


def blackhole(hit: Hit) -> Plan:
    """The connection stays open and nothing passes any more, from the request (before, the default)
    or from its response on: what a client sees of a broker that hangs.
    """
    return end_connection(hit, Ending.BLACKHOLE)


def slow_close(hit: Hit) -> Plan:
    """The connection falls silent, as with blackhole, and is closed so much later."""
    return end_connection(hit, Ending.DISCONNECT, hit.value)


def truncate(hit: Hit) -> Plan | None:
    """So many bytes of the response (after, the default) or of the request (before) leave; then the
    connection is closed.
    """
    if hit.phase == BEFORE:
        cut = min(hit.value, len(hit.view.frame))
        return Plan(Verdict(ending=Ending.DISCONNECT, ending_bytes=cut))
    if hit.view.no_response:
        return None
    response = Verdict(ending=Ending.DISCONNECT, ending_bytes=hit.value)
    return Plan(Verdict(response=response))


def duplicate(hit: Hit) -> Plan:
    """The broker gets the request twice; the client gets the first response only.

    What a retry does whose first attempt has arrived after all.
    """
    return Plan(Verdict(frames=(hit.view.frame, hit.view.frame)))
