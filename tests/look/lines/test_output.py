"""Writing to terminals and pipes that take nothing, without waiting for them."""

from __future__ import annotations

import fcntl
import io
import os
import threading
import time

from kproxy.look.lines.output import BYTES_MAX, TextOutput


def test_a_pipe_that_nobody_reads_holds_up_neither_writing_nor_the_end() -> None:
    read_end, write_end = os.pipe()
    line = "x" * 99 + "\n"
    lines = 3 * BYTES_MAX // len(line)
    started = time.monotonic()
    with os.fdopen(write_end, "w") as out, os.fdopen(read_end) as pipe:
        output = TextOutput(out, "kproxy: {}".format)
        taken = sum(output.put(line) for _ in range(lines))
        output.finish(0.1)
        assert time.monotonic() - started < 5
        assert BYTES_MAX // len(line) <= taken < lines
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(pipe), daemon=True)
        reader.start()
        output.finish(60)
        out.close()
        reader.join(60)
    dropped = f"kproxy: … {lines - taken} lines not shown: the terminal is too slow\n"
    assert seen == [line] * taken + [dropped]


def test_a_pipe_that_never_waits_is_waited_for() -> None:
    read_end, write_end = os.pipe()
    flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
    fcntl.fcntl(write_end, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    text = "y" * 500_000 + "\n"
    with os.fdopen(write_end, "w") as out, os.fdopen(read_end) as pipe:
        output = TextOutput(out)
        output.put(text)
        assert pipe.readline() == text
        output.finish()


def test_a_stream_that_takes_nothing_is_told_once() -> None:
    told = []
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as out:
        output = TextOutput(out, on_failure=told.append)
        output.put("one\n")
        output.put("two\n")
        output.finish()
    assert [type(error) for error in told] == [BrokenPipeError]


def test_a_tick_writes_though_nothing_is_put() -> None:
    ticks = iter(["", "later\n"])
    ticked = threading.Event()

    def tick() -> str:
        text = next(ticks, "")
        if text:
            ticked.set()
        return text

    out = io.StringIO()
    output = TextOutput(out, tick=tick, tick_seconds=0.01)
    output.put("first\n")
    assert ticked.wait(5)
    output.finish()
    assert out.getvalue() == "first\nlater\n"
