"""Kafka's own classes read what we write and write the same bytes again.

For two releases, 2 bodies of each message and version that `tests.versions` takes, and 41 where it
takes all. Where the bytes differ, DIFFERENCES says why.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Message
from tests.bed import jvm
from tests.versions import ALL, versions
from tests.wire.protocol.making import DATA, MESSAGES, title
from tests.wire.protocol.strategies import drawn

pytestmark = pytest.mark.java

RELEASES = ("4.4.0", "3.9.2")

DIFFERENCES = {
    ("3.9.2", "ReadShareGroupStateSummaryResponse", 0): (
        "4.1 inserted LeaderEpoch into this version of an API that was unstable until then; the"
        " table has the newer definition"
    ),
}


@attrs.define(eq=False)
class Rewriter:
    """A JVM with Kafka's classes of one release."""

    process: subprocess.Popen[bytes]

    def rewrite(self, name: str, version: int, messages: list[bytes]) -> list[bytes | str] | str:
        """Each message read and written again, or the exception; or why that cannot be asked."""
        assert self.process.stdin and self.process.stdout
        raw = name.encode()
        head = struct.pack(">H", len(raw)) + raw + struct.pack(">hi", version, len(messages))
        parts = [len(message).to_bytes(4, "big") + message for message in messages]
        self.process.stdin.write(b"".join([head, *parts]))
        self.process.stdin.flush()
        refusal = self._text()
        return refusal or [self._message() for _ in messages]

    def _message(self) -> bytes | str:
        (size,) = struct.unpack(">i", self._read(4))
        return self._text() if size < 0 else self._read(size)

    def _text(self) -> str:
        (size,) = struct.unpack(">H", self._read(2))
        return self._read(size).decode()

    def _read(self, size: int) -> bytes:
        found = self.process.stdout.read(size)
        assert len(found) == size, "the JVM ended"
        return found


@pytest.fixture(scope="module")
def rewriters() -> Iterator[dict[str, Rewriter]]:
    """A running JVM per release."""
    source = Path(__file__).parent / "java" / "Rewrite.java"
    running = {}
    for release in RELEASES:
        jars = jvm.client_jars(release)
        command = jvm.java([jvm.compiled(source, jars), jars], "Rewrite")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running[release] = Rewriter(process)
    yield running
    for rewriter in running.values():
        rewriter.process.stdin.close()
        rewriter.process.stdout.close()
        assert rewriter.process.wait(timeout=20) == 0


def java_class(message: Message) -> str:
    """The name that Kafka's generator gives the class of a definition."""
    return message.name if message.direction == schema.DATA else message.name + "Data"


@pytest.mark.parametrize("message", MESSAGES, ids=title)
def test_kafkas_own_classes_write_the_same_bytes(message, rewriters):
    asked = 0
    for version in versions(message):
        raw = drawn(message, version, 41 if ALL else 2)
        for release, rewriter in rewriters.items():
            answer = rewriter.rewrite(java_class(message), version, raw)
            if isinstance(answer, str):
                continue
            asked += 1
            if (release, message.name, version) in DIFFERENCES:
                assert answer != raw
            else:
                for ours, theirs in zip(raw, answer, strict=True):
                    assert theirs == ours, (release, version, theirs)
    assert asked >= len(versions(message))


@pytest.mark.parametrize("release", RELEASES)
def test_no_version_of_a_release_is_left_out(release, rewriters):
    """Every version in ApiKeys is one that the test above asked this release for."""
    for line in (DATA / f"apikeys-{release}.tsv").read_text().splitlines():
        key, _, _, _, _, _, headers, *_ = line.split("\t")
        for entry in headers.split():
            version = int(entry.split(":")[0])
            for direction in (schema.REQUEST, schema.RESPONSE):
                message = schema.message(int(key), direction)
                assert message is not None
                assert version in message.versions
                renamed = (release, message.name) in RENAMED
                answer = rewriters[release].rewrite(java_class(message), version, [])
                assert answer == [] or renamed


RENAMED = {
    # API 74 was ListClientMetricsResources before 4.1.
    ("3.9.2", "ListConfigResourcesRequest"),
    ("3.9.2", "ListConfigResourcesResponse"),
}


def test_a_tag_sent_with_its_default_is_what_java_drops(rewriters):
    """The one thing that Kafka's classes do not keep, and we do."""
    raw = bytes.fromhex("0000 01 00000000 01 03 01 00")
    for rewriter in rewriters.values():
        (answer,) = rewriter.rewrite("ApiVersionsResponseData", 3, [raw])
        assert answer == bytes.fromhex("0000 01 00000000 00")
