"""Options from a file: `--config kproxy.toml`.

::

    kproxy.toml ─▶ words, as one would type them ─┐
    typed words, before which those give way ─────┴─▶ Parser ─▶ options ─▶ the command
                                                        └─ --print-config ─▶ TOML of the same words

A key is the long name of an option, its value what one would type behind it; [[fault]] tables are
those of --faults. A value of the file goes where the option is typed, or one that excludes it.

Invariants: all mistakes of a file are reported at once, a line each. No password is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kproxy.commands.options import UsageError, declare, toml_text
from kproxy.commands.output import fail
from kproxy.commands.parser import Parser
from kproxy.levels import silent

if TYPE_CHECKING:
    from kproxy.net.tls.settings import BrokerTls, ListenTls
    from kproxy.proxy.faults import Rule

_NOT_IN_FILES = ("help", "print-config")
_SECRET = ("user",)
"""Keys whose values have passwords, which are not printed."""


def add_config_options(add: Callable[..., object]) -> None:
    """Add --print-config and --log-format; --config, which names other files, too, is elsewhere."""
    declare(
        add,
        """
        --log-format {text,time,json} = text  lines of the log: as people read them on a terminal;
            the same with time and level; an object each with time, level and message (default
            %(default)s)
        --print-config  print the options as a file for --config FILE.toml, and end
        """,
    )


def parse(parser: Parser, typed: Sequence[str]) -> argparse.Namespace:
    """Parse what was typed and what the file of --config says; exit if either is wrong.

    Raises:
        UsageError: the file cannot be read.
    """
    first = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    config, rest = first.parse_known_args(typed)
    if config.config is None or config.config.suffix != ".toml":
        options, words, tables = parser.parse(typed), typed, []
    else:
        words, tables, rules, mistakes = _read(parser, config.config, rest)
        for line in mistakes:
            fail(f"{parser.prog}: {line}")
        if mistakes:
            sys.exit(2)
        words += rest
        options = parser.parse(words)
        # It may have tables later: they are read again at SIGHUP.
        is_replaced = "--fault" in _decided(parser, words)
        options.config_rules = None if is_replaced else (config.config, rules)
    options.printed = _toml(parser, words, tables) if options.print_config else ""
    return options


def _read(
    parser: Parser, path: Path, typed: Sequence[str]
) -> tuple[list[str], list[dict[str, Any]], list[Rule], list[str]]:
    """Return the words of a file, its fault tables, the rules of these, and its mistakes."""
    from kproxy.proxy.faults import RuleError, rule_from_flag
    from kproxy.proxy.faults.parse import load_toml, rules_from_tables
    from kproxy.recording.delays import broker_delays

    text = toml_text("--config", path)
    try:
        found, places = load_toml(text, str(path))
    except RuleError as error:
        return [], [], [], [str(error)]
    known, replaced = dict(_options(parser)), _decided(parser, typed)
    given: list[str] = []
    words: list[str] = []
    tables: list[dict[str, Any]] = []
    rules: list[Rule] = []
    mistakes: list[str] = []
    for key, value in found.items():
        place = f"{places[key]}: {key}: "
        try:
            if key == "fault" and _is_tables(value):
                place = ""  # the error has a better one
                rules = rules_from_tables(value, text, str(path), broker_delays)
                tables = [] if "--fault" in replaced else value
                continue
            if key not in known:
                raise ValueError(_unknown(key, known))
            texts = _words(parser, known[key], key, value)
            if key == "fault":
                [rule_from_flag(str(rule), broker_delays) for rule in value]
            if texts and f"--{key}" in _decided(parser, given):
                raise ValueError("another key excludes it")
            given += texts
            words += [] if f"--{key}" in replaced else texts
        except ValueError as error:
            mistakes.append(f"{place}{error}")
    return words, tables, rules, mistakes


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(each, dict) for each in cast(list[Any], value)
    )


def _options(parser: Parser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the keys of files with what they set."""
    for action in parser._actions:
        for option in action.option_strings:
            if option[:2] == "--" and option[2:] not in _NOT_IN_FILES:
                yield option[2:], action


