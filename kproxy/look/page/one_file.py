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
import hashlib
import html
import json
import re
import zlib
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TextIO

import attrs

from kproxy.exchange.secrets import find
from kproxy.look.lines.export import ExportError, Writer, create
from kproxy.look.lines.scan import SecretFinding, in_exchange, in_note, total
from kproxy.look.lines.stats_lines import counted, stats_for
from kproxy.look.lines.stream import Stream
from kproxy.look.page import shown
from kproxy.look.page.findings import found_by
from kproxy.look.report.light import ReportReading
from kproxy.printable import printable
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
        stats = stats_for(stream)
        for exchange in counted(stream, stats):
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
        content = {
            "rows": rows,
            "portions": portions.begins,
            "tables": shown.statistics(stats)["tables"],
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
    reading = ReportReading(stream.paths, charted=False)
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
    _texts: list[str] = attrs.field(factory=list, init=False)
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


# ---- The page with its scripts and styles in one file
#
# ::
#
#     main.js ─ its imports, theirs first ─▶ one script: each module a function ─┐
#     page.css, icon.svg ────────────────────────────────────────────────────────┴─▶ page.html
#
# Browsers load no modules from a disk, so they are joined. This knows the JavaScript of our own
# modules: `import {…} from "./x.js"` and `import * as x from "./x.js"` at the beginning of a line,
# and `export` before a constant, a function or a class.
#
# Invariant: the page's policy allows its own script and style, by their hashes, and nothing else.


_STAND_INS = {"source.js": "embedded.js"}
"""Modules that others replace in a file."""
_IMPORT = re.compile(r'^import (?:\* as (\w+)|(\{[^}]*\})) from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def joined_page(title: str) -> tuple[str, str]:
    """Return the page of a file in two parts; between them belongs what it shows."""
    folder = resources.files("kproxy.look.page") / "files"
    style = (folder / "page.css").read_text("utf-8")
    script = joined_script(folder, "main.js")
    icon = base64.b64encode((folder / "icon.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (folder / "page.html").read_text("utf-8")
    for part, put in (
        ("<meta ", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n    <meta '),
        ("/static/icon.svg", f"data:image/svg+xml;base64,{icon}"),
        ('<link rel="stylesheet" href="/static/page.css">', f"<style>{style}</style>"),
        ('    <link rel="stylesheet" href="/static/picture.css">\n', ""),  # it tells no stories
        (
            '<script type="module" src="/static/main.js"></script>',
            f'<script type="module">{script}</script>',
        ),
        ("<title>kproxy</title>", f"<title>{html.escape(printable(title))}</title>"),
    ):
        page = page.replace(part, put, 1)
    before, end, after = page.rpartition("  </body>")
    return before, end + after


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def joined_script(folder: Traversable, main: str) -> str:
    """Return a module, and all that it imports, as one module without imports."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        name = _STAND_INS.get(name, name)
        if name in found:
            return
        found[name] = ""
        text = (folder / name).read_text("utf-8")
        for each in _IMPORT.finditer(text):
            add(f"{each[3]}.js")
        del found[name]  # behind those that it imports
        found[name] = _function(name, text)

    add(main)
    return "".join(found.values())


def _function(name: str, text: str) -> str:
    """Return a module as a function that is called once and returns what the module exports."""
    exported = ", ".join(each[1] for each in _EXPORT.finditer(text))
    body = _EXPORT.sub("", _IMPORT.sub(_taken, text))
    return f"const {_variable(name)} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _taken(found: re.Match[str]) -> str:
    return f"const {found[1] or found[2]} = {_variable(f'{found[3]}.js')};\n"


def _variable(name: str) -> str:
    return f"${_STAND_INS.get(name, name).removesuffix('.js')}"
