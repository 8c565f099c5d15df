"""Recordings in Spark: `spark.read.format("kproxy")`, batch and streaming.

    paths ─ kproxy.tables ─▶ BatchRange, … ─▶ Arrow record batches ─ source, stream ─▶ Spark

If kproxy is installed, Spark finds the format by itself. `register` is for sessions that got kproxy
by `--py-files`; `session` starts a session on this machine. This package does not import trio.
"""

from kproxy.spark.java import SparkError
from kproxy.spark.session import register, session

__all__ = ["SparkError", "register", "session"]
