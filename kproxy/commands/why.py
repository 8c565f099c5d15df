"""`kproxy why`: the story of a rebalance, a hang-up or a slow request."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.options import UsageError, is_file
from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kproxy.look.why.stories import SUBJECTS

    parser.description = (
        "Tell in sentences what happened, from what is recorded, with the numbers of the exchanges"
        " to look at. "
        + "; ".join(f"{each.example}: {each.about}" for each in SUBJECTS.values())
        + ". Without a subject: what is found in the recordings, the worst first, each with the"
        " command that shows it."
    )
    subjects = [each.example for each in SUBJECTS.values()]
    parser.usage = f"%(prog)s FILE… [{' | '.join(subjects)}]"
    parser.add_argument(
        "files_and_what",
        metavar="FILE… [SUBJECT:VALUE]",
        nargs="+",
        help="recordings, or folders of them; and what to tell the story of (none: what is found)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.why.stories import SUBJECTS, others, show_why

    *files, what = options.files_and_what
    if all(map(is_file, options.files_and_what)):
        return _tell_findings(options.files_and_what)
    key, _, value = what.partition(":")
    subject = SUBJECTS.get(key)
    if subject is None or not value:
        *most, last = (each.example for each in SUBJECTS.values())
        known = f"{', '.join(most)} or {last}"
        raise UsageError(f"{what!r} is not {known}")
    within = ""
    if subject.within:
        before, _, within = files.pop().partition(":") if files else ("", "", "")
        if before != subject.within or not within:
            raise UsageError(f"name a {subject.within} before {what!r}: {subject.example}")
    if not files:
        raise UsageError("name a recording before that")
    number = value.rpartition("#")[2]
    if subject.numbered and not (number.isascii() and number.isdigit()):
        raise UsageError(f"{value!r} is not the number of a {key.replace('number', 'request')}")
    paths = [Path(each) for each in files]
    if show_why(paths, key, value, sys.stdout, within):
        return 0
    found = others(paths, key, value, within)
    where = f"{subject.within} {within} in " if within else ""
    return fail(f"kproxy why: there is no {key} {value} in {where}the recording{found}")


def _tell_findings(files: list[str]) -> int:
    """Write the findings of recordings, as their report has them; return the exit code."""
    from kproxy.look.lines.show import write
    from kproxy.look.report.findings import findings
    from kproxy.look.report.light import light_data
    from kproxy.printable import printable

    data = light_data(files, charted=False)
    lines: list[str] = []
    for each in findings(data):
        lines += [
            f"{printable(each.text)}\n",
            *(f"  {printable(more)}\n" for more in each.evidence),
        ]
        if command := each.command(files, data.names):
            lines.append(f"  {printable(command)}\n")
    write(lines, data.notices, sys.stdout, "why")
    return 0
