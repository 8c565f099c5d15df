"""The message of a schema, held to pyarrow; what else may stand there is refused in a line."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kproxy import recording
from kproxy.recording import RecordingError, info
from kproxy.recording.arrow import Schema
from kproxy.recording.arrow_schema import ArrowField, fields_of
from kproxy.recording.layout import EXCHANGES, FRAMES
from kproxy.recording.mcap import HEADER, MAGIC, channel_record, record, schema_record, string
from tests.recording.making import rewrite
from tests.recording.other_versions import ADDED, remade

LOGIN = Path(__file__).parent / "formats" / "2" / "login.mcap"
TABLES = {"/kafka/frames": FRAMES, "/kafka/exchanges": EXCHANGES}


def one_line(error: RecordingError) -> str:
    """What an error says, which must be one line of a length that can be read."""
    text = str(error)
    assert "\n" not in text and len(text) < 400
    return text


SCHEMAS = [Schema(*ADDED[topic].fields).message for topic in TABLES] + [FRAMES.message]


def check_refused_or_read(path: Path) -> None:
    """Whatever the schema says: entries, or an error in one line."""
    for look in (recording.entries, recording.read):
        try:
            for _ in look(path):
                pass
        except RecordingError as error:
            one_line(error)


@pytest.mark.parametrize("length", [0, 3, 8, 9, 16, 40, 100, -8, -1])
def test_a_schema_that_is_cut_off_is_refused(length: int, tmp_path: Path) -> None:
    schemas = {"/kafka/frames": FRAMES.message[:length]}
    path = remade(LOGIN, tmp_path / "a.mcap", schemas=schemas)
    with pytest.raises(RecordingError, match="schema of /kafka/frames") as raised:
        info(path)
    one_line(raised.value)


@given(
    st.sampled_from(SCHEMAS),
    st.lists(
        st.tuples(
            st.integers(0, 4000),
            st.one_of(
                st.sampled_from([b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0" * 4, b"\1\0\0\0"]),
                st.binary(min_size=1, max_size=8),
            ),
        ),
        max_size=4,
    ),
    st.integers(0, 40),
)
@example(SCHEMAS[0], [], 0)
def test_any_bytes_are_a_schema_or_an_error(
    schema: bytes, changes: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(schema)
    for at, some in changes:
        at %= len(data)
        data[at : at + len(some)] = some
    data = data[: len(data) - cut]
    try:
        fields = fields_of(bytes(data))
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 200
        return
    again = Schema(*fields)
    assert fields_of(again.message) == fields


@given(st.binary(max_size=300))
def test_any_bytes_at_all(data: bytes) -> None:
    prefix = b"\xff\xff\xff\xff" + len(data).to_bytes(4, "little")
    for given_bytes in (data, prefix + data):
        with pytest.raises(ValueError):
            fields_of(given_bytes)


@pytest.mark.parametrize("seed", range(60))
def test_a_file_with_a_forged_schema_is_refused_or_read(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    topic = chance.choice(list(TABLES))
    data = bytearray(TABLES[topic].message)
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(8, len(data))
        data[at] = chance.choice((0, 1, 4, 0xFF, data[at] ^ 1 << chance.randrange(8)))
    path = remade(LOGIN, tmp_path / "a.mcap", schemas={topic: bytes(data)})
    check_refused_or_read(path)
    copy = rewrite(path, tmp_path / "b.mcap")
    check_refused_or_read(copy)


def message_of(metadata: bytes) -> bytes:
    """Metadata as an encapsulated message."""
    metadata += bytes(-len(metadata) % 8)
    return b"\xff\xff\xff\xff" + len(metadata).to_bytes(4, "little") + metadata


def shorts(*values: int) -> bytes:
    """16-bit integers."""
    return b"".join(value.to_bytes(2, "little") for value in values)


def words(*values: int) -> bytes:
    """32-bit integers."""
    return b"".join((value % (1 << 32)).to_bytes(4, "little") for value in values)


def field_table(children: int, to_child: int | None = None, name: bytes = b"f") -> bytes:
    """A table Field, behind its vtable: of binary if it has no children, else a struct of as many,
    which are all one table: the next one, or `to_child` bytes from this one."""
    text = words(len(name)) + name + bytes(4 - len(name) % 4)
    type_at = 24 + len(text) + 4
    children_at = type_at + 4
    end = children_at + 4 + 4 * children
    if to_child is None:
        to_child = end + 16  # behind its vtable
    kind = 13 if children else 4
    table = words(16, 24 - 4, kind, type_at - 12, children_at - 16, 0)
    offsets = words(*(to_child - children_at - 4 - 4 * nth for nth in range(children)))
    vtable = shorts(16, 24, 4, 0, 8, 12, 0, 16)
    return vtable + table + text + shorts(4, 4) + words(4) + words(children) + offsets


def forged_message(*tables: bytes, count: int = 1) -> bytes:
    """A schema of so many columns, which are all the first of these tables."""
    head = words(16) + shorts(12, 16, 4, 6, 8, 0)
    head += words(12) + shorts(4, 1) + words(40 - 24, 0)  # version 5, a schema
    head += shorts(8, 8, 0, 4) + words(8, 4, count)
    first = 52 + 4 * count + 16
    head += words(*(first - 52 - 4 * nth for nth in range(count)))
    return message_of(head + b"".join(tables))


LEAF = field_table(0)
FORGED = {
    "a struct that is its own child": forged_message(field_table(1, 0)),
    "a million fields that are one": forged_message(field_table(1_000_000), LEAF),
    "a struct of two of a struct of two …": forged_message(*[field_table(2)] * 30, LEAF),
    "a level above the other": forged_message(*[field_table(1)] * 3000, LEAF),
    "columns with one long name": forged_message(field_table(0, name=b"n" * 99_999), count=300),
    "a million columns that are one": forged_message(LEAF, count=1_000_000),
}


@pytest.mark.parametrize("what", FORGED)
def test_huge_vectors_and_circles_cost_nothing(what: str, tmp_path: Path) -> None:
    data = FORGED[what]
    tracemalloc.start()
    with pytest.raises(ValueError):
        fields_of(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(data) + (1 << 20)
    path = remade(LOGIN, tmp_path / "a.mcap", schemas={"/kafka/exchanges": data})
    with pytest.raises(RecordingError, match="schema of /kafka/exchanges") as raised:
        info(path)
    one_line(raised.value)


def test_the_like_of_what_was_forged_is_a_schema() -> None:
    """So they are refused for their size and their circles, and for no slip of a byte."""
    data = forged_message(field_table(3), LEAF)
    theirs = pyarrow.ipc.read_schema(pyarrow.py_buffer(data))
    assert [theirs.field(0).type.field(each).name for each in range(3)] == ["f"] * 3
    assert fields_of(data) == (ArrowField("f", (ArrowField("f", "binary"),) * 3),)
    data = forged_message(field_table(2), field_table(2), LEAF)
    assert pyarrow.ipc.read_schema(pyarrow.py_buffer(data)).field(0).type.num_fields == 2


def test_what_pyarrow_writes_is_a_schema_too() -> None:
    """Its flatbuffers have another layout."""
    for message in SCHEMAS:
        schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(message))
        theirs = schema.with_metadata({"a": "b"}).serialize().to_pybytes()
        assert fields_of(theirs) == fields_of(message)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (pyarrow.uint32(), "a type"),
        (pyarrow.float64(), "a type"),
        (pyarrow.utf8(), "a type"),
        (pyarrow.list_(pyarrow.list_(pyarrow.int8())), "a type"),
        (pyarrow.large_binary(), "a type"),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.binary()), "a type"),
    ],
)
def test_types_that_the_format_does_not_use_are_refused(
    kind: pyarrow.DataType, what: str, tmp_path: Path
) -> None:
    schema = pyarrow.schema([("odd", kind)]).serialize().to_pybytes()
    path = remade(LOGIN, tmp_path / "a.mcap", schemas={"/kafka/exchanges": schema})
    with pytest.raises(RecordingError, match=f"'odd'.* {what}") as raised:
        info(path)
    one_line(raised.value)


def test_what_a_message_has_is_what_its_schema_says(tmp_path: Path) -> None:
    """A schema of other columns than the messages have: an error, not nonsense."""
    schemas = {"/kafka/exchanges": Schema(*ADDED["/kafka/exchanges"].fields).message}
    path = remade(LOGIN, tmp_path / "a.mcap", schemas=schemas)
    with pytest.raises(RecordingError, match="a table that does not decode") as raised:
        list(recording.read(path))
    one_line(raised.value)


@pytest.mark.parametrize("library", ["kproxy 0.9.0", "another 1"])
@pytest.mark.parametrize("what", ["schemas", "channels"])
def test_a_head_of_many_records_is_refused_before_it_fills_the_memory(
    what: str, library: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.mcap"
    one = schema_record(7, "", "", b"a" * 2000) + schema_record(7, "", "", b"b" * 2000)
    if what == "channels":
        one = channel_record(9, 0, "/other", "", {"a": "b" * 4000})
    path.write_bytes(MAGIC + record(HEADER, string("kproxy") + string(library)) + one * 10_000)
    tracemalloc.start()
    if what == "schemas" or library.startswith("kproxy"):
        with pytest.raises(RecordingError, match="than any"):
            info(path)
    else:
        info(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 << 20
