"""What a story counts: names, and errors with the exchange that had each first.

Invariant: at most `_COUNTED_MAX` of each are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import faults
from kproxy.exchange.words.failures import made_by_rule
from kproxy.exchange.words.wording import count, listed
from kproxy.history.ref import Ref
from kproxy.look.why.sentences import at, who

_NAMED_MAX = 10
_COUNTED_MAX = 1000


def count_in(counter: Counter[str], name: str) -> None:
    """Count a name; of too many, under "others"."""
    counter[name if name in counter or len(counter) < _COUNTED_MAX else "others"] += 1


@attrs.define(eq=False)
class ErrorCounts:
    """Errors of exchanges."""

    _routine: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Those by which clients and brokers come to terms."""
    _errors: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]], init=False)
    _first: dict[tuple[str, str], Ref] = attrs.field(factory=dict[tuple[str, str], Ref], init=False)

    def add(self, exchange: Exchange, errors: Sequence[str]) -> None:
        """Count errors of an exchange, each once."""
        for error in dict.fromkeys(errors):
            api = exchange.api or "?"
            if exchange.routine:
                self._routine[f"{error} of {api}"] += 1
                continue
            by_rule = f" ({faults.made(exchange)})" if made_by_rule(exchange, error) else ""
            key = f"{api}{by_rule}", error
            if key in self._errors or len(self._errors) < _COUNTED_MAX:
                self._errors[key] += 1
                self._first.setdefault(key, Ref.of(exchange))

    def lines(self, names_client: bool, only_routine: bool = False) -> Iterator[str]:
        """Yield sentences on them; `only_routine` if no other answer came than the routine ones."""
        if self._routine:
            found = [f"{error} ×{times}" for error, times in self._routine.most_common()]
            others = " It got no other answer." if only_routine else ""
            yield f"Routine answers, which are no failures: {listed(found, _NAMED_MAX)}.{others}"
        for (api, error), times in self._errors.most_common(_NAMED_MAX):
            first = self._first[api, error]
            again = f" ×{times}, first" if times > 1 else ","
            to = f" to {who(first)}" if names_client else ""
            yield f"{error} of {api}{again} #{first.number} of {at(first)}{to}."
        if (more := len(self._errors) - _NAMED_MAX) > 0:
            yield f"There {'is' if more == 1 else 'are'} {count(more, 'more kind')} of errors."
