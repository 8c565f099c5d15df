"""Which ids are asked for, how often, and what is said of those that nobody has."""

from __future__ import annotations

from collections.abc import Sequence

from kproxy.exchange.pairing import pair
from kproxy.exchange.schema_ids import SchemaUse
from kproxy.net.registry.collecting import SchemaCollector
from kproxy.net.registry.source import FoundSchema, RegistryError
from kproxy.wire.payloads.schemas import Schema, SchemaId
from tests.net.registry.recorded import framed, produced


class Known:
    """A source that has these ids."""

    name = "http://known"

    def __init__(self, *ids: int, fails: bool = False, size: int = 2) -> None:
        self.ids, self.fails, self.size = ids, fails, size
        self.asked: list[SchemaId] = []
        self.bad = 0

    def find(self, schema_id: SchemaId, use: SchemaUse) -> FoundSchema | None:
        self.asked.append(schema_id)
        if self.fails:
            raise RegistryError("http://known: it sleeps", unreachable=True)
        if schema_id == self.bad:
            raise RegistryError("main.proto does not compile")
        if schema_id not in self.ids:
            return None
        return FoundSchema(frozenset({schema_id}), Schema("JSON", "x" * self.size))


def looked(source: Known, values: Sequence[bytes], topic: str = "orders") -> SchemaCollector:
    collector = SchemaCollector([source])
    for exchange in pair(produced(*values, topic=topic)):
        collector.look(exchange)
    return collector


def found(collector: SchemaCollector, now: float, last: bool = False) -> list[SchemaId]:
    return [each for ids, _ in collector.ask(now, last) for each in ids]


def test_an_id_is_asked_for_once() -> None:
    source = Known(17)
    collector = looked(source, [framed(17), framed(17), b"plain", b"\0\0"])
    assert found(collector, 0) == [17]
    assert not any(collector.look(each) for each in pair(produced(framed(17, "other"))))
    assert found(collector, 9) == []
    assert source.asked == [17]
    assert collector.missing() == ""


def test_an_id_that_nobody_has_is_asked_for_again_later() -> None:
    source = Known()
    collector = looked(source, [framed(17)])
    for now in (0.0, 0.5, 1.5, 2.0, 7.0, 40.0, 41.0):
        assert found(collector, now) == []
    assert len(source.asked) == 4, "at 0, 1.5, 7 and 40 s"
    assert collector.missing() == "not found: schema 17"
    source.ids = (17,)
    assert found(collector, 42.0, last=True) == [17], "at the end all are asked for"
    assert collector.missing() == ""


def test_a_source_that_fails_is_left_alone_for_a_while() -> None:
    source = Known(17, 18, fails=True)
    collector = looked(source, [framed(17), framed(18)])
    assert found(collector, 0) == []
    assert len(source.asked) == 1, "the other id would fare no better"
    assert collector.missing() == "not found: schemas 17, 18; http://known: it sleeps"
    assert found(collector, 0.5, last=True) == []
    assert len(source.asked) == 2, "at the end once more, and not for each id"
    source.fails = False
    assert found(collector, 2.0) == [17, 18]
    assert collector.missing() == ""


def test_a_schema_that_cannot_be_had_does_not_hold_up_others() -> None:
    source = Known(17, 18)
    source.bad = 17
    collector = looked(source, [framed(17), framed(18)])
    assert found(collector, 0) == [18]
    assert collector.missing() == "not found: schema 17; main.proto does not compile"


def test_numbers_that_look_like_ids_are_soon_left_alone() -> None:
    longs = [(1_700_000_000_000 + (number << 32)).to_bytes(8, "big") for number in range(100)]
    source = Known(17)
    collector = looked(source, longs[:50], "times")
    assert found(collector, 0) == []
    assert len(source.asked) == 32, "the others are not asked for"
    assert collector.missing() == "", "they may be numbers: nobody is bothered"
    for exchange in pair(produced(*longs[50:], topic="times", first=60)):
        assert not collector.look(exchange)
    for exchange in pair(produced(framed(17), first=200)):
        assert collector.look(exchange), "other topics go on"


def test_nobody_is_asked_about_topics_of_kafka() -> None:
    """Their keys begin as those that name a schema: a 0, and what is read as a number."""
    source = Known()
    collector = looked(source, [b"\0\1\0\2g1\0\6orders\0\0\0\0"], "__consumer_offsets")
    assert found(collector, 0) == source.asked == []
    assert collector.missing() == ""


def test_there_is_room_for_so_many_schemas() -> None:
    source = Known(17, 18, size=10)
    collector = looked(source, [framed(17), framed(18)])
    collector.room_bytes = 15
    assert found(collector, 0) == [17]
    assert collector.missing() == "16 MiB of schemas are kept, not those of schema 18"
