"""Contexts that are made again: when files change, when they failed, and before a certificate
ends."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import attrs
import pytest

from kproxy.net.tls.contexts import ContextSource, listen_contexts
from kproxy.net.tls.settings import ListenTls, TlsError
from tests.bed.logged import to
from tests.net.tls.test_stores import shake

DAY = 86_400


@attrs.define(eq=False)
class Clock:
    """A clock that is set by hand."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


@attrs.define(eq=False)
class Files:
    """A source of one file, whose content decides whether it can be used."""

    path: Path
    clock: Clock = attrs.field(factory=Clock)
    logs: list[str] = attrs.field(factory=list)
    made: int = 0
    written: int = 0

    def write(self, text: str) -> None:
        """Write the file, at another time than before, however fast that is."""
        self.path.write_text(text)
        self.written += 1
        os.utime(self.path, (self.written, self.written))

    def make(self) -> ssl.SSLContext:
        """Make a context, if the file is good."""
        self.made += 1
        if (text := self.path.read_text()) != "good":
            raise TlsError(f"it is {text}")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def source(self, lasts_seconds: float = 1e9) -> ContextSource:
        """The source."""
        return ContextSource(
            self.make, "to brokers", [self.path], to(self.logs), lasts_seconds, self.clock
        )


def checked(source: ContextSource) -> ssl.SSLContext:
    """The context in use after a look at the files."""
    if found := source.check():
        source.take(found)
    return source.context()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A file that is good."""
    found = Files(tmp_path / "file")
    found.write("good")
    return found


def test_files_that_stay_are_loaded_once(files: Files) -> None:
    source = files.source()
    first = source.context()
    files.clock.seconds += 300 * DAY
    assert [checked(source) for _ in range(3)] == [first] * 3
    assert files.made == 1 and files.logs == []


def test_a_look_changes_nothing(files: Files) -> None:
    """It is another thread's."""
    source = files.source()
    first = source.context()
    files.write("good")
    found = source.check()
    assert found and source.context() is first and files.logs == []
    source.take(found)
    assert source.context() is found.context


def test_files_that_cannot_be_used_are_tried_again_and_said_once(files: Files) -> None:
    source = files.source()
    first = source.context()
    files.write("torn")
    assert checked(source) is first
    files.clock.seconds += 9
    assert checked(source) is first and files.made == 2, "tried again too soon"
    files.clock.seconds += 2
    assert checked(source) is first and files.made == 3
    assert files.logs == ["TLS to brokers goes on with the files from before: it is torn"]
    files.write("worse")
    assert checked(source) is first, "a change is seen at once"
    files.path.unlink()
    assert checked(source) is first
    files.write("good")
    assert checked(source) is not first
    assert files.logs[1] == "TLS to brokers goes on with the files from before: it is worse"
    assert "No such file" in files.logs[2]
    assert files.logs[3:] == ["files of TLS to brokers have changed and are in use"]
    files.clock.seconds += 300 * DAY
    assert source.check() is None


def test_a_context_that_grows_old_is_made_anew(files: Files) -> None:
    source = files.source(lasts_seconds=60 * DAY)
    first = source.context()
    files.clock.seconds += 59 * DAY
    assert checked(source) is first
    files.clock.seconds += 2 * DAY
    second = checked(source)
    assert second is not first
    files.clock.seconds += 59 * DAY
    assert checked(source) is second
    assert files.logs == ["a renewed certificate is in use"]


def test_the_certificate_of_auto_is_renewed_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    clock, logs = Clock(), []
    source = listen_contexts(ListenTls(), ["localhost"], to(logs), clock)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority = tmp_path / "kproxy" / "ca.pem"
    client.load_verify_locations(authority)
    serials = set()
    for _ in range(4):
        shown = shake(checked(source), client)
        serials.add(shown["serialNumber"])
        first, last = (ssl.cert_time_to_seconds(shown[f"not{end}"]) for end in ("Before", "After"))
        assert last - first > 61 * DAY, "it ends before it is renewed"
        clock.seconds += 61 * DAY
    assert len(serials) == 4 and logs == ["a renewed certificate is in use"] * 3
