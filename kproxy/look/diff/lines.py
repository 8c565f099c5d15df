"""The differences of two recordings as lines for people, and as JSON."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kproxy.exchange.words.wording import count
from kproxy.replay.compared import Difference

_SHOWN = 20
"""Differences of one subject that are listed."""
_KINDS_SHOWN = 3


def lines(found: Sequence[Difference]) -> Iterator[str]:
    """Yield the differences below what they are about: − is only in A, + only in B."""
    for (aspect, subject), each in itertools.groupby(found, lambda d: (d.aspect, d.subject)):
        several = list(each)
        yield f"{aspect}: {subject}"
        for one in several[:_SHOWN]:
            yield from [f"  {one.which}"] if one.which else []
            then, now = one.shown
            yield from [f"  - {then}"] if then is not None else []
            yield from [f"  + {now}"] if now is not None else []
        if len(several) > _SHOWN:
            kinds = Counter(_kind(one) for one in several[_SHOWN:])
            what = ", ".join(f"{name} {n}" for name, n in kinds.most_common(_KINDS_SHOWN))
            yield f"  … and {len(several) - _SHOWN} more: {what} (--json has all)"


def _kind(one: Difference) -> str:
    """Return the field that differs, or which side has it."""
    if (one.before is None) == (one.after is None):
        return one.which.partition(" of key ")[0]
    return "only in the first" if one.after is None else "only in the second"


def plain(one: Difference) -> dict[str, Any]:
    """Return a difference as the object of JSON."""
    return {
        "aspect": one.aspect,
        "subject": one.subject,
        "which": one.which or None,
        "before": one.before,
        "after": one.after,
        **one.numbers,
    }


def total(found: Sequence[Difference]) -> str:
    """Return in a line how many differences there are."""
    if not found:
        return "no differences"
    aspects = ", ".join(f"{name} {n}" for name, n in Counter(d.aspect for d in found).items())
    return f"{count(len(found), 'difference')}: {aspects}"
