"""The names that users type or read by program, and that every later version keeps.

    code ─▶ promised() ─▶ {group: names}      tests/data/promises.json has those that were promised

`python -m tests.bed.promises` adds the names of today to the file, and takes none away.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import attrs

import kproxy.control
import kproxy.recording
import kproxy.spark
import kproxy.tables
import kproxy.testing
from kproxy import cli, pytest_plugin
from kproxy.analyze.described import ABOUT
from kproxy.commands import fault
from kproxy.exchange.body_json import DECODED_KEYS
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from kproxy.exchange.topic_records import TopicRecord
from kproxy.look.lines.jsonl import end_json
from kproxy.look.why.stories import SUBJECTS
from kproxy.net.control_api import ControlApi
from kproxy.net.health import Health
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.rule import KEYS as RULE_KEYS
from kproxy.spark import source
from kproxy.tables.views import VIEWS
from kproxy.testing.broker import Broker
from tests.bed import needs

FILE = needs.REPOSITORY / "tests" / "data" / "promises.json"

_END = ConnectionEnd(1, 0, None, None, (), "")

EXIT_CODES = {
    "kproxy --version": 0,
    "kproxy": 2,
    "kproxy nonsense": 2,
    "kproxy show recordings/demo.mcap": 0,
    "kproxy show missing.mcap": 1,
    "kproxy show recordings/demo.mcap no:key": 2,
    "kproxy scan recordings/demo.mcap": 0,
    "kproxy run": 2,
    "kproxy replay missing.mcap": 1,
    "kproxy why recordings/demo.mcap number:999999": 1,
    "kproxy fault list --control 127.0.0.1:1": 1,
}
"""Commands that end at once, and how."""


def promised() -> dict[str, list[str]]:
    """Return the names by group, as the code has them now."""
    groups: dict[str, Iterable[str]] = {
        "commands": cli.COMMANDS,
        **{f"options of kproxy {name}": options(name) for name in cli.COMMANDS},
        "verbs of kproxy fault": fault._VERBS,
        "subjects of kproxy why": [each.example for each in SUBJECTS.values()],
        "filter keys": [*(key.name for key in (*KEYS, *PATHS)), "is"],
        "values of is:": QUALITIES,
        "keys of exchanges in JSON": [name for name, each in FIELDS.items() if each.in_json],
        "attributes of exchanges": [*FIELDS, *_public_of(Exchange, "records", "text", "broker_ns")],
        "attributes of records": [
            *(each.name for each in attrs.fields(TopicRecord)),
            *_public_of(TopicRecord, "meaning"),
        ],
        "keys of decoded records in JSON": DECODED_KEYS,
        "keys of the ends of connections in JSON": end_json(_END),
        **{f"columns of {view}": [each.name for each in VIEWS[view]] for view in VIEWS},
        "tables of kproxy analyze": ABOUT,
        "keys of fault rules": [*RULE_KEYS, *ACTIONS],
        "routes": [f"{method} {path}" for path, method in _routes()],
        "arguments of the pytest marker": pytest_plugin._KEYS,
        "modes of pytest": pytest_plugin._MODES,
        "attributes of the fixture": _public(Broker),
        "variables of the environment": _variables(),
        **{f"names of {each.__name__}": _names(each) for each in _MODULES},
        "arguments of kproxy.testing.replay": inspect.signature(kproxy.testing.replay).parameters,
        "arguments of kproxy.testing.record": inspect.signature(kproxy.testing.record).parameters,
        "methods of kproxy.control.Control": _public(kproxy.control.Control),
        "attributes of kproxy.control.Fault": _public(kproxy.control.Fault),
        "metrics": _metrics(),
        "options of Spark's format kproxy": source.OPTIONS,
    }
    return {group: sorted(set(names)) for group, names in groups.items()}


_MODULES = (kproxy.recording, kproxy.testing, kproxy.control, kproxy.tables, kproxy.spark)


_NOT_FOR_USERS = {"replaying"}
"""Shared by `kproxy.testing` and the pytest plugin."""


def options(command: str) -> list[str]:
    """Return the options of a command."""
    parser = argparse.ArgumentParser()
    import_module(f"kproxy.commands.{command.replace('-', '_')}").add_options(parser)
    return [name for action in parser._actions for name in action.option_strings]


def _names(module: Any) -> list[str]:
    """A module's own public functions and classes, where it has no `__all__`."""
    if hasattr(module, "__all__"):
        return module.__all__
    found = inspect.getmembers(
        module, lambda each: inspect.isfunction(each) or inspect.isclass(each)
    )
    own = (name for name, each in found if each.__module__ == module.__name__)
    return [name for name in own if name[0] != "_" and name not in _NOT_FOR_USERS]


def _public_of(kind: type, *names: str) -> list[str]:
    return [name for name in names if hasattr(kind, name)]


def _public(kind: type) -> list[str]:
    names = [name for name in vars(kind) if not name.startswith("_")]
    return (
        [*names, *(each.name for each in attrs.fields(kind) if each.name[0] != "_")]
        if (attrs.has(kind))
        else names
    )


def _routes() -> Iterable[tuple[str, str]]:
    routes = ControlApi(None).routes()  # type: ignore[arg-type]  # nothing is asked of it
    health = [(path, "GET") for path in Health(None).routes()]  # type: ignore[arg-type]  # nor here
    return [
        ("/metrics", "GET"),
        *health,
        *((path, method) for path in routes for method in routes[path]),
    ]


def _sources() -> str:
    return "".join(path.read_text() for path in (needs.REPOSITORY / "kproxy").rglob("*.py"))


def _variables() -> list[str]:
    return re.findall(r'"(KPROXY_[A-Z_]+)"', _sources())


def _metrics() -> list[str]:
    source = (needs.REPOSITORY / "kproxy" / "net" / "metrics.py").read_text()
    return re.findall(r'"(kproxy_\w+)"', source)


def main() -> None:
    """Promise the names of today, too."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for group, names in promised().items():
        kept[group] = sorted({*kept.get(group, ()), *names})
    FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
