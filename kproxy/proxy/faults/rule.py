"""A rule as people write it: a plain value that holds the words of TOML, a flag, JSON or Python.

Invariant: nothing is checked here; `prepare` does that, and a mistake is a `RuleError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

Names = str | int | Sequence[str | int]
Numbers = int | str | Sequence[int | str]


class RuleError(ValueError):
    """A rule that cannot be: one line with the place, the key, the mistake and what is allowed."""

    def __init__(self, what: str, key: str | None = None, place: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.key = key
        self.place = place
        """Where the rule stands, such as "faults.toml:12"."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.what) if part)


@attrs.frozen(kw_only=True, repr=False)
class Rule:
    """A fault rule, in the words of its author; None is what they left out."""

    name: str | None = None
    """Names it in reports and decides, with the seed, what it hits; by default its own words."""

    api: Names | None = None
    """Names or keys of APIs; by default those for which the action works."""
    api_version: Numbers | None = None
    topic: Names | None = None
    """A name or a pattern (`orders-*`), or a list of such; so are group, client and others."""
    partition: Numbers | None = None
    """A number, a range (`3..7`), or a list of such; so are nodes and versions."""
    group: Names | None = None
    client_id: Names | None = None
    transactional_id: Names | None = None
    node_id: Numbers | None = None
    """The broker to which the connection leads."""
    where: str | None = None
    """A filter, such as `topic:orders-* request_bytes:1MiB..`; it sees what the request says."""

    probability: float | None = None
    """From 0 to 1, how likely a match is hit; 1 by default."""
    skip: int | None = None
    """So many matches pass first."""
    times: int | None = None
    """No more than so many are hit."""
    every: int | None = None
    """Only each n-th match may be hit."""
    start_after: str | None = None
    """Nothing is hit for so long after the rule was loaded."""
    duration: str | None = None
    """And nothing after so long from then."""

    phase: str | None = None
    """"before": the broker does not see it; "after": it has done what was asked."""
    level: str | None = None
    """"request", "topic" or "partition": which code reports an error."""

    latency: str | Mapping[str, Any] | None = None
    error: str | int | None = None
    throttle: str | None = None
    drop: bool | None = None
    disconnect: bool | None = None
    reset: bool | None = None
    blackhole: bool | None = None
    slow_close: str | None = None
    truncate: int | None = None
    corrupt: int | Mapping[str, Any] | None = None
    duplicate: bool | None = None
    bandwidth: str | int | None = None
    hide_node: int | None = None
    stale_leader: int | bool | None = None
    move_coordinator: int | bool | None = None
    rebootstrap: bool | None = None
    max_version: Mapping[str, int] | None = None
    hide_api: Names | None = None

    @property
    def words(self) -> dict[str, Any]:
        """What its author said."""
        return {key: value for key in KEYS if (value := getattr(self, key)) is not None}

    def __repr__(self) -> str:
        return f"Rule({', '.join(f'{key}={value!r}' for key, value in self.words.items())})"

    def __str__(self) -> str:
        return " ".join(f"{k}={_shown(v)}" for k, v in self.words.items() if k != "name")


KEYS = tuple(field.name for field in attrs.fields(Rule))
"""Everything that a rule can say."""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}={_shown(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_shown, value))}]"
    return str(value)