def _decided(parser: Parser, typed: Sequence[str]) -> set[str]:
    """Return the options that these words give, and those that they exclude."""
    found = {word.partition("=")[0] for word in typed if word.startswith("--")}
    for group in parser._mutually_exclusive_groups:
        names = {option for action in group._group_actions for option in action.option_strings}
        found |= names if names & found else set()
    return found


def _unknown(key: str, known: dict[str, argparse.Action]) -> str:
    import difflib

    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]}?" if near else "the keys are the options without dashes before"
    return f"there is no such option; {hint}"


def _words(parser: Parser, action: argparse.Action, key: str, value: object) -> list[str]:
    """Return the words that set an option to a value of a file.

    Raises:
        ValueError: it cannot have this value.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("it is true or false")
        return [f"--{key}"] if value else []
    is_repeated = isinstance(action.default, list)
    if is_repeated != isinstance(value, list):
        raise ValueError('it is a list, as in ["…"]' if is_repeated else "it is one value, no list")
    texts: list[str] = []
    for each in cast(list[object], value if is_repeated else [value]):
        if isinstance(each, bool) or not isinstance(each, str | int | float) or "\0" in str(each):
            raise ValueError("it is a text, as it is typed on the command line")
        try:
            parser.check(action, str(each))
        except argparse.ArgumentError as error:
            raise ValueError(error.message) from None
        texts.append(f"--{key}={each}")
    return texts


# ── printing


def print_checked(
    options: argparse.Namespace, to_brokers: BrokerTls | None, to_clients: ListenTls | None
) -> int:
    """Print the options, unless a start would refuse them; return the exit code.

    Raises:
        UsageError: it would. Nothing is opened for it, and kproxy's own CA not made.
    """
    import trio

    from kproxy.commands.faults import control_token
    from kproxy.net.control_address import resolve_control
    from kproxy.net.listeners import ListenError
    from kproxy.net.security import security
    from kproxy.net.tls.settings import TlsError
    from kproxy.net.unusable import Unusable

    record: Path | None = getattr(options, "record", None)
    if record is not None and record.exists():
        raise UsageError(f"{record} exists and is not overwritten; give another --record")
    if to_clients and not to_clients.identity:
        to_clients = None
    try:
        security(to_brokers, to_clients, (), silent)
        if options.control:
            trio.run(resolve_control, options.control, control_token())
    except (TlsError, Unusable, ListenError) as error:
        raise UsageError(str(error)) from error
    sys.stdout.write(options.printed)
    return 0


def _toml(parser: Parser, words: Sequence[str], tables: Sequence[dict[str, Any]]) -> str:
    """Return the file that sets the same options as these words."""
    for action in parser._actions:
        action.type = None  # texts are printed as they were typed
    texts = vars(parser.parse(words))
    lines: list[str] = []
    for key, action in _options(parser):
        value = texts[action.dest]
        if key in _SECRET and value:
            lines.append(f"# {key} has passwords, which are not printed")
        elif value not in (None, False, []):
            is_number = action.metavar == "N" and str(value).isdecimal()
            lines.append(f"{key} = {_value(int(value) if is_number else value)}")
    for table in tables:
        lines += ["", "[[fault]]", *(f"{_key(key)} = {_value(table[key])}" for key in table)]
    return "".join(f"{line}\n" for line in lines)


def _value(value: Any) -> str:
    match value:
        case dict():
            items = cast(dict[str, Any], value).items()
            return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in items)}}}"
        case list():
            return f"[{', '.join(map(_value, cast(list[Any], value)))}]"
        case str():
            return _key(value)
        case _:
            return str(value).lower()  # true, 1, 2.5, inf, a time


def _key(text: str) -> str:
    """Return a text in quotes: TOML's are JSON's, but for one more character that is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
