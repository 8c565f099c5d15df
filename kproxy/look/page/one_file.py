"""`kproxy export --to x.html`: the page with exchanges in it, which opens from a disk.

::

    Exchange ─┬─▶ row ────────────────────┐
              ├─▶ fields beside bytes ─▶ portions ─ JSON, deflate, base64 ─▶ <script> elements
              └─▶ scan: secrets          statistics ┘                          in `joined` page

`embedded.js` reads them. A portion is what has to be unpacked to show one exchange.

Invariants: what was recorded stands in the page as base64 only, which cannot end its element. A
page with more than a mail can carry, or with what looks like a secret, is not written.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import attrs

from kproxy.exchange.secrets import find
from kproxy.look.lines.export import ExportError, Writer, create
from kproxy.look.lines.scan import SecretFinding, in_exchange, in_note, total
from kproxy.look.lines.stats_lines import stats_of
from kproxy.look.lines.stream import Stream
from kproxy.look.page import shown
from kproxy.look.page.findings import found_by
from kproxy.look.page.joined import joined_page
from kproxy.look.report.light import ReportReading
from kproxy.units import format_bytes

EXCHANGES_MAX = 10_000
PAGE_BYTES_MAX = 20 << 20
"""The limit of most mail servers."""
SECRETS_MAX = 20
"""Findings that are named; the search ends with one more."""
_NAMES_MAX = 3
PORTION_CHARACTERS = 1 << 20


class SecretsError(ExportError):
    """Nothing was exported: exchanges hold what looks like secrets, or could not be looked into."""

    def __init__(self, found: list[SecretFinding]) -> None:
        more_than = SECRETS_MAX if len(found) > SECRETS_MAX else None
        super().__init__(
            f"{total(found, more_than)}, so nothing is written; --with-secrets writes it all the"
            " same"
        )
        self.found = found[:SECRETS_MAX]


def page_writer(with_secrets: bool) -> Writer:
    """Return what writes a page of exchanges, even of such with secrets."""
    return partial(_write_page, with_secrets=with_secrets)


def _write_page(stream: Stream, path: Path, with_secrets: bool) -> int:
    """Write the exchanges of a stream as a page; return their number.

    Raises:
        SecretsError: what looks like a secret is among them.
        ExportError: they are too many.
        RecordingError: a path is not there, not a recording, or damaged.
        OSError: the file cannot be written.
    """
    if stream.wanted is None and Stream(stream.paths).count_unopened() > EXCHANGES_MAX:
        raise _too_large(f"{EXCHANGES_MAX:,} exchanges")
    title = _title(stream)
    if not with_secrets and find(title.encode("utf-8", "replace")):
        raise ExportError(
            "the filter or a name of a file, which the title of the page shows, has what looks like"
            " a secret: nothing is written; --with-secrets writes it all the same"
        )
    secrets: list[SecretFinding] = []
    if not with_secrets:
        stream.on_note = lambda note: secrets.extend(in_note(Path(stream.file), note))
    before, after = joined_page(title)
    rows: list[dict[str, Any]] = []
    with open(create(path), "w", encoding="utf-8") as file:
        file.write(before)
        portions = _Portions(file)
        for exchange in stream.exchanges():
            if not with_secrets:
                secrets.extend(in_exchange(Path(stream.file), exchange))
                if len(secrets) > SECRETS_MAX:
                    break
            if len(rows) == EXCHANGES_MAX:
                raise _too_large(f"{EXCHANGES_MAX:,} exchanges")
            whole = shown.whole(exchange)
            rows.append({**whole.pop("row"), "topics": exchange.topics})
            portions.add(whole)
        if secrets:
            raise SecretsError(secrets)
        portions.finish()
        statistics = shown.statistics(stats_of(Stream(stream.paths, stream.wanted)))
        content = {
            "rows": rows,
            "portions": portions.begins,
            "tables": statistics["tables"],
            "notices": stream.notices,
            "findings": _findings(stream),
        }
        portions.write("content", json.dumps(content))
        file.write(after)
    return len(rows)


def _findings(stream: Stream) -> list[dict[str, Any]] | None:
    """Return what is found in all exchanges; None if a filter leaves some of them out."""
    if stream.wanted is not None:
        return None
    reading = ReportReading(stream.paths)
    for _ in reading.read():
        pass
    return found_by(reading)


def _title(stream: Stream) -> str:
    names = ", ".join(each.paths[0].name for each in stream.recordings[:_NAMES_MAX])
    wanted = "" if stream.wanted is None else f" {stream.wanted.text}"
    return f"{names}{wanted} · kproxy"


def _too_large(what: str) -> ExportError:
    return ExportError(
        f"a page holds at most {what}: choose fewer with a filter, such as time: or number:1..500"
    )


@attrs.define(eq=False)
class _Portions:
    """Writes exchanges into a page, several in an element."""

    file: TextIO
    begins: list[int] = attrs.Factory(list)
    """The number of the first exchange of each portion."""
    _texts: list[str] = attrs.field(factory=list[str], init=False)
    """Exchanges of the portion that is not written yet."""
    _characters: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)
    _written_bytes: int = attrs.field(default=0, init=False)

    def add(self, whole: dict[str, Any]) -> None:
        """Add an exchange.

        Raises: ExportError, if the page becomes too large; OSError.
        """
        if not self._texts:
            self.begins.append(self._count)
        self._count += 1
        self._texts.append(json.dumps(whole))
        self._characters += len(self._texts[-1])
        if self._characters > PORTION_CHARACTERS:
            self.finish()

    def finish(self) -> None:
        """Write the portion that is not written yet, if there is one."""
        if self._texts:
            self.write(f"portion-{len(self.begins) - 1}", f"[{','.join(self._texts)}]")
            self._texts, self._characters = [], 0

    def write(self, name: str, text: str) -> None:
        """Write a JSON text as an element.

        Raises: ExportError, if the page becomes too large; OSError.
        """
        packed = base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode()
        self._written_bytes += len(packed)
        if self._written_bytes > PAGE_BYTES_MAX:
            raise _too_large(format_bytes(PAGE_BYTES_MAX))
        self.file.write(f'    <script type="text/plain" id="{name}">{packed}</script>\n')
