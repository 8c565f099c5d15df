"""What records mean, as keys beside them in JSON."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kproxy.exchange.decoded_json import Content, decoded_json, members, writer
from kproxy.payloads import own
from kproxy.payloads.schemas import Schema, Schemas, note_of
from tests.payloads.test_internal import KEY

NAMED = b'\0\0\0\0\x11{"customer": "ann"}'
BYTES = st.one_of(
    st.none(), st.binary(max_size=6), st.binary(max_size=6).map(b"\0".__add__),
    st.sampled_from([NAMED, KEY, b"\0\0\0\0\x12{}"]),
)  # fmt: skip
HEADERS = st.lists(
    st.tuples(st.sampled_from(["trace", "__key_schema_id", "__value_schema_id"]), BYTES), max_size=2
)


@given(st.sampled_from(["orders", "__consumer_offsets"]), BYTES, BYTES, HEADERS, st.booleans())
@example("orders", None, NAMED, [], False)
@example("orders", None, b"{}", [("__value_schema_id", b"\0\0\0\0\x11")], False)
@example("orders", b"k", b"v", [], True)
def test_records_without_a_schema_are_passed_over_only_where_nothing_is_decoded(
    topic, key, value, headers, asks
):
    schemas = Schemas()
    if asks:
        schemas.own = (own.OwnDecoder("own", lambda: lambda topic, part, data, headers: part),)
    schemas.note(note_of([17], Schema("JSON", "{}")))
    found = decoded_json(topic, Content(key, value, tuple(headers)), schemas)
    assert writer(topic, schemas)(key, value, tuple(headers)) == members(found)
