"""A rule as people write it: a plain value that holds the words of TOML, a flag, JSON or Python.

Invariant: nothing is checked here; `prepare` does that, and a mistake is a `RuleError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kproxy.printable import printable


class RuleError(ValueError):
    """A mistake in a rule: one line with the place, the key, the mistake and what is allowed."""

    def __init__(self, what: str, key: str | None = None, place: str | None = None) -> None:
        super().__init__(what)
        self.what = printable(what)
        self.key = key
        self.place = place
        """The place of the rule, such as "faults.toml:12"."""

    def __str__(self) -> str:
        return printable(": ".join(part for part in (self.place, self.key, self.what) if part))


KEYS = {
    "name": "names it in reports and decides, with the seed, what it hits; by default its words",
    # the requests that it matches
    "api": "names or keys of APIs; by default those for which the action works",
    "api_version": "a number, a range (3..7), or a list of such; so are partitions and nodes",
    "topic": "a name or a pattern (orders-*), or a list of such; so are group, client and others",
    "partition": "of a topic",
    "group": "of consumers",
    "client_id": "as the request's header says",
    "transactional_id": "of a producer",
    "node_id": "the broker to which the connection leads",
    "where": "a filter, such as topic:orders-* request_bytes:1MiB..; it sees the request",
    # when it hits
    "probability": "from 0 to 1, how likely a match is hit; 1 by default",
    "skip": "so many matches pass first",
    "times": "no more than so many are hit",
    "every": "only each n-th match may be hit",
    "start_after": "nothing is hit for so long after the rule was loaded",
    "duration": "and nothing after so long from then",
    # how it acts
    "phase": "before: the broker does not see it; after: it has done what was asked",
    "level": "request, topic or partition: which code reports an error",
}
"""The keys of every rule → their help, in the order in which they are shown. One action follows, a
key of the table of actions."""


@attrs.frozen(init=False, repr=False)
class Rule:
    """A fault rule, in the words of its author: `Rule(api="Fetch", latency="300ms", times=2)`."""

    words: Mapping[str, Any]
    """Key → value, in the order of KEYS, without keys that were left out or are None."""

    def __init__(self, **words: Any) -> None:
        ordered = sorted(words, key=[*KEYS, *words].index)
        given = {key: words[key] for key in ordered if words[key] is not None}
        object.__setattr__(self, "words", given)

    def __repr__(self) -> str:
        return f"Rule({', '.join(f'{key}={value!r}' for key, value in self.words.items())})"

    def __str__(self) -> str:
        return " ".join(f"{k}={_format(v)}" for k, v in self.words.items() if k != "name")


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}={_format(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_format, value))}]"
    return str(value)
