"""`kproxy import`: captures of packets become a recording."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kproxy.addresses import parse_port
from kproxy.commands.child import held_signals
from kproxy.commands.options import UsageError, declare, local_file, new_recording
from kproxy.commands.output import fail
from kproxy.printable import printable

if TYPE_CHECKING:
    from kproxy.capture.file import Packet
    from kproxy.capture.importer import Importer
    from kproxy.recording.writer import Writer

_FLUSH_SECONDS = 0.2
_WRITE_BYTES = 4 << 20
EPILOG = """
FILE is of tcpdump, Wireshark, or whatever else writes pcap or pcapng, plain or packed with gzip or
zstd. Connections are Kafka's if their client begins with a request, on any port. What a capture
lacks is told: kproxy show lists it. kproxy recover NEW --schemas … adds the schemas of its records.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Make a recording of captures of packets, as if kproxy had been there."
    parser.epilog = EPILOG
    text = "captures of the same time or one after the other, or - for standard input"
    parser.add_argument("files", metavar="FILE", nargs="+", help=text)
    parser.add_argument(
        "--out", metavar="NEW", type=new_recording, required=True, help="the recording to write"
    )
    declare(
        parser.add_argument,
        """
        --port N …  only connections to this port, whatever they begin with
        --tls-keys FILE  decrypt TLS with the key log of its clients (SSLKEYLOGFILE), by tshark
        --follow  go on as the capture grows, until a signal, and write what comes at once: kproxy
            tail and kproxy web follow the recording
        """,
        port=parse_port,
        tls_keys=local_file,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.capture.file import CaptureError
    from kproxy.capture.importer import Importer
    from kproxy.commands.capture_input import PIPE, read_captures
    from kproxy.exchange.words.wording import count
    from kproxy.recording.notices import CAPTURE_POINT

    if len(options.files) > 1 and (options.follow or PIPE in options.files):
        raise UsageError("--follow and - take one FILE")
    if options.tls_keys and (options.follow or PIPE in options.files):
        raise UsageError("--tls-keys takes files that are complete: tshark reads them, too")
    if options.out.exists():
        return fail(f"kproxy import: {options.out} is there already; it is not replaced")
    importer = Importer(frozenset(options.port))
    output = _Imported(options.out, importer, options.follow)
    warnings: list[str] = []
    problem = ""
    try:
        with held_signals() as signals:
            how = options.follow, lambda: bool(signals), output.flush, warnings.append
            try:
                for packet in read_captures(options.files, *how, options.tls_keys):
                    importer.packet(packet)
                    output.took(packet)
            except CaptureError as error:
                problem = str(error)
            importer.finish()
            output.close()
            if signals and not options.follow:
                problem = "it was stopped: the rest of the capture is not in the recording"
    except FileExistsError as error:
        return fail(f"kproxy import: {error.filename} is there already; it is not replaced")
    except OSError as error:
        return fail(f"kproxy import: {error.filename or options.out}: {error.strerror or error}")
    for what in (*warnings, *importer.warnings()):
        print(printable(f"kproxy import: {what}"), file=sys.stderr)
    if importer.connections:
        found = count(importer.exchanges, "exchange"), count(importer.connections, "connection")
        print(printable(f"{options.out}: {found[0]} of {found[1]}; {CAPTURE_POINT}"))
    else:
        problem = problem or "no connection in it begins as Kafka's do; nothing is written"
    return fail(f"kproxy import: {problem}") if problem else 0


class _Imported:
    """The recording that is written."""

    def __init__(self, path: Path, importer: Importer, follow: bool) -> None:
        self._path, self._importer = path, importer
        self._writer: Writer | None = None
        self._start_ns = 0
        self._bytes = 0
        self._flush_at = 0.0 if follow else math.inf

    def took(self, packet: Packet) -> None:
        """Write what a packet led to, when it is much."""
        self._start_ns = self._start_ns or packet.time_ns
        self._bytes += len(packet.data)
        if self._bytes >= _WRITE_BYTES:
            self._write()

    def flush(self) -> None:
        """Write what there is, if somebody may look at it, and not too often."""
        if time.monotonic() >= self._flush_at:
            self._write()
            self._flush_at = time.monotonic() + _FLUSH_SECONDS

    def _write(self) -> None:
        from kproxy import __version__
        from kproxy.recording.notices import CAPTURED
        from kproxy.recording.writer import Writer
        from kproxy.wire.protocol.schema import schema_id

        entries, self._importer.entries, self._bytes = self._importer.entries, [], 0
        if not entries:
            return
        if self._writer is None:
            self._writer = Writer(
                self._path,
                start_ns=self._start_ns,
                schema_id=schema_id(),
                library_version=__version__,
                metadata=CAPTURED,
            )
        self._writer.write(entries)

    def close(self) -> None:
        """Write the rest."""
        self._write()
        if self._writer is not None:
            self._writer.close()
