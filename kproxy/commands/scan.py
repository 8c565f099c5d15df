"""`kproxy scan`: look for secrets in recordings before they are shared."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kproxy.commands.options import add_files, declare
from kproxy.commands.output import fail
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Look for passwords, tokens and keys in recordings: in fields, config values, notes, and"
        " in records' keys, values and headers, decompressed. The exit code is 0 when nothing is"
        " found, 1 when something is, or cannot be looked into."
    )
    add_files(parser, Path)
    declare(parser.add_argument, "--json  one JSON object per finding")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.exchange.words.wording import count as counted
    from kproxy.look.lines.progress import reading
    from kproxy.look.lines.scan import SecretFinding, scan, total
    from kproxy.look.lines.stream import Stream
    from kproxy.recording.exchanges import pauses
    from kproxy.recording.notices import Notices
    from kproxy.recording.paths import by_recording

    found: list[SecretFinding] = []
    notices = Notices()

    with reading("scan", options.files) as progress:
        for finding in scan(options.files, progress.update, notices.note):
            progress.finish()
            text = json.dumps(finding.plain()) if options.json else printable(finding.line())
            print(text)
            found.append(finding)
    for note in pauses(by_recording(options.files)):
        notices.note(note)
    for notice in notices.texts:
        print(printable(f"kproxy scan: {notice}"), file=sys.stderr)
    lost = sum(each["frames"] for _, each in notices.losses.values())
    missing = f"{counted(lost, 'frame')} {'is' if lost == 1 else 'are'}"
    missing = missing if lost else "some bytes are"
    but = f", but {missing} not in the recording" if notices.losses else ""
    if not found and not options.json:
        there = counted(Stream(options.files).count_unopened(), "exchange")
        print(f"kproxy scan: no secrets found in {there}{but}", file=sys.stderr)
    if found:
        sys.stdout.flush()
        return fail(f"kproxy scan: {total(found)}{but}")
    return 0
