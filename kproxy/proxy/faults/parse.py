"""Rules from what people type: TOML files, flags, and the dicts of JSON and Python.

::

    [[fault]] tables ─┐
    key=value words ──┼─▶ words (a dict) ─▶ Rule
    JSON ─────────────┘

Invariants: all of them end in `rule_from_words`. Where a text comes from is only said in errors,
with the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from kproxy.proxy.faults.apis import meant
from kproxy.proxy.faults.prepare import no_recordings, prepare
from kproxy.proxy.faults.rule import KEYS, Rule, RuleError
from kproxy.proxy.faults.timing import ReadDelays

_TABLE = re.compile(r"\s*\[\[\s*fault\s*\]\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:\[\s*fault\s*\.\s*)?["']?(\w+)["']?\s*[]=.]""")
_TEXTS = frozenset(("name", "topic", "group", "client_id", "transactional_id", "where"))
"""Keys whose bare words are text even where they look like something else: a topic 2024."""


def rule_from_words(words: Mapping[str, Any]) -> Rule:
    """Make a rule of plain values.

    Raises:
        RuleError: a key is none of a rule's; whether the values are right, `prepare` says.
    """
    for key in words:
        if key not in KEYS:
            raise RuleError(f"this is no key of a rule{meant(key, KEYS)}", str(key))
    return Rule(**words)


def rules_from_toml(
    text: str, path: str = "", read_delays: ReadDelays = no_recordings
) -> list[Rule]:
    """Read the `[[fault]]` tables of a TOML file; `path` is what errors call it.

    Raises:
        RuleError: it is no TOML, or a rule in it cannot be; it says the file, the line and the key.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        number = int(line[1]) if line else text.count("\n") + 1
        raise RuleError(f"this is no TOML: {error}", place=_place(path, number)) from None
    for key in found:
        if key != "fault":
            number = dict(reversed(_keys(text.splitlines(), 0))).get(key, 1)
            place = _place(path, number)
            raise RuleError("the file has only [[fault]] tables", key, place)
    tables = found.get("fault", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RuleError("rules are [[fault]] tables, with two brackets", "fault", path or None)
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if _TABLE.match(line)]
    starts += [1] * (len(tables) - len(starts))
    return [
        _checked(table, path, dict(reversed(_keys(lines, start))), start, read_delays)
        for table, start in zip(tables, starts, strict=False)
    ]


def _keys(lines: list[str], start: int) -> list[tuple[str, int]]:
    """The keys of a table that begins behind this line, and where they stand."""
    found: list[tuple[str, int]] = []
    for number, line in enumerate(lines[start:], start + 1):
        if _TABLE.match(line):
            break
        key = _KEY.match(line)
        if key is not None:
            found.append((key[1], number))
    return found


def _checked(
    words: dict[str, Any], path: str, lines: dict[str, int], start: int, read_delays: ReadDelays
) -> Rule:
    try:
        rule = rule_from_words(words)
        prepare(rule, read_delays)
    except RuleError as error:
        line = lines.get(error.key or "", start)
        raise RuleError(error.what, error.key, _place(path, line)) from None
    return rule


def _place(path: str, line: int) -> str:
    return f"{path}:{line}" if path else f"line {line}"


# ── flags ────────────────────────────────────────────────────────────────────────────────────


def rule_from_flag(text: str, read_delays: ReadDelays = no_recordings) -> Rule:
    """Read a rule of words: `api=Produce error=NOT_LEADER_OR_FOLLOWER times=2`.

    A value is TOML, or a bare word, which is a text.

    Raises:
        RuleError: a word is not key=value, or the rule cannot be.
    """
    words: dict[str, Any] = {}
    try:
        for word in _words(text):
            key, equals, value = word.partition("=")
            if not equals or not key:
                raise RuleError(f"{word!r} is not key=value")
            if key in words:
                raise RuleError("this key is there twice", key)
            words[key] = _value(key, value)
        rule = rule_from_words(words)
        prepare(rule, read_delays)
    except RuleError as error:
        raise RuleError(error.what, error.key, f"--fault {text!r}") from None
    return rule


def _words(text: str) -> list[str]:
    """Split at spaces, but not inside quotes or brackets."""
    found: list[str] = []
    word, depth, quote = "", 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character.isspace() and depth <= 0:
            found.append(word)
            word = ""
            continue
        word += character
    if quote or depth:
        what = f"the quote {quote} is not closed" if quote else "brackets do not match"
        raise RuleError(what)
    return [word for word in [*found, word] if word]


def _value(key: str, text: str) -> Any:
    if not text:
        raise RuleError("it has no value", key)
    if key in _TEXTS and text[0] not in "\"'[{":
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text[0] in "\"'[{":
            raise RuleError(f"{text} is neither TOML nor a bare word", key) from None
        return text
