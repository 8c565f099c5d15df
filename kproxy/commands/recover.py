"""`kproxy recover`: complete a recording that was cut off or lacks schemas; convert an old one."""

from __future__ import annotations

import argparse

from kproxy.commands.options import declare, local_file, new_recording
from kproxy.commands.output import fail
from kproxy.commands.schemas import add_schema_options, schema_sources
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Complete a recording that was cut off, in place; what it has is kept. A complete one is"
        " given the schemas that its records name. With --out, convert one of the former format 2."
    )
    parser.add_argument("file", metavar="FILE", type=local_file, help="the recording")
    text = "--out NEW  where to write a recording of the former format 2 in the present one"
    declare(parser.add_argument, text, out=new_recording)
    add_schema_options(parser.add_argument, "--schemas", "add the schemas that it lacks")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.lines.progress import reading
    from kproxy.recording.format2 import convert
    from kproxy.recording.recovery import recover

    sources = schema_sources(options.schemas, "--schemas", options)
    try:
        path = options.file
        if options.out is not None:
            path = options.out
            count, dropped_bytes = convert(options.file, path)
            torn = ""
            if dropped_bytes is not None:
                torn = f"; it was torn: {dropped_bytes} bytes at its end are no whole chunk"
            entries = "1 entry is" if count == 1 else f"{count} entries are"
            print(printable(f"{path}: {entries} converted{torn}"))
        else:
            with reading("recover", [path]) as progress:
                recovery = recover(path, progress.update)
            if not sources or not recovery.was_complete:
                print(printable(str(recovery)))
        if sources:
            from kproxy.net.registry.adding import add_schemas

            with reading("recover", [path]) as progress:
                added = add_schemas(path, sources, progress.update)
            print(printable(str(added)))
    except FileExistsError as error:
        return fail(f"kproxy recover: {error.filename} is there already; it is not replaced")
    except OSError as error:
        return fail(f"kproxy recover: {error.filename or options.file}: {error.strerror}")
    return 0
