"""`kproxy scan`: text in recordings that looks like a secret.

::

    entries ─▶ notes ──────────────────────────▶ names and values ─┐
        └────▶ exchanges ─▶ SASL, tokens, configs: redacted again  ├─▶ secrets.find ─▶ SecretFinding
                    ├─────▶ fields, records' keys, values, headers ┤
                    └─────▶ bytes behind the body ─────────────────┘

Fields that the proxy blanks out while recording are blanked out again: each change is a secret that
was recorded. All other text is searched for patterns of secrets. Compressed records are
decompressed, within the allowance of their exchange.

What cannot be looked into is a finding, too: frames that do not decode, records that cannot be
read, and the end of a torn file. Nobody knows that no secret is in them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import attrs

from kproxy.exchange import notes, secrets
from kproxy.exchange.entries import EVENTS, SASL_TOKEN, Frame, Note, Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import Pairing
from kproxy.exchange.unpacking import Unpacking
from kproxy.look.lines.frame import layouts
from kproxy.proxy import redact
from kproxy.recording.files import RecordingError
from kproxy.recording.paths import recordings, size_of
from kproxy.recording.reader import entries
from kproxy.wire.protocol import ProtocolError, codec, records, schema
from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.record_batch import Record, read_records

NOT_LOOKED_INTO = "not looked into"
"""The kind of a finding that is no secret, but a place where one may be."""

FILE_END = "end of the file"
"""The place of a finding that is behind the last entry of a torn file."""

Text = tuple[str, bytes, bytes]
"""The path of a text in its message, the name of its field or header (b"" for none), the text."""


class NotLookedInto(NamedTuple):
    """A part of a message in which nobody could look for secrets."""

    where: str
    """Its path in the message."""
    why: str


@attrs.frozen
class SecretFinding:
    """Text that looks like a secret, and its place in a recording."""

    path: Path
    number: int | None
    """The number of the exchange; None in a note, and of the end of a torn file."""
    api: str | None
    where: str
    """"request", "response" or "note", and the path of the field; or `FILE_END`."""
    offset: int
    """The byte in the field, or in the frame if `where` names no field; in the file, of its end."""
    kind: str
    """The kind of secret, or `NOT_LOOKED_INTO`."""
    hint: str
    """The part of the secret that may be shown; or why it was not looked into."""

    def line(self) -> str:
        """Return the finding as one line for people."""
        exchange = "" if self.number is None else f" exchange {self.number} {self.api or '?'}"
        what = f"{self.kind}{'' if self.is_secret else ':'} {self.hint}"
        return f"{self.path}:{exchange} {self.where} at byte {self.offset}: {what}"

    @property
    def is_secret(self) -> bool:
        """True for what looks like a secret, False for what could not be looked into."""
        return self.kind != NOT_LOOKED_INTO

    def plain(self) -> dict[str, Any]:
        """Return the finding as plain values for JSON."""
        return {**attrs.asdict(self), "path": str(self.path)}


def total(found: Iterable[SecretFinding], more_than: int | None = None) -> str:
    """Return what was found, in words: what looks like secrets, and what nobody could look into,
    by the numbers of the exchanges; `more_than`: the search ended behind so many."""
    secrets_found = sum(finding.is_secret for finding in found)
    unread = [finding for finding in found if not finding.is_secret]
    numbers = sorted({each.number for each in unread if each.number is not None})
    closed = [f"the end of {each.path}" for each in unread if each.number is None]
    parts: list[str] = []
    if secrets_found:
        more = "more than " if more_than else ""
        count = more_than or secrets_found
        parts.append(f"found what looks like {more}{count} secret{'s' if count > 1 else ''}")
    if numbers:
        named = ", ".join(map(str, numbers[:_NUMBERS_MAX]))
        rest = len(numbers) - _NUMBERS_MAX
        also = f" and {rest} more" if rest > 0 else ""
        closed.insert(0, f"exchange{'s' if len(numbers) > 1 else ''} {named}{also}")
    if closed:
        parts.append(f"could not look into {' and '.join(closed)}")
    return "; ".join(parts)


def scan(
    paths: Iterable[Path | str],
    on_progress: Callable[[int], None] = lambda done_bytes: None,
    on_note: Callable[[Note], None] = lambda note: None,
) -> Iterator[SecretFinding]:
    """Yield the secrets found in recordings. `on_progress` is called with the bytes read so far,
    `on_note` with each note.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged, or cannot be read.
    """
    passed_bytes, unpacking = 0, Unpacking()
    files = recordings(paths)
    for path in files:
        before = passed_bytes
        try:
            entries_of = entries(
                path, passed=lambda done, before=before: on_progress(before + done)
            )
            yield from _in_file(path, entries_of, on_note, unpacking)
            passed_bytes += size_of([path])
        except RecordingError:
            if len(files) == 1 or path.exists():
                raise
            on_note(notes.gone(0, str(path)))
        except OSError as error:
            raise RecordingError(path, None, f"cannot be read: {error.strerror}") from None


def _in_file(
    path: Path,
    entries_of: Iterable[Frame | Note],
    on_note: Callable[[Note], None],
    unpacking: Unpacking,
) -> Iterator[SecretFinding]:
    pairing = Pairing(unpacking=unpacking)
    for entry in entries_of:
        if isinstance(entry, Note):
            on_note(entry)
            yield from in_note(path, entry)
            if entry.channel == EVENTS and entry.body.get("event") == "torn":
                at, why = entry.body["offset"], f"the file {entry.body['what']}"
                yield SecretFinding(path, None, None, FILE_END, at, NOT_LOOKED_INTO, why)
        for exchange in pairing.feed(entry):
            yield from in_exchange(path, exchange)
    for exchange in pairing.finish():
        yield from in_exchange(path, exchange)
    if unpacking.left_out:
        on_note(notes.unread(0, str(path), unpacking.left_out))
        unpacking.left_out.clear()


def in_note(path: Path, note: Note) -> Iterator[SecretFinding]:
    """Yield the secrets found in a note of a recording."""
    for where, name, text in _value_texts("note", note.body, b"", Allowance(), []):
        for secret in secrets.find_named(name, text):
            yield _finding(path, None, None, where, secret, text)


def in_exchange(path: Path, exchange: Exchange) -> Iterator[SecretFinding]:
    """Yield the secrets found in an exchange of a recording."""
    with exchange.topic_names.unpacking.of(exchange) as allowance:
        yield from _in_exchange(path, exchange, allowance)


def _in_exchange(path: Path, exchange: Exchange, allowance: Allowance) -> Iterator[SecretFinding]:
    for side in Side:
        request = side is Side.CLIENT
        frame = exchange.request_frame if request else exchange.response_frame
        if frame is None:
            continue
        where = "request" if request else "response"
        message = exchange.request_message if request else exchange.response_message
        for secret in _unredacted(exchange, frame, side):
            yield _finding(path, exchange.number, exchange.api, where, secret, frame)
        texts: Iterable[Text] = [(where, b"", frame)]
        unread: list[NotLookedInto] = []
        if message is None and exchange.api != SASL_TOKEN and not _is_blank(frame, side):
            unread.append(NotLookedInto(where, "it cannot be decoded"))
        if message is not None:
            behind = (
                f"{where} behind the body",
                b"",
                frame[_end(exchange, side, message, frame) :],
            )
            texts = itertools.chain(_texts(where, message, allowance, unread), [behind])
        for place, name, text in texts:
            for secret in secrets.find_named(name, text) if name else secrets.find(text):
                yield _finding(path, exchange.number, exchange.api, place, secret, text)
        for place, why in unread:
            number, api = exchange.number, exchange.api
            yield SecretFinding(path, number, api, place, 0, NOT_LOOKED_INTO, why)


def _is_blank(frame: bytes, side: Side) -> bool:
    """Return whether nothing is behind the fixed part of the header of a frame: no byte, or only
    such as the proxy puts in place of secrets."""
    return not frame[12 if side is Side.CLIENT else 8 :].strip(b"\0")


def _end(exchange: Exchange, side: Side, message: Any, frame: bytes) -> int:
    """Return where the fields of a frame end."""
    direction = schema.REQUEST if side is Side.CLIENT else schema.RESPONSE
    end = 4
    try:
        for layout, version in layouts(exchange, direction, message):
            _, end = codec.locate(layout, version, ())(frame, end)
    except ProtocolError:
        return 4
    return end


def _finding(
    path: Path,
    number: int | None,
    api: str | None,
    where: str,
    secret: secrets.Secret,
    text: bytes,
) -> SecretFinding:
    hint = secrets.hint(text[secret.start : secret.end])
    return SecretFinding(path, number, api, where, secret.start, secret.kind, hint)


def _unredacted(exchange: Exchange, frame: bytes, side: Side) -> list[secrets.Secret]:
    """Return the bytes of a frame that blanking it out again would change."""
    key, version = exchange.api_key, exchange.api_version
    if exchange.api == SASL_TOKEN:
        blanked = redact.blank_token(frame)
    elif key is None or version is None or not redact.is_sensitive(key):
        return []
    else:
        blanked = redact.redact(frame, side, key, version) or frame
    kind = "SASL token" if exchange.api in (SASL_TOKEN, "SaslAuthenticate") else "secret field"
    return [secrets.Secret(kind, *span) for span in _differences(frame, blanked)]


def _differences(one: bytes, other: bytes) -> Iterator[tuple[int, int]]:
    """Yield the spans in which byte strings of equal length differ, joined over small gaps."""
    start = end = -1
    if one == other:
        return
    for position, (left, right) in enumerate(zip(one, other, strict=True)):
        if left == right:
            continue
        if start >= 0 and position - end > _GAP_MAX:
            yield start, end
            start = -1
        start, end = (position if start < 0 else start), position + 1
    yield start, end


_GAP_MAX = 2
_NUMBERS_MAX = 20


# ---- all text in a message


def _texts(
    where: str, message: Any, allowance: Allowance, unread: list[NotLookedInto]
) -> Iterator[Text]:
    """Yield all text and bytes of a request or a response; add to `unread` what hides some."""
    yield from _value_texts(f"{where} header", message.header, b"", allowance, unread)
    yield from _value_texts(where, message.body, b"", allowance, unread)


def _value_texts(
    place: str, value: Any, name: bytes, allowance: Allowance, unread: list[NotLookedInto]
) -> Iterator[Text]:
    if isinstance(value, str):
        yield place, name, _encoded(value)
    elif isinstance(value, bytes):
        if name in (b"records", b"unaligned_records"):
            yield from _record_texts(place, value, allowance, unread)
        else:
            yield place, name, value
    elif isinstance(value, list | tuple):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from _value_texts(f"{place}[{index}]", each, name, allowance, unread)
    elif isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            below = _encoded(str(key))
            yield from _value_texts(f"{place} {key}", each, below, allowance, unread)
    else:
        for field, below in _fields(type(value)):
            inner = getattr(value, field)
            if type(inner) is not int:  # most are
                yield from _value_texts(f"{place} {field}", inner, below, allowance, unread)


@functools.cache
def _fields(kind: type[Any]) -> tuple[tuple[str, bytes], ...]:
    """Return the names of the fields of structs of a class; none if it is not one of structs."""
    found = attrs.fields(kind) if attrs.has(kind) else ()
    return tuple((each.name, each.name.encode()) for each in found)


def _record_texts(
    place: str, data: bytes, allowance: Allowance, unread: list[NotLookedInto]
) -> Iterator[Text]:
    batches = records.batches(data)
    for number, batch in enumerate(batches):
        found, damage = read_records(batch, allowance)
        if damage is not None:
            unread.append(NotLookedInto(f"{place} batch[{number}]", str(damage)))
            yield f"{place} batch[{number}]", b"", batch.raw
            if batch.compression == "none":
                continue  # all of its text stands there
        for record in found:
            yield from _texts_of_record(f"{place} record@{record.offset}", record)
    if batches.damage is not None:
        unread.append(NotLookedInto(f"{place} behind the batches", str(batches.damage)))
    if batches.bytes_left:
        yield f"{place} behind the batches", b"", batches.rest(data)


def _texts_of_record(place: str, record: Record) -> Iterator[Text]:
    for name, value in (("key", record.key), ("value", record.value)):
        if value:
            yield f"{place} {name}", b"", value
    for key, value in record.headers:
        name = _encoded(key)
        yield f"{place} name of a header", b"", name
        if value:
            yield f"{place} header {key}", name, value


def _encoded(text: str) -> bytes:
    """Return the bytes of a text, also of one that is not UTF-8; in a foreign file, halves of pairs
    are among them."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
