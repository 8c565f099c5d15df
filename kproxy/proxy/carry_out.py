"""The effects of a verdict on a frame: the only place where verdicts are carried out.

::

    Verdict + frame ─▶ begin ─▶ its bytes, in pieces or whole ─▶ end ─▶ Output: departures
                        │ delay, rate                            └ how the connection ends

The two streams of a connection use it alike, also where the broker is a recording. Frames in pieces
(`bytes_to_send` limits each piece) and whole frames (`frames_to_send`) take the same way. A new
effect is a field of `Verdict` and a line in these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from kproxy.exchange.entries import FAULTED, WITHHELD, Buffer, Frame
from kproxy.proxy.output import Output
from kproxy.proxy.verdicts import Verdict


def note(verdict: Verdict, frame: Frame, size: int, out: Output) -> None:
    """Note which rules touched a frame; mark it WITHHELD if they let less than all of it (`size`
    bytes) leave."""
    out.entries += verdict.notes
    if not verdict.fault_ids:
        return
    frame.flags |= FAULTED
    frame.fault_ids = verdict.fault_ids
    ours = verdict.own_response
    dropped = verdict.dropped and (ours is None or not ours.frames)
    if dropped or (verdict.ending is not None and verdict.ending_bytes < size):
        frame.flags |= WITHHELD


def begin(verdict: Verdict, arrived_ns: int, out: Output, number: int = 0) -> None:
    """Let the bytes that follow, of the exchange of this number, leave as late and as slowly as the
    verdict says."""
    if verdict.delay_ns or verdict.bytes_per_second:
        out.hold(arrived_ns + verdict.delay_ns, verdict.bytes_per_second, number)


def cuts_all(verdict: Verdict) -> bool:
    """Return whether the connection ends before the first byte of the frame."""
    return verdict.ending is not None and not verdict.ending_bytes


def frames_to_send(verdict: Verdict, frame: bytes) -> Sequence[bytes]:
    """Return the frames that leave in place of a whole frame."""
    leaving_frames = (frame,) if verdict.frames is None else verdict.frames
    if verdict.ending is None or not leaving_frames:
        return leaving_frames
    return (leaving_frames[0][: verdict.ending_bytes],) if verdict.ending_bytes else ()


def bytes_to_send(verdict: Verdict, offset: int, piece: Buffer) -> int:
    """Return how many bytes of a piece leave; the piece begins at `offset` in its frame."""
    if verdict.ending is None:
        return len(piece)
    return max(0, min(len(piece), verdict.ending_bytes - offset))


def end(verdict: Verdict, out: Output) -> None:
    """Let the bytes behind the frame leave as they come, or end the connection there."""
    if verdict.ending is not None:
        out.end(verdict.ending, verdict.ending_delay_ns)
    elif verdict.delay_ns or verdict.bytes_per_second:
        out.hold(0)
