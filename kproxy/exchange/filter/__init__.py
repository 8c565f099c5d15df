"""The filter language: which exchanges to choose.

::

    text ──parse──▶ Filter ─┬─ matches(exchange)          opens bodies where a term needs them
                            └─ matches(arriving request)  fault rules, `run --only`

    filter = every { "or" every }
    every  = part { ["and"] part }
    part   = "not" part | "(" filter ")" | term
    term   = key ":" value { "," value }        one of the values must match
    value  = text with "*" wildcards, "quoted text", 5, 5.., ..5, 1..5

`keys` has the table of keys, `values` their values. Text is quoted where it has spaces,
parentheses, commas or quotes; a backslash takes the meaning from what follows it.

Invariants: any text gives a Filter or a FilterError whose column lies in the text; `str` of a
filter reads back as the same filter.
"""

from kproxy.exchange.filter.keys import Need
from kproxy.exchange.filter.parse import Filter, FilterError, matching, parse

__all__ = [
    "Filter",
    "FilterError",
    "Need",
    "matching",
    "parse",
]
