"""What a verdict does to a frame: the only place where verdicts are carried out.

::

    Verdict + frame ─▶ begin ─▶ its bytes, in pieces or whole ─▶ end ─▶ Output: departures
                        │ delay, rate                            └ how the connection ends

The proxy's two streams and the replaying broker use it alike. Frames that pass in pieces (`leaving`
says how much of a piece leaves) and whole frames (`frames`) take the same way. A new effect is a
field of `Verdict` and what these functions make of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kproxy.exchange.entries import FAULTED, Buffer, Frame
from kproxy.proxy.output import Departure, Output
from kproxy.proxy.verdicts import Verdict


def note(verdict: Verdict, frame: Frame, out: Output) -> None:
    """Have the recording say of a frame which rules touched it."""
    out.entries += verdict.notes
    if verdict.fault_ids:
        frame.flags |= FAULTED
        frame.fault_ids = verdict.fault_ids


def begin(verdict: Verdict, arrived_ns: int, out: Output) -> None:
    """Let the bytes that follow leave as late and as slowly as the verdict says."""
    if verdict.delay_ns or verdict.bytes_per_second:
        out.hold(arrived_ns + verdict.delay_ns, verdict.bytes_per_second)


def frames(verdict: Verdict, frame: bytes) -> Sequence[bytes]:
    """Return what leaves in place of a whole frame."""
    leaving = (frame,) if verdict.frames is None else verdict.frames
    if verdict.ending is None or not leaving:
        return leaving
    return (leaving[0][: verdict.ending_bytes],)


def leaving(verdict: Verdict, offset: int, piece: Buffer) -> int:
    """Return how many bytes leave of a piece that stands at an offset of its frame."""
    if verdict.ending is None:
        return len(piece)
    return max(0, min(len(piece), verdict.ending_bytes - offset))


def end(verdict: Verdict, out: Output) -> None:
    """Let what follows the frame leave as it comes, or let the connection end behind it."""
    if verdict.ending is not None:
        out.end(verdict.ending, verdict.ending_delay_ns)
    elif verdict.delay_ns or verdict.bytes_per_second:
        out.hold(0)


def departures(verdict: Verdict, frame: bytes, arrived_ns: int) -> Sequence[Departure]:
    """Carry out a verdict on a whole frame that shares its way with nothing else."""
    out = Output()
    begin(verdict, arrived_ns, out)
    for each in frames(verdict, frame):
        out.replace(each)
    end(verdict, out)
    found = out.finish()
    return [Departure(pieces=out.pieces)] if found is None else found
