"""Rules from what people type: TOML files, flags, and the dicts of JSON and Python.

::

    [[fault]] tables ─┐
    key=value words ──┼─▶ words (a dict) ─▶ Rule
    JSON ─────────────┘

Invariants: all of them end in `rule_from_words`. Only errors name the source of a text, with the
line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.prepare import Actions, check_keys, prepare
from kproxy.proxy.faults.rule import Rule, RuleError
from kproxy.proxy.faults.values import ReadDelays, no_recordings

_TABLE = re.compile(r"\s*\[\[\s*fault\s*\]\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:\[\s*fault\s*\.\s*)?["']?([\w-]+)["']?\s*[]=.]""")
_ITEM = re.compile(r"""[^\s=]+|["'[{].*""", re.DOTALL)
"""An element of a list of bare words."""
_NESTED_MAX = 8
_TEXTS = frozenset(("name", "topic", "group", "client_id", "transactional_id", "where"))
"""Keys whose bare words are text even where they look like something else: a topic 2024."""


def rule_from_words(words: Mapping[str, Any], actions: Actions = ACTIONS) -> Rule:
    """Make a rule of plain values.

    Raises:
        RuleError: a key is none of a rule's; `prepare` checks the values.
    """
    check_keys(words, actions)
    return Rule(**words)


def load_toml(text: str, path: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Read a TOML file; return its keys with their values, and with their places.

    Raises:
        RuleError: it is no TOML.
    """
    import tomllib  # here: most processes have no rules

    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have too many digits
        line = re.search(r"line (\d+)", str(error))
        number = int(line[1]) if line else text.count("\n") + 1
        raise RuleError(f"this is no TOML: {error}", place=_place(path, number)) from None
    lines = dict(reversed(_key_lines(text.splitlines(), 0)))
    return found, {key: _place(path, lines.get(key, 1)) for key in found}


def rules_from_toml(
    text: str, path: str = "", read_delays: ReadDelays = no_recordings, *, alone: bool = True
) -> list[Rule]:
    """Read the `[[fault]]` tables of a TOML file; errors name it `path`. Nothing else may stand in
    it if they are to be `alone`.

    Raises:
        RuleError: it is no TOML, or a rule in it is wrong; with the file, the line and the key.
    """
    found, places = load_toml(text, path)
    for key in found:
        if alone and key != "fault":
            what = "rules stand in [[fault]] tables, and nothing else may"
            raise RuleError(what, key, places[key])
    return rules_from_tables(found.get("fault", []), text, path, read_delays)


def rules_from_tables(tables: Any, text: str, path: str, read_delays: ReadDelays) -> list[Rule]:
    """Read the `[[fault]]` tables that `load_toml` has found in a text.

    Raises:
        RuleError: a rule is wrong.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RuleError("rules are [[fault]] tables, with two brackets", "fault", path or None)
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if _TABLE.match(line)]
    starts += [1] * (len(tables) - len(starts))
    return [
        _parse_table(table, path, dict(reversed(_key_lines(lines, start))), start, read_delays)
        for table, start in zip(tables, starts, strict=False)
    ]


def _key_lines(lines: list[str], start: int) -> list[tuple[str, int]]:
    """Return the keys of a table that begins behind this line, with their line numbers."""
    found: list[tuple[str, int]] = []
    for number, line in enumerate(lines[start:], start + 1):
        if _TABLE.match(line):
            break
        key = _KEY.match(line)
        if key is not None:
            found.append((key[1], number))
    return found


def _parse_table(
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


def rule_from_flag(
    text: str, read_delays: ReadDelays = no_recordings, actions: Actions = ACTIONS
) -> Rule:
    """Read a rule of `key=value` words: `api=Produce error=NOT_LEADER_OR_FOLLOWER times=2`.

    A value is TOML, or a bare word, which is a text, or a list or table of bare words.

    Raises:
        RuleError: a word is not key=value, or the rule is wrong.
    """
    try:
        rule = rule_from_words(words_from_text(text), actions)
        prepare(rule, read_delays, actions)
    except RuleError as error:
        raise RuleError(error.what, error.key, f"--fault {text!r}") from None
    return rule


def words_from_text(text: str) -> dict[str, Any]:
    """Read `key=value` words, with any keys.

    Raises:
        RuleError: a word is not key=value, a key is there twice, or a value is none.
    """
    words: dict[str, Any] = {}
    for word in filter(None, _split(text)):
        key, equals, value = word.partition("=")
        if not equals or not key:
            name, _, rest = word.partition(":")  # as filters have it
            instead = f": write {name}={rest}" if name and rest and not equals else ""
            raise RuleError(f"{word!r} is not key=value{instead}")
        if key in words:
            raise RuleError("this key is there twice", key)
        words[key] = _parse_value(key, value)
    return words


def _split(text: str, is_separator: Callable[[str], bool] = str.isspace) -> list[str]:
    """Split at spaces, or other characters, but not inside quotes or brackets."""
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
        elif is_separator(character) and depth <= 0:
            found.append(word)
            word = ""
            continue
        word += character
    if quote or depth:
        what = f"the quote {quote} is not closed" if quote else "brackets do not match"
        raise RuleError(what)
    return [*found, word]


def _parse_value(key: str, text: str, nested: int = 0) -> Any:
    """Read TOML, a bare word, or a list or a table of such."""
    if not text:
        raise RuleError("it has no value", key)
    if key in _TEXTS and text[0] not in "\"'[{":
        return text
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number of too many digits
        if text[0] not in "\"'[{":
            return text
    wrong = RuleError(f"{text} is neither TOML nor a bare word", key)
    if text[0] not in "[{" or nested == _NESTED_MAX:
        raise wrong
    inner = [each.strip() for each in _split(text[1:-1], ",".__eq__)]
    if text[0] + text[-1] == "[]" and all(map(_ITEM.fullmatch, inner)):
        return [_parse_value(key, each, nested + 1) for each in inner]
    pairs = [each.partition("=") for each in inner]
    if text[0] + text[-1] == "{}" and all(equals for _, equals, _ in pairs):
        return {
            name.strip(): _parse_value(key, value.strip(), nested + 1) for name, _, value in pairs
        }
    raise wrong
