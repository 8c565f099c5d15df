"""The job that every client program does, and the helpers of the Python ones.

A job is JSON: `prefix` (of all its names), `steps` (which to do, in order), `compressions`,
`config` (the client's own settings, for instance security; `oauth_token` is a bearer token, for
which each program makes what its client wants). The summary is one line of JSON: `client` (name and
version) and `steps` (name to result; a step that failed has an `error`)::

    connect       ask the cluster for its brokers, as often as the client tries in a few seconds
                  → {"saw": why that failed in the client's own words, or null}
    create        topics PREFIX-records (2 partitions) and PREFIX-ledger (1)
    produce       records(compression) for each compression, to PREFIX-records
                  → {"produced": count}
    group         read them back as classic group PREFIX-classic, commit
                  → {"records": [[key, value, headers], …], "committed": sum of offsets}
    group848      the same as PREFIX-new by the protocol of KIP-848
    steady        produce a record each STEADY_PAUSE_SECONDS, STEADY_COUNT times, by one producer
                  → {"produced": count}
    transactions  commit kept-0 and kept-1, abort dropped, commit kept-2; read committed ones back
                  → {"values": […]}
    admin         whatever the client's admin interface offers
                  → {"calls": {name: "ok" or an error}}

Programs import this file as a neighbour, so it must not import the rest of the test bed.
"""

from __future__ import annotations

import json
import ssl
import sys
import traceback
from collections.abc import Callable
from typing import Any

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

KEPT = ["kept-0", "kept-1", "kept-2"]

_SSL = ("ssl_cafile", "ssl_certfile", "ssl_ciphers")

STEADY_COUNT = 30
STEADY_PAUSE_SECONDS = 0.1


def records(compression: str) -> list[tuple[str | None, str | None, list[list[str]]]]:
    """What is produced with one compression: plain with headers, without key, a tombstone."""
    return [
        (
            f"key-{compression}",
            f"text in {compression} " * 40,
            [["trace", "5f3a"], ["trace", ""]],
        ),
        (None, f"no key, {compression}", []),
        (f"key-{compression}", None, [["reason", "gone"]]),
    ]


def text(data: bytes | None) -> str | None:
    """Bytes of a key, value or header as text."""
    return None if data is None else bytes(data).decode()


def seen(key: bytes | None, value: bytes | None, headers: Any) -> list:
    """A consumed record in the form of the summary."""
    return [
        text(key),
        text(value),
        [[name, text(each)] for name, each in headers or []],
    ]


def with_ssl_context(config: dict[str, Any]) -> dict[str, Any]:
    """Settings with files of TLS (`ssl_…`) as those with the context that both Pythons take."""
    files = {name: config[name] for name in config if name in _SSL}
    if not files:
        return config
    context = ssl.create_default_context(cafile=files["ssl_cafile"])
    if "ssl_certfile" in files:
        context.load_cert_chain(files["ssl_certfile"])
    if "ssl_ciphers" in files:
        context.set_ciphers(files["ssl_ciphers"])
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    others = {name: value for name, value in config.items() if name not in _SSL}
    return {**others, "ssl_context": context}


class Calls:
    """Collects how admin calls went: `calls("name", function)`."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        """Make one call; its result, or None when it failed."""
        try:
            answer = call()
        except Exception as error:
            self.results[name] = f"{type(error).__name__}: {error}"
            return None
        self.results[name] = "ok"
        return answer


def main(client: str, steps: dict[str, Callable[[str, dict], Any]]) -> None:
    """Do the job on the command line with this client's steps and print the summary."""
    bootstrap, job = sys.argv[1], json.loads(sys.argv[2])
    results: dict[str, Any] = {}
    for name in job["steps"]:
        try:
            results[name] = steps[name](bootstrap, job)
        except Exception as error:
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"client": client, "steps": results}))
