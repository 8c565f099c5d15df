"""The command `kproxy`: what people type, and what they are told when it cannot be done.

Exit codes: 0 done, 2 for what was typed, 1 for all the rest. An error is one line on stderr that
says what is wrong, where, and what to do. Imports are local to each command, so that `--help` and
mistakes cost no more than they must.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from kproxy import __version__

_PORT_DEFAULT = 9092
_LISTEN_DEFAULT = "127.0.0.1:19092"
_GARBAGE_OBJECTS = (100_000, 5, 5)
"""How often Python looks for garbage in cycles: after so many new objects, in older ones after so
many times, in all after so many of these. Its own are (700, 10, 10)."""
_ROTATE_LEAST = {"size": 64 << 10, "time": 1.0}
_CAPTURES = Path("recordings/captures")


class UsageError(Exception):
    """What was typed cannot be done."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: sys.argv); return its exit code."""
    # Closed, as daemons have them: nobody reads then, and that is no reason to fail.
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _say(f"kproxy {options.command}: {error}", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (| head).
        return _discard_output(0)
    except OSError as error:
        why = error.strerror or error
        return _discard_output(_say(f"kproxy {options.command}: cannot write the output: {why}", 1))


def _discard_output(code: int) -> int:
    """Keep the interpreter from complaining at its end about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kproxy",
        description="Record what Kafka clients and brokers say to each other, and look at it.",
    )
    parser.add_argument("--version", action="version", version=f"kproxy {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_run(commands)
    _add_show(commands)
    _add_recover(commands)
    demo = commands.add_parser("demo", help="see it work: no broker, Docker or Java needed")
    demo.add_argument("--record", metavar="FILE", type=Path, help="where to leave the recording")
    demo.set_defaults(run=_demo)
    return parser


def _add_run(commands) -> None:
    run = commands.add_parser(
        "run",
        help="stand between clients and a cluster, and record",
        description="Stand between Kafka clients and a cluster, and record what passes.",
        epilog="The first line on stdout is the bootstrap address to give to your application;"
        " what passes follows on a terminal. Logs go to stderr. Ctrl-C stops it: answers that are"
        " due have 5 s; a second Ctrl-C ends it at once.",
    )
    _add_place(run.add_argument_group("where it stands"))
    _add_recording(run.add_argument_group("what it records"))
    _add_limits(run.add_argument_group("its limits"))
    run.add_argument("--quiet", action="store_true", help="do not show what passes")
    run.add_argument(
        "--control",
        metavar="HOST:PORT",
        help="serve metrics for Prometheus at http://HOST:PORT/metrics (port 0 takes any); where"
        " other machines reach it, requests must carry the token in KPROXY_CONTROL_TOKEN as Bearer",
    )
    run.set_defaults(run=_run)


def _add_place(group) -> None:
    group.add_argument(
        "--bootstrap",
        metavar="HOST:PORT[,…]",
        required=True,
        help="brokers of the cluster to begin with, tried in turn (port 9092 if none is given)",
    )
    group.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=_LISTEN_DEFAULT,
        help="where clients connect (default %(default)s); the broker with node id N is at"
        " PORT + 1 + N; port 0 takes any free ports",
    )
    group.add_argument(
        "--advertise",
        metavar="HOST",
        help="host that clients are told to connect to (default: the one at which they reached us)",
    )
    group.add_argument(
        "--node-port",
        metavar="ID=PORT",
        action="append",
        default=[],
        help="port for the broker with this node id; may be repeated",
    )


def _add_recording(group) -> None:
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help=f"the recording (default: {_CAPTURES}/, named by the time); never overwritten",
    )
    where.add_argument("--no-record", action="store_true", help="record nothing")
    group.add_argument(
        "--rotate",
        metavar="SIZE,TIME",
        default="1GiB,1h",
        help="begin a new file at this size or age, whichever comes first (default %(default)s;"
        " off: one file)",
    )
    group.add_argument(
        "--record-or-die",
        action="store_true",
        help="wait for a slow disk and end on a full one, instead of counting what is lost",
    )


def _add_limits(group) -> None:
    for option, metavar, default, text in (
        ("idle-timeout", "TIME", "10min", "close a connection on which nothing arrives so long"),
        ("connections-max", "N", "10000", "close further connections at once"),
        (
            "pending-requests-max",
            "N",
            "1000",
            "with so many requests unanswered on a connection, wait for answers before reading on",
        ),
        (
            "request-bytes-max",
            "SIZE",
            "100MiB",
            "end a connection that sends a larger request, as socket.request.max.bytes does",
        ),
        (
            "backlog-bytes-max",
            "SIZE",
            "64MiB",
            "memory for what the disk has not taken yet; while a disk hangs, what is over it is not"
            " recorded, and counted",
        ),
    ):
        help_text = f"{text} (default %(default)s)"
        group.add_argument(f"--{option}", metavar=metavar, default=default, help=help_text)


def _add_show(commands) -> None:
    show = commands.add_parser(
        "show",
        help="read a recording: one line per exchange, or JSON",
        description="Show the exchanges of a recording, in the order in which they were answered.",
    )
    show.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="recordings, or folders of them"
    )
    show.add_argument(
        "--json", action="store_true", help="one JSON object per exchange, with decoded bodies"
    )
    show.set_defaults(run=_show)


def _add_recover(commands) -> None:
    recover = commands.add_parser(
        "recover",
        help="complete a recording that was cut off",
        description="Complete a recording that was cut off, in place; what it has is kept.",
    )
    recover.add_argument("file", metavar="FILE", type=Path)
    recover.set_defaults(run=_recover)


# run


def _run(options: argparse.Namespace) -> int:
    from kproxy.net.serve import Options
    from kproxy.proxy.settings import Settings

    listen_host, listen_port = _address(options.listen, "--listen", port_min=0)
    settings = Settings(
        bootstrap=[
            _address(text, "--bootstrap", _PORT_DEFAULT)
            for text in options.bootstrap.split(",")
            if text.strip()
        ],
        listen_port=listen_port,
        advertised_host=_advertised(options.advertise),
        node_ports=_node_ports(options.node_port, listen_port),
        idle_seconds=_parsed(options.idle_timeout, "--idle-timeout", _duration),
        request_bytes_max=_parsed(options.request_bytes_max, "--request-bytes-max", _size),
        # A SASL token may go without an answer, which shows only when the next request has one.
        pending_requests_max=_count(options.pending_requests_max, "--pending-requests-max", 2),
    )
    if not settings.bootstrap:
        raise UsageError("--bootstrap names no address; give HOST:PORT")
    path, rotate_bytes, rotate_seconds = _recording_options(options)
    return _serve(
        Options(
            settings,
            listen_host,
            path,
            rotate_bytes,
            rotate_seconds,
            lossless=options.record_or_die,
            backlog_bytes_max=_parsed(options.backlog_bytes_max, "--backlog-bytes-max", _size),
            connections_max=_count(options.connections_max, "--connections-max"),
            control=options.control and _address(options.control, "--control", port_min=0),
            control_token=_token() if options.control else None,
        ),
        live=not options.quiet and sys.stdout.isatty(),
    )


def _recording_options(options: argparse.Namespace) -> tuple[Path | None, int | None, float | None]:
    rotate_bytes, rotate_seconds = _rotation(options.rotate)
    if options.no_record:
        return None, None, None
    if options.record == Path():
        raise UsageError("--record names no file")
    return options.record or _capture(), rotate_bytes, rotate_seconds


def _capture() -> Path:
    """The default recording: named by UTC time, in a folder that git ignores."""
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    return _CAPTURES / f"{now:%Y%m%dT%H%M%S.%fZ}.mcap"


def _serve(serve_options, live: bool) -> int:
    import trio

    from kproxy.net import serve
    from kproxy.net.listeners import ListenError
    from kproxy.recording.format import RecordingError

    def log(text: str) -> None:
        # A log that cannot be written is no reason to stop the proxy.
        with contextlib.suppress(OSError):
            print(f"kproxy: {text}", file=sys.stderr, flush=True)

    def ready(address: str) -> None:
        try:
            print(address, flush=True)
        except OSError as error:
            log(f"clients connect to {address} (stdout: {error.strerror})")
            _discard_output(0)

    # Frames wait for the recorder by the thousand and are in no cycle: to look at them again and
    # again for one takes a tenth of all CPU time.
    gc.freeze()
    gc.set_threshold(*_GARBAGE_OBJECTS)
    try:
        summary = trio.run(serve.serve, serve_options, ready, log, _live_view() if live else None)
    except (serve.UnresolvedBootstrap, serve.ControlUnguarded) as error:
        raise UsageError(str(error)) from error
    except (ListenError, RecordingError, serve.RecordingFailed) as error:
        return _say(f"kproxy run: {error}", 1)
    except FileExistsError as error:
        why = f"{error.filename} exists and is not overwritten; give another --record"
        return _say(f"kproxy run: {why}", 1)
    except OSError as error:
        return _say(f"kproxy run: {error.filename or 'recording'}: {error.strerror}", 1)
    lost = f", {summary.frames_lost} frames LOST" if summary.frames_lost else ""
    if summary.paths:
        where = " ".join(
            str(path) if path.exists() else f"{path} (deleted)" for path in summary.paths
        )
        log(f"recorded {summary.frames_recorded} frames{lost} in {where}")
    return 0


def _live_view() -> Callable:
    from kproxy.view.live import Live

    return Live(sys.stdout).watch


# show, recover, demo


def _show(options: argparse.Namespace) -> int:
    from kproxy.recording.format import RecordingError
    from kproxy.view import show

    try:
        if options.json:
            show.show_json(options.files, sys.stdout)
        else:
            show.show_lines(options.files, sys.stdout)
    except RecordingError as error:
        return _say(f"kproxy show: {error}", 1)
    return 0


def _recover(options: argparse.Namespace) -> int:
    from kproxy.recording.format import RecordingError
    from kproxy.recording.recover import recover

    try:
        print(recover(options.file))
    except RecordingError as error:
        return _say(f"kproxy recover: {error}", 1)
    except OSError as error:
        return _say(f"kproxy recover: {options.file}: {error.strerror}", 1)
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from kproxy import demo
    except ModuleNotFoundError as error:
        return _say(
            f"kproxy demo: {error.name} is missing; install kproxy with its extra, kproxy[demo]",
            1,
        )
    return demo.run(options.record or _capture(), sys.stdout)


# What was typed, as values


def _rotation(text: str) -> tuple[int | None, float | None]:
    """Parse SIZE,TIME, one of them, or off."""
    found: dict[str, float] = {}
    parts = [] if text == "off" else text.split(",")
    for part in parts:
        for name, parse in (("size", _size), ("time", _duration)):
            with contextlib.suppress(ValueError):
                found[name] = parse(part)
                break
        else:
            raise UsageError(f"--rotate: {part!r} is not a size or a duration, as in 1GiB,1h")
        if found[name] < _ROTATE_LEAST[name]:
            raise UsageError(f"--rotate: {part!r} is too small; at least 64KiB and 1s")
    if len(found) < len(parts):
        raise UsageError(f"--rotate {text!r}: give one size and one duration, as in 1GiB,1h")
    size = found.get("size")
    return None if size is None else int(size), found.get("time")


def _address(
    text: str, option: str, port_default: int | None = None, port_min: int = 1
) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 host stands in brackets."""
    text = text.strip()
    host, colon, port_text = text.rpartition(":")
    if (text.startswith("[") and text.endswith("]")) or not colon:
        host, port_text = text, ""
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not host:
        raise UsageError(f"{option} {text!r}: the host is missing; give HOST:PORT")
    if "/" in host or any(character.isspace() for character in host):
        raise UsageError(f"{option} {text!r} is not HOST:PORT")
    if ":" in host and not bracketed:
        raise UsageError(f"{option} {text!r}: write an IPv6 address in brackets, as in [::1]:9092")
    if not port_text:
        if port_default is None:
            raise UsageError(f"{option} {text!r}: the port is missing; give HOST:PORT")
        return host, port_default
    return host, _port(port_text, f"{option} {text!r}", port_min)


def _port(text: str, where: str, port_min: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and port_min <= int(text) <= 65_535):
        raise UsageError(f"{where}: {text!r} is not a port ({port_min} to 65535)")
    return int(text)


def _count(text: str, option: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise UsageError(f"{option}: {text!r} is not a number of at least {least}")
    return int(text)


def _advertised(text: str | None) -> str | None:
    if text is None:
        return None
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    bracketed = f"[{host}]" if ":" in host else host
    if _address(f"{bracketed}:1", "--advertise")[0] != host or host.count(":") == 1:
        raise UsageError(f"--advertise {text!r} is not a host")
    return host


def _node_ports(texts: Sequence[str], listen_port: int) -> dict[int, int]:
    ports: dict[int, int] = {}
    for text in texts:
        node_id, equals, port_text = text.partition("=")
        if not (equals and node_id.isascii() and node_id.isdigit()):
            raise UsageError(f"--node-port {text!r} is not ID=PORT, as in 1=19101")
        port = _port(port_text, f"--node-port {text!r}")
        if int(node_id) in ports or port in (*ports.values(), listen_port):
            raise UsageError(f"--node-port {text!r}: this node, or this port, is taken already")
        ports[int(node_id)] = port
    return ports


def _token() -> str | None:
    """The token that KPROXY_CONTROL_TOKEN holds, if any; as HTTP can carry it."""
    token = os.environ.get("KPROXY_CONTROL_TOKEN") or None
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError("KPROXY_CONTROL_TOKEN has characters that HTTP cannot carry; use letters")
    return token


def _parsed(text: str, option: str, parse: Callable[[str], float]) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _duration(text: str) -> float:
    from kproxy.units import parse_seconds

    return parse_seconds(text)


def _size(text: str) -> int:
    from kproxy.units import parse_bytes

    return parse_bytes(text)
