"""The manual: pages in Markdown, rendered on a terminal, unchanged in a pipe.

::

    kproxy/manual/*.md ──┬─▶ page ─▶ show ─▶ terminal: bold headings, aligned tables
    table of fields ─────┘                   pipe: Markdown

Lists of fields and of filter keys are generated from the table of fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TextIO

from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.fields import Need, Type
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from kproxy.look.lines.lines import terminal_width, wants_colour

TOPICS = {
    "run": "put kproxy between clients and a cluster, and record",
    "metrics": "metrics, alerts for Prometheus, a dashboard for Grafana",
    "filters": "say which exchanges: api:Fetch topic:orders-* service_ms:50..",
    "tls": "real clusters: TLS and SASL on both sides",
    "faults": "break what passes, on purpose",
    "replay": "a recording as the broker",
    "send": "a recording as the clients of a cluster",
    "testing": "tests with recordings: the pytest fixture, a command in any language, git",
    "containers": "the image, testcontainers, a sidecar in Kubernetes",
    "service": "leave it on: options in a file, health, logs, systemd, reloading",
    "recordings": "read recordings: show, why, diff, stats, tail, export; JSON and Python",
    "web": "recordings in a browser",
    "speed": "what it costs, and where the time goes",
    "schemas": "what keys and values mean: schemas from a registry or a folder",
    "fields": "each field of an exchange: type and meaning",
    "spark": "recordings as tables: Spark, reports, polars, DuckDB",
    "security": "what is recorded, what is blanked out, who may ask",
    "format": "the file, for those who read it with other tools",
}
"""Name of each page → one line about it."""
FILES = {
    "alerts.yml": "alerting rules for Prometheus",
    "dashboard.json": "a dashboard for Grafana",
}
"""Name of each file that is printed as it is → one line about it."""

_WIDTH_DEFAULT = 80
_LAST_COLUMN_MIN = 24
_GAP = "  "
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_STYLE = re.compile(r"\x1b\[\d*m")
_SPAN = re.compile(r"\*\*(.+?)\*\*|`([^`]+)`")
_CELL = re.compile(r"(?<!\\)\|")


def contents(commands: Mapping[str, str]) -> str:
    """Return the list of topics and commands, in Markdown."""
    return "\n".join(
        [
            "# kproxy",
            "",
            "## Topics: kproxy help TOPIC",
            "",
            *_table(("topic", "about"), TOPICS.items()),
            "",
            "## Files: kproxy help FILE > FILE",
            "",
            *_table(("file", "about"), FILES.items()),
            "",
            "## Commands: kproxy COMMAND --help",
            "",
            *_table(("command", "about"), commands.items()),
            "",
        ]
    )


def page(topic: str) -> str:
    """Return a page of the manual, in Markdown."""
    if topic == "fields":
        return _fields()
    text = file(f"{topic}.md")
    return f"{text}\n{_filter_keys()}" if topic == "filters" else text


def file(name: str) -> str:
    """Return a file of the manual, one of `FILES`, as it is."""
    return resources.files("kproxy").joinpath("manual", name).read_text("utf-8")


def show(markdown: str, out: TextIO) -> None:
    """Write a page to a terminal, or its Markdown to anything else."""
    width = terminal_width(out)
    if width is not None:
        markdown = "\n".join([*rendered(markdown, width, wants_colour(out)), ""])
    out.write(markdown)


# ---------------------------------------------------------------- made from the table of fields


def _fields() -> str:
    rows = [
        (f"`{name}`", _type(field.type, field.nullable), field.about + _json_hint(field.in_json))
        for name, field in FIELDS.items()
    ]
    return "\n".join(
        [
            "# Fields of an exchange",
            "",
            "An exchange is a request and its response. Its fields have one name",
            "everywhere: keys of `kproxy show --json`, attributes in Python, columns in",
            "Spark, Parquet, polars and DuckDB.",
            "",
            *_table(("field", "type", "meaning"), rows),
            "",
            "`kproxy help filters` lists the keys of filters.",
            "",
        ]
    )


def _json_hint(in_json: bool) -> str:
    return "" if in_json else " (not in JSON)"


def _type(kind: Type, nullable: bool) -> str:
    return _TYPES[kind] + (" or null" if nullable else "")


_TYPES = {
    Type.INT16: "integer",
    Type.INT32: "integer",
    Type.INT64: "integer",
    Type.FLOAT: "number",
    Type.BOOL: "true, false",
    Type.TEXT: "text",
    Type.TEXTS: "list of texts",
    Type.TIME: "time",
    Type.PARTITIONS: "list",
    Type.WAITED: "object",
    Type.BODY: "object",
    Type.BYTES: "bytes",
}


_ORIGINS = {
    Need.CONNECTION: "connection",
    Need.HEADER: "header",
    Need.REQUEST: "request",
    Need.ROW: "end",
    Need.RESPONSE: "response",
}
"""The part of an exchange from which a key can be read."""


def _filter_keys() -> str:
    keys = [
        (f"`{key.name}`", _ORIGINS[key.need], f"{key.help}; `{key.example}`")
        for key in (*KEYS, *PATHS)
    ]
    qualities = [
        (f"`is:{name}`", _ORIGINS[each.need], each.help) for name, each in QUALITIES.items()
    ]
    return "\n".join(
        [
            "## All keys",
            "",
            *_table(("key", "from", "meaning; example"), keys),
            "",
            "## All values of `is:`",
            "",
            *_table(("term", "from", "meaning"), qualities),
            "",
        ]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


# ---------------------------------------------------------------- on a terminal


def rendered(markdown: str, width: int = _WIDTH_DEFAULT, bold: bool = False) -> Iterator[str]:
    """Yield the lines of a page as a terminal shows them."""
    lines = iter(markdown.splitlines())
    for line in lines:
        table: list[str] = []
        while line.startswith("|"):
            table.append(line)
            line = next(lines, "")
        if table:
            yield from _aligned(table, width, bold)
        if line.startswith("```"):
            yield from (f"    {code}".rstrip() for code in iter(lambda: next(lines, "```"), "```"))
        elif line.startswith("#"):
            yield _inline(f"**{line.lstrip('# ').replace('`', '')}**", bold)
        elif not line.lstrip().startswith("<"):
            yield _inline(line, bold)


def _inline(text: str, bold: bool) -> str:
    """Replace Markdown's marks of bold text and code; without bold type, code stays quoted."""

    def styled(found: re.Match[str]) -> str:
        strong, code = found.groups()
        if bold:
            return f"{_BOLD}{strong or code}{_PLAIN}"
        return strong or f"`{code}`"

    return _SPAN.sub(styled, text)


def _aligned(table: Sequence[str], width: int, bold: bool) -> Iterator[str]:
    """Yield a table in columns, the last of them wrapped to the width."""
    head, _, *body = (_cells(line) for line in table)
    rows = [[_inline(cell, bold) for cell in row] for row in ([f"**{c}**" for c in head], *body)]
    widths = [max(map(_columns, column)) for column in list(zip(*rows, strict=True))[:-1]]
    left = sum(each + len(_GAP) for each in widths)
    for row in rows:
        begin = "".join(
            cell + " " * (each - _columns(cell)) + _GAP
            for cell, each in zip(row, widths, strict=False)
        )
        for part in _wrapped(row[-1], max(width - left, _LAST_COLUMN_MIN)):
            yield (begin + part).rstrip()
            begin = " " * left


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELL.split(line.strip())[1:-1]]


def _columns(text: str) -> int:
    return len(_STYLE.sub("", text))


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and _columns(line) + 1 + _columns(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
