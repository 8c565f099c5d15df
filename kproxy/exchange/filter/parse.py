"""Text to filter: the grammar, and the errors for mistakes.

Invariant: any text gives a Filter or a FilterError whose column lies in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.filter.keys import BY_NAME, KEYS, PATHS, QUALITIES, Need, key_named
from kproxy.exchange.filter.terms import (
    Combination,
    Node,
    Not,
    Term,
    grouped,
    matches_end,
    resolved,
    terms_of,
)
from kproxy.exchange.filter.values import (
    RELATIVE,
    NamedNumbers,
    TimeRange,
    Typed,
    Value,
    suggestion,
)
from kproxy.exchange.meanings import Meaning
from kproxy.wire.payloads.json_paths import PathError
from kproxy.wire.protocol import schema

_NESTED_MAX = 50
_IS = "is"
_WORDS = {"and", "or", "not"}
_KEY_END = re.compile(r"[.\[]")
_COMPARISON = re.compile(r"([a-z_]+(?:[.\[][^=<>!]*)?)(==?|>=?|<=?|!=)(.+)", re.DOTALL)
_OTHER_NAMES = {
    "version": "api_version",
    "client": "client_id",
    "broker": "node_id",
    "node": "node_id",
    "ms": "broker_ms",
    "latency": "broker_ms",
    "duration": "broker_ms",
    "address": "client_address",
    "size": "request_bytes",
    "transaction": "transactional_id",
    "consumer_group": "group",
}
"""Names from other tools → the key to suggest."""


class FilterError(ValueError):
    """A text that is not a filter. `str()` is one line that says what is wrong, and where."""

    def __init__(self, text: str, column: int, what: str) -> None:
        super().__init__(f"column {column}: {what}")
        self.text = text
        self.column = column
        """The column of the mistake, from 1."""
        self.what = what


@attrs.frozen
class Filter:
    """A parsed filter."""

    node: Node
    text: str = attrs.field(default="", eq=False)
    """The text as it was typed."""

    def __str__(self) -> str:
        return str(self.node)

    @property
    def names(self) -> frozenset[str]:
        """The names of its terms: keys, and `is:error`."""
        return frozenset(term.name for term in terms_of(self.node))

    @property
    def needs_error(self) -> bool:
        """True if it chooses exchanges by their errors alone: none matches without."""
        return isinstance(self.node, Term) and self.node.meaning is Meaning.ERROR

    @property
    def relative(self) -> bool:
        """True if it has times that count from the beginning of a recording."""
        ranges = (value for value in self._values() if isinstance(value, TimeRange))
        return any(each.kind == RELATIVE for each in ranges)

    @property
    def recordings(self) -> list[str]:
        """The names of recordings whose exchanges it has numbers of."""
        return [value.recording for value in self._values() if isinstance(value, NamedNumbers)]

    def _values(self) -> Iterator[Value]:
        for term in terms_of(self.node):
            yield from term.values

    def refuse_beyond(self, allowed: Collection[Need], where: str) -> None:
        """Raise FilterError if a term needs more than these; `where` names the place that lacks
        it."""
        for term in terms_of(self.node):
            if term.need not in allowed:
                every = *KEYS, *PATHS, *QUALITIES.values()
                known = [key.name for key in every if key.need in allowed]
                what = f"{where} cannot look at {term.name}; it can at {', '.join(known)}"
                raise FilterError(self.text, term.column, what)
        if self.recordings:
            raise FilterError(self.text, 1, f"{where} has one recording: write number:N alone")

    def starting(self, start_ns: int) -> Filter:
        """Return the same filter with times like `+30s` counted from this one."""
        return self._resolved(
            lambda value: value.starting(start_ns) if isinstance(value, TimeRange) else value
        )

    def local(self, offset_ns: int) -> Filter:
        """Return the same filter whose times without a zone are ahead of UTC by an offset."""
        return self._resolved(
            lambda value: value.local(offset_ns) if isinstance(value, TimeRange) else value
        )

    def within(self, goes_by: Callable[[str], bool]) -> Filter:
        """Return the same filter for the exchanges of one recording, which goes by some names."""
        return self._resolved(
            lambda value: value.within(goes_by) if isinstance(value, NamedNumbers) else value
        )

    def _resolved(self, resolve: Callable[[Value], Value]) -> Filter:
        return attrs.evolve(self, node=resolved(self.node, resolve))

    def matches(self, subject: Any) -> bool:
        """Return whether an Exchange, or an ArrivingRequest, matches.

        Raises:
            ValueError: a time counts from the beginning, or a number is of a certain recording; see
                `starting` and `within`.
        """
        return self.node.matches(subject)

    def matches_end(self, end: ConnectionEnd) -> bool:
        """Return whether the end of a connection matches: only where `is:tls_failed` asks for ends.

        Raises: ValueError, as `matches`.
        """
        asks = any(term.name == "is:tls_failed" for term in terms_of(self.node))
        return asks and matches_end(self.node, end)


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def parse(text: str) -> Filter:
    """Read a filter; a text without terms matches everything.

    Raises:
        FilterError: the text is not a filter.
    """
    reader = _FilterReader(text)
    reader.skip()
    if reader.at == len(text):
        return Filter(Combination((), one=False), text)
    node = reader.either()
    if reader.at < len(text):
        raise reader.error(reader.at, "there is no ( that this ) closes")
    return Filter(node, text)


def matching(key: str, *texts: str) -> Filter:
    """Return the filter for one of these values of a key, in which nothing is a wildcard.

    Raises: ValueError, if one is no value of the key.
    """
    return Filter(Term(key, tuple(BY_NAME[key].value((text,)) for text in texts)))


@attrs.define
class _FilterReader:
    text: str
    at: int = 0
    nested: int = 0

    def error(self, at: int, what: str) -> FilterError:
        return FilterError(self.text, min(at + 1, max(1, len(self.text))), what)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def word(self) -> str:
        """Return the text up to a space or a parenthesis, without taking it."""
        end = self.at
        while end < len(self.text) and not self.text[end].isspace() and self.text[end] not in "()":
            end += 1
        return self.text[self.at : end]

    def keyword(self) -> str:
        word = self.word()
        return (
            word.lower() if word.lower() in _WORDS and word in (word.lower(), word.upper()) else ""
        )

    def either(self) -> Node:
        parts = [self.every()]
        while self.keyword() == "or":
            parts.append(self.after("or", self.every))
        return grouped(parts, one=True)

    def every(self) -> Node:
        parts = [self.part()]
        while self.at < len(self.text) and self.text[self.at] != ")":
            match self.keyword():
                case "or":
                    break
                case "and":
                    parts.append(self.after("and", self.part))
                case _:
                    parts.append(self.part())
        return grouped(parts, one=False)

    def after(self, keyword: str, read: Callable[[], Node]) -> Node:
        """Take a keyword and read the node that must follow it."""
        start = self.at
        self.at += len(keyword)
        self.skip()
        if self.at == len(self.text) or self.text[self.at] == ")":
            raise self.error(start, f"nothing follows {keyword!r}")
        return read()

    def part(self) -> Node:
        start = self.at
        self.nested += 1
        if self.nested > _NESTED_MAX:
            raise self.error(start, f"more than {_NESTED_MAX} parts in one another")
        if self.text[start] == ")":
            raise self.error(start, "a term is missing before this )")
        if self.text[start] == "(":
            node = self.parenthesis(start)
        elif self.keyword() == "not":
            node = Not(self.after("not", self.part))
        elif self.keyword():
            raise self.error(start, f"a term is missing before {self.word()!r}")
        else:
            node = self.term()
        self.nested -= 1
        self.skip()
        return node

    def parenthesis(self, start: int) -> Node:
        self.at += 1
        self.skip()
        if self.at == len(self.text):
            raise self.error(start, "this ( is never closed")
        node = self.either()
        if self.at == len(self.text):
            raise self.error(start, "this ( is never closed")
        self.at += 1
        return node

    def term(self) -> Node:
        start, word = self.at, self.word()
        name, colon, _ = word.partition(":")
        if not colon:
            raise self.error(start, _explain_no_term(word))
        read = self.value_reader(_folded(name))
        if read is None:
            raise self.error(start, f"there is no key {name!r}{_suggest_key(name)}")
        self.at += len(name) + 1
        values = [self.value(start, read)]
        while self.at < len(self.text) and self.text[self.at] == ",":
            self.at += 1
            values.append(self.value(start, read))
        nodes = [attrs.evolve(v, column=start + 1) for v in values if isinstance(v, Term)]
        if nodes:
            return grouped(nodes, one=True)
        return Term(_folded(name), tuple(v for v in values if not isinstance(v, Term)), start + 1)

    def value_reader(self, name: str) -> Callable[[Typed], Value | Term] | None:
        """Return the function that reads the values of the key at hand; None if there is none."""
        if name == _IS:
            return _quality
        try:
            key = key_named(name)
        except PathError as error:
            raise self.error(self.at + error.place, str(error)) from None
        return None if key is None else key.value

    def value(self, key_start: int, read: Callable[[Typed], Value | Term]) -> Value | Term:
        start = self.at
        typed = self.typed()
        if typed is None:
            raise self.error(key_start, "a value is missing behind the : or ,")
        try:
            return read(typed)
        except ValueError as error:
            raise self.error(start, str(error)) from None

    def typed(self) -> Typed | None:
        """Take a value, quoted or not; None if there is none."""
        start, text = self.at, self.text
        quote = text[start] if text[start : start + 1] in ('"', "'") else ""
        self.at += len(quote)
        parts = [""]
        while self.at < len(text):
            character = text[self.at]
            if character == quote or (not quote and (character.isspace() or character in "(),")):
                break
            if character == "\\":
                self.at += 1
                if self.at == len(text):
                    raise self.error(self.at - 1, "nothing follows this \\")
                parts[-1] += text[self.at]
            elif character == "*":
                parts.append("")
            else:
                parts[-1] += character
            self.at += 1
        if not quote:
            return tuple(parts) if self.at > start else None
        if self.at == len(text):
            raise self.error(start, f"this {quote} is never closed")
        self.at += 1
        if self.at < len(text) and not text[self.at].isspace() and text[self.at] not in "),":
            raise self.error(self.at, "a space is missing behind the quotes")
        return tuple(parts)


def _folded(name: str) -> str:
    """Return the name of a key in lower case, but for a path in it."""
    end = _KEY_END.search(name)
    return name.lower() if end is None else name[: end.start()].lower() + name[end.start() :]


def _quality(typed: Typed) -> Term:
    name = "*".join(typed)
    if name.lower() not in QUALITIES:
        known = ", ".join(QUALITIES)
        raise ValueError(f"nothing is {name!r}{suggestion(name, QUALITIES)}; there are {known}")
    return Term(QUALITIES[name.lower()].name, ())


def _suggest_key(name: str) -> str:
    if name in QUALITIES:
        return f" (did you mean {_IS}:{name}?)"
    other = _OTHER_NAMES.get(name)
    return f" (did you mean {other}?)" if other else suggestion(name, [*BY_NAME, _IS])


def _explain_no_term(word: str) -> str:
    """Return advice about a word that is not a term."""
    compared = _COMPARISON.fullmatch(word)
    if compared is not None and _KEY_END.split(compared[1])[0] in BY_NAME:
        name, sign, value = compared.groups()
        written_so = {"<": f"..{value}", "<=": f"..{value}", ">": f"{value}..", ">=": f"{value}.."}
        negated = "not " if sign == "!=" else ""
        return f"{word!r} is no term; write {negated}{name}:{written_so.get(sign, value)}"
    if word in QUALITIES:
        return f"{word!r} is no term; write {_IS}:{word}"
    for name in schema.api_names().values():
        if name.lower() == word.lower():
            return f"{word!r} is no term; write api:{name}"
    if word in BY_NAME:
        return f"{word!r} has no value; write it as in {BY_NAME[word].example.split()[0]}"
    return f"{word!r} is no term; a term is KEY:VALUE, as in topic:orders-*"


# ── the help ─────────────────────────────────────────────────────────────────────────────────
