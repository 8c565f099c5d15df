"""Actions on time: latency, bandwidth, throttle.

Invariant: nothing here sleeps or reads a clock; a delay is a number in a verdict, and random
numbers come from the hit's own draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kproxy.proxy.faults.action import BEFORE, Hit, Plan
from kproxy.proxy.faults.values import DELAY_MAX, ReadDelays, duration_ns
from kproxy.proxy.verdicts import Verdict
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.codec import Response

Draw = Callable[[int], float]
DelayOf = Callable[[Draw], int]
"""The draws of a hit → nanoseconds."""
_DELAY_NS_MAX = duration_ns(DELAY_MAX)


# ── latency ──────────────────────────────────────────────────────────────────────────────────


def latency(hit: Hit) -> Plan | None:
    """The response (phase after, the default) or the request (before) leaves later.

    A duration; or one that is drawn for each exchange: {uniform = ["10ms", "50ms"]},
    {normal = {mean = "20ms", sigma = "5ms"}}, {lognormal = {median = "20ms", sigma = 0.6}}, or
    {recording = FILE}: as the brokers in a recording took. It counts from the arrival; what is
    behind it on its connection waits. Latencies of several rules add up.
    """
    delay: DelayOf = hit.value
    late = Verdict(delay_ns=min(delay(hit.draw), _DELAY_NS_MAX))
    about = {"delay_ms": round(late.delay_ns / 1e6, 3)}
    if hit.phase == BEFORE:
        return Plan(late, about=about)
    return None if hit.view.no_response else Plan(Verdict(response=late), about=about)


def parse_latency(value: Any, read_delays: ReadDelays) -> DelayOf:
    """Read the value of `latency`.

    Raises:
        ValueError: it is no latency; the text says what is allowed.
    """
    if isinstance(value, str):
        fixed = duration_ns(value)
        return lambda draw: fixed
    if not isinstance(value, dict) or len(value) != 1:
        drawn = ", ".join(_DRAWN)
        raise ValueError(f'{value!r} is not a duration such as "300ms", nor one of {{{drawn} = …}}')
    ((kind, what),) = value.items()
    if kind == "recording":
        return _recorded(what, read_delays)
    if kind not in _DRAWN:
        raise ValueError(f"{kind!r} is none of {', '.join(_DRAWN)}")
    return _DRAWN[kind](what)


def _uniform(value: Any) -> DelayOf:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f'uniform wants two durations, ["10ms", "50ms"], not {value!r}')
    low, high = map(duration_ns, value)
    if low > high:
        raise ValueError(f"uniform from {value[0]} to {value[1]}: the first is the larger one")
    return lambda draw: low + int((high - low) * draw(1))


def _normal(value: Any) -> DelayOf:
    mean, sigma = map(duration_ns, _parse_pair(value, "normal", "mean", "sigma"))
    return lambda draw: max(0, int(mean + sigma * _gauss(draw)))


def _lognormal(value: Any) -> DelayOf:
    middle, spread = _parse_pair(value, "lognormal", "median", "sigma")
    median = duration_ns(middle)
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread <= 5:
        raise ValueError(f"the sigma of lognormal is a number from 0 to 5, not {spread!r}")
    return lambda draw: int(median * math.exp(spread * _gauss(draw)))


def _parse_pair(value: Any, kind: str, first: str, second: str) -> tuple[Any, Any]:
    if not isinstance(value, dict) or set(value) != {first, second}:
        raise ValueError(f"{kind} wants {{{first} = …, {second} = …}}, not {value!r}")
    return value[first], value[second]


def _gauss(draw: Draw) -> float:
    """Draw a number of the standard normal distribution (Box and Muller)."""
    return math.sqrt(-2 * math.log(1 - draw(1))) * math.cos(2 * math.pi * draw(2))


def _recorded(name: Any, read_delays: ReadDelays) -> DelayOf:
    if not isinstance(name, str):
        raise ValueError(f"recording wants the name of a file, not {name!r}")
    delays = read_delays(name)
    if not delays:
        raise ValueError(f"{name} has no exchange to take a latency from")
    return lambda draw: delays[int(len(delays) * draw(1))]


_DRAWN: dict[str, Callable[[Any], DelayOf]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "recording": _uniform,  # read by `_recorded`; here for its name
}


# ── bandwidth ────────────────────────────────────────────────────────────────────────────────


def bandwidth(hit: Hit) -> Plan | None:
    """The response (after, the default) or the request (before) leaves at so many bytes a second.

    A size such as "64KiB".
    """
    if hit.phase == BEFORE:
        return Plan(Verdict(bytes_per_second=hit.value))
    if hit.view.no_response:
        return None
    return Plan(Verdict(response=Verdict(bytes_per_second=hit.value)))


# ── throttle ─────────────────────────────────────────────────────────────────────────────────

_CLIENT_WAITS_FROM = {
    0: (43, 44, 45, 46, 47, 50, 51, 62, 63, 64, 75),
    1: (*range(21, 23), *range(24, 27), *range(28, 32), 33, 34, 35, *range(37, 43)),
    2: (10, 12, 13, 14, 15, 16, 18, 20, 32),
    3: (2, 11, 19),
    4: (8, 9),
    6: (0, 3),
    8: (1,),
}
"""Version → the APIs whose clients, from that version on, themselves pause for the throttle time
in a response (KIP-219). Brokers held back the responses to older versions."""
_WAITS_FROM = {key: version for version, keys in _CLIENT_WAITS_FROM.items() for key in keys}


def throttle(hit: Hit) -> Plan | None:
    """The response says that a quota is exceeded for so long (throttle_time_ms).

    Clients then keep quiet for that time. For versions whose clients do not, the response is
    late by it, as brokers did it for them.
    """
    view, time_ns = hit.view, hit.value
    if view.no_response:
        return None

    def put(response: Response) -> bool:
        if not hasattr(response.body, "throttle_time_ms"):
            return False
        time_ms = -(-time_ns // 1_000_000)
        response.body.throttle_time_ms = max(time_ms, response.body.throttle_time_ms)
        return True

    waits_from = _WAITS_FROM.get(view.api_key)
    held = waits_from is None or view.api_version < waits_from
    late = Verdict(delay_ns=time_ns) if held else None
    return Plan(Verdict(response=late), hit.edit_response(put))


def can_throttle(api_key: int, api_version: int) -> bool:
    """Return whether the responses of a version have a throttle time."""
    message = schema.message(api_key, schema.RESPONSE)
    return message is not None and any(
        field.name == "throttle_time_ms" and api_version in field.versions
        for field in message.fields
    )
