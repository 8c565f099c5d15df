"""What it costs if a recording is a log of bytes, and not rows that are made while traffic passes.

::

    this checkout ─ copy ─ log.patch.gz ─▶ kproxy that records a log ─▶ in pairs with this one

`log.patch.gz` makes a recording a log: an MCAP file of pieces (what one side sent and was received
at once) and notes, written by an `Encoder`, of which one `Follower` makes exchanges for whoever
reads. It is whole from the proxy to `show`, tables, Spark and replay, has a converter for the
recordings that there are, and is not finished: some tests of these rooms are red or not adapted.
It is kept as a patch until its costs decide whether it comes::

    python -m tests.benchmarks.log [what `tests.benchmarks.proxies` takes]
    python -m tests.benchmarks.log --to FOLDER         only the copy, to look at or to go on with

The copy has its own `tests.benchmarks.log`, which measures writing and following without sockets.
"""
