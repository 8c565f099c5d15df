"""`kproxy fault`: show and change the fault rules of a running proxy."""

from __future__ import annotations

import argparse
import os
from argparse import HelpFormatter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kproxy.addresses import parse_address
from kproxy.commands.options import UsageError, declare
from kproxy.commands.output import fail

if TYPE_CHECKING:
    from kproxy.control import Control, Fault

_INVALID_RULE = 422
"""The HTTP status for an invalid rule."""


def _change(control: Control, words: Sequence[str]) -> Sequence[Fault]:
    name, *changes = words
    if not changes:
        raise UsageError("change: give KEY=VALUE, or KEY= to take a key away")
    gone = {word[:-1]: None for word in changes if word.endswith("=") and word.count("=") == 1}
    given = [word for word in changes if word[:-1] not in gone or not word.endswith("=")]
    return [control.change(name, {**gone, **_rule(given)})]


def _remove(control: Control, words: Sequence[str]) -> None:
    for name in words:
        _show([control.remove(name)])  # at once: the next one may not be there


def _reset(control: Control, words: Sequence[str]) -> Sequence[Fault]:
    control.reset()
    return control.faults()


class _Verb(NamedTuple):
    """A verb of the command line: an action on the rules."""

    run: Callable[[Control, Sequence[str]], Sequence[Fault] | None]
    """Returns the rules to show; None: nothing."""
    words: str
    """Placeholder in the help for the words after the verb; "" if it takes none."""
    help: str


_VERBS = {
    "list": _Verb(
        lambda control, words: control.faults(), "", "show all rules, and what they have done"
    ),
    "add": _Verb(
        lambda control, words: [control.add(_rule(words))], "RULE",
        "add a rule, such as 'api=Fetch latency=300ms'",
    ),
    "change": _Verb(_change, "NAME KEY=VALUE…", "change a rule; KEY= takes a key away"),
    "remove": _Verb(_remove, "NAME…", "take rules away"),
    "enable": _Verb(
        lambda control, words: [control.enable(name) for name in words], "NAME…", "let rules decide"
    ),
    "disable": _Verb(
        lambda control, words: [control.disable(name) for name in words], "NAME…",
        "let rules decide no longer",
    ),
    "clear": _Verb(lambda control, words: control.clear(), "", "take all rules away"),
    "reset": _Verb(_reset, "", "set all counters to 0: what the seed decides begins again"),
}  # fmt: skip


class _FaultHelp(HelpFormatter):
    """Help that ends with the verbs and the syntax of rules."""

    def format_help(self) -> str:
        """Return the help. It needs the table of messages, so it is made only if it is shown."""
        from kproxy.proxy.faults import help_text

        verbs = [f"  {name} {verb.words}".ljust(26) + verb.help for name, verb in _VERBS.items()]
        return "\n".join([super().format_help(), "Verbs:", *verbs, "", _RULES, "", help_text(), ""])


_RULES = """A RULE is made of words KEY=VALUE; a value is TOML, or a bare word:

  name=slow-orders    what reports call it; by default its own words
  api=Produce         or a number, or a list: api=[Produce,Fetch]; also api_version=9..
  topic=orders-*      also partition=0..3 group=billing client_id=shop transactional_id=t node_id=2
  where='request_bytes:1MiB.. not client_id:shop'    a filter (kproxy help filters)
  probability=0.1     also skip=5 times=2 every=10 start_after=30s duration=1min
  phase=before        the broker does not see the request; after: it has done what was asked
  level=partition     of an error: request, topic or partition

and one action:"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Break what passes a running proxy, or stop doing so."
    parser.formatter_class = _FaultHelp
    parser.usage = "%(prog)s [--control HOST:PORT] VERB [RULE | NAME…]"
    parser.add_argument("verb", metavar="VERB", choices=_VERBS, help=", ".join(_VERBS))
    parser.add_argument("words", metavar="RULE | NAME", nargs="*", help="what the verb is about")
    declare(
        parser.add_argument,
        """
        --control HOST:PORT  of the proxy, as its --control says (default: KPROXY_CONTROL); the
            token is taken from KPROXY_CONTROL_TOKEN
        """,
        control=_address,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.control import Control, ControlError

    verb, words = _VERBS[options.verb], options.words
    if bool(words) != bool(verb.words):
        needed = f"give {verb.words}" if verb.words else "it takes nothing more"
        raise UsageError(f"{options.verb}: {needed}")
    if not options.control and not os.environ.get("KPROXY_CONTROL"):
        raise UsageError("say which proxy: give --control HOST:PORT, or set KPROXY_CONTROL")
    try:
        if (shown := verb.run(Control(options.control), words)) is not None:
            _show(shown)
    except ControlError as error:
        return fail(f"kproxy fault: {error}", 2 if error.status == _INVALID_RULE else 1)
    return 0


def _address(text: str) -> str:
    parse_address(text)
    return text


def _rule(words: Sequence[str]) -> dict[str, Any]:
    """Parse the words of a rule, quoted together or one by one."""
    from kproxy.proxy.faults import RuleError, words_from_text

    try:
        found = words_from_text(" ".join(words))
    except RuleError as error:
        raise UsageError(str(error)) from None
    match found.get("latency"):
        case {"recording": str(path)}:
            # The proxy may have been started elsewhere.
            found["latency"] = {"recording": os.path.abspath(path)}
        case _:
            pass
    return found


def _show(faults: Sequence[Fault]) -> None:
    """Print rules as a table, and their warnings on stderr."""
    from kproxy.printable import printable
    from kproxy.proxy.faults import rule_from_words
    from kproxy.proxy.faults.report import aligned

    rows = [("fault", "matched", "fired", "", "rule")]
    for fault in faults:
        text = str(rule_from_words(fault.rule))
        named = fault.name if fault.name == text else f"{fault.name}: {text}"
        state = "" if fault.enabled else "off"
        rows.append((str(fault.fault_id), str(fault.matched), str(fault.fired), state, named))
    for line in aligned(rows):
        print(printable(line))
    for fault in faults:
        for warning in fault.warnings:
            fail(f"kproxy fault: {fault.name}: {warning}")
