"""Random fault rules for a simulated world, and what must be true of the connections they touch.

What rules decide is tested elsewhere. Here it is carried out under every chunking, delay, reset and
end: bytes that no rule touched arrive as before, nothing overtakes on a connection, and the
recording says what happened to the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
from typing import Any

from kproxy.proxy.faults import RuleError, Rules, words_from_text
from kproxy.proxy.faults.actions import ACTIONS

DELAY_NS_MAX = 300_000_000
"""Nothing is delayed for longer."""

_ACTIONS: list[dict[str, Any]] = [
    {"latency": "20ms"},
    {"latency": {"uniform": ["0ms", "90ms"]}},
    {"error": "UNKNOWN_SERVER_ERROR"},
    {"error": "UNKNOWN_SERVER_ERROR", "level": "partition"},
    {"error": "UNSUPPORTED_VERSION", "partition": "..0"},
    {"throttle": "50ms"},
    {"drop": True},
    {"disconnect": True},
    {"reset": True},
    {"blackhole": True},
    {"slow_close": "100ms"},
    {"truncate": 3},
    {"truncate": 40},
    {"truncate": 100_000},
    {"corrupt": 3},
    {"duplicate": True},
    {"bandwidth": "2MiB"},
    {"hide_node": 1},
    {"stale_leader": True},
    {"move_coordinator": True},
    {"rebootstrap": True},
    {"max_version": {"Produce": 3, "Metadata": 1}},
    {"hide_api": ["Fetch"]},
]
_ACTIONS += [
    {key: words_from_text(action.example)[key]}
    for key, action in ACTIONS.items()
    if not any(key in words for words in _ACTIONS)
]  # a new one as its example has it
_PARTICULAR = {"hide_node", "stale_leader", "move_coordinator", "rebootstrap"} | {
    "max_version",
    "hide_api",
}
"""Actions that choose their APIs themselves."""
_APIS = (None, None, 0, 1, 3, [3, 10, 60], [11, 12, 14], 18, [17, 36], [0, 1, 3, 10, 12])


def random_rules(seed: int) -> Rules:
    """A few rules that can be."""
    rules, wanted = Rules(seed=seed), random.Random(f"rules of {seed}").randint(1, 5)
    for nth in itertools.count():
        if len(rules.rules) == wanted:
            break
        rng = random.Random(f"rule {nth} of {seed}")
        words = _action(f"{nth} of {seed}")
        words["probability"] = rng.choice((0.1, 0.5, 1.0, 1.0))
        api = rng.choice(_APIS)
        if api is not None and not words.keys() & _PARTICULAR:
            words["api"] = api
        if phase := rng.choice((None, "before", "after")):
            words["phase"] = phase
        if rng.random() < 0.5:
            words["times"] = rng.randint(1, 3)
        if rng.random() < 0.2:
            words["skip"] = rng.randint(1, 4)
        if rng.random() < 0.1:
            words["where"] = rng.choice(("topic:a*", "client_id:app", "request_bytes:100.."))
        with contextlib.suppress(RuleError):
            rules.add(words)
    return rules


def _action(draw: str) -> dict[str, Any]:
    """An action; one that is new takes its share of the draws, and leaves the others alone."""
    drawn = min(_ACTIONS, key=lambda words: hashlib.sha256(f"{draw}: {words}".encode()).digest())
    return dict(drawn)
