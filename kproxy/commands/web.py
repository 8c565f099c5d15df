"""`kproxy web`: recordings in a browser."""

from __future__ import annotations

import argparse
import functools
import sys

from kproxy.commands.options import add_files, declare
from kproxy.commands.output import discard_output, fail
from kproxy.levels import Level

EPILOG = """
The address that is printed works once, in the browser that comes first; then another is printed on
stderr, for another browser. The page's own addresses can be bookmarked and shared with whoever may
see it. The page loads nothing from elsewhere. It is served until Ctrl-C.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Show recordings in a browser: a list, time, every field beside its bytes."
    parser.epilog = EPILOG
    add_files(parser)
    text = "--listen HOST:PORT = 127.0.0.1:0  where, on this machine only"
    declare(parser.add_argument, f"{text} (default: 127.0.0.1, any port)")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    import trio

    from kproxy.look.lines.log import LineLog
    from kproxy.look.page.serving import serve
    from kproxy.net.allocator import collect_garbage_rarely
    from kproxy.recording.paths import by_recording, info

    log = LineLog(sys.stderr)  # the page does not wait for a stopped terminal

    def say(text: str, level: Level = "info", /) -> None:
        log.write(f"kproxy web: {text}")

    try:
        for each in by_recording(options.files):
            info(each.paths[0])  # of several the heads were read before
        collect_garbage_rarely()  # it took a tenth of a search; exchanges are in no cycles
        trio.run(functools.partial(serve, options.files, options.listen, _print, say))
    except BrokenPipeError:
        discard_output()
        return fail("kproxy web: nobody reads the address of the page, so it is not served")
    finally:
        log.finish()
    return 0


def _print(address: str) -> None:
    print(address, flush=True)
