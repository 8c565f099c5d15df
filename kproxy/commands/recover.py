"""`kproxy recover`: complete a recording that was cut off, or that lacks schemas."""

from __future__ import annotations

import argparse

from kproxy.commands.options import local_file
from kproxy.commands.output import fail
from kproxy.commands.schemas import add_schema_options, schema_sources
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Complete a recording that was cut off, in place; what it has is kept. A complete one is"
        " given the schemas that its records name."
    )
    parser.add_argument("file", metavar="FILE", type=local_file, help="the recording")
    add_schema_options(parser.add_argument, "--schemas", "add the schemas that it lacks")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.recording import RecordingError
    from kproxy.recording.recovery import recover
    from kproxy.view.progress import reading

    sources = schema_sources(options.schemas, "--schemas", options)
    try:
        with reading("recover", [options.file]) as progress:
            recovery = recover(options.file, progress.update)
        if not sources or not recovery.was_complete:
            print(printable(str(recovery)))
        if sources:
            from kproxy.registry.adding import add_schemas

            with reading("recover", [options.file]) as progress:
                added = add_schemas(options.file, sources, progress.update)
            print(printable(str(added)))
    except RecordingError as error:
        return fail(f"kproxy recover: {error}")
    except OSError as error:
        return fail(f"kproxy recover: {options.file}: {error.strerror}")
    return 0
