"""Arrow's encoding, held to pyarrow; and what is not it, refused."""

from __future__ import annotations

import random
from array import array

import pyarrow
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.recording.arrow import ArrowField, Schema
from kproxy.recording.layout import EXCHANGES, FRAMES

PAIR = (ArrowField("a", "int64"), ArrowField("b", "int8"))
ALL = Schema(
    ArrowField("number", "int64"),
    ArrowField("small", "int16"),
    ArrowField("sizes", "int32", many=True),
    ArrowField("pairs", PAIR, many=True),
    ArrowField("name", "binary"),
    ArrowField("data", "binary"),
)

rows = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.integers(-(2**63), 2**63 - 1),
            "small": st.integers(-(2**15), 2**15 - 1),
            "sizes": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
            "pairs": st.lists(
                st.fixed_dictionaries(
                    {"a": st.integers(-(2**63), 2**63 - 1), "b": st.integers(-128, 127)}
                ),
                max_size=3,
            ),
            "name": st.binary(max_size=9),
            "data": st.binary(max_size=20),
        }
    ),
    max_size=6,
)


def ends(lengths: list[int]) -> bytes:
    """The offsets of lists of these lengths."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return array("i", offsets).tobytes()


def encoded(made: list[dict]) -> bytes:
    """Rows as a record batch."""
    count = len(made)
    sizes = [size for row in made for size in row["sizes"]]
    pairs = [pair for row in made for pair in row["pairs"]]
    values = [
        array("q", [row["number"] for row in made]).tobytes(),
        array("h", [row["small"] for row in made]).tobytes(),
        ends([len(row["sizes"]) for row in made]),
        array("i", sizes).tobytes(),
        ends([len(row["pairs"]) for row in made]),
        array("q", [pair["a"] for pair in pairs]).tobytes(),
        array("b", [pair["b"] for pair in pairs]).tobytes(),
        ends([len(row["name"]) for row in made]),
        b"".join(row["name"] for row in made),
        ends([len(row["data"]) for row in made]),
    ]
    lengths = [count, count, count, len(sizes), count, *[len(pairs)] * 3, count, count]
    parts, size = ALL.encode(lengths, values, [row["data"] for row in made])
    message = b"".join(parts)
    assert len(message) == size and size % 8 == 0
    return message


def test_pyarrow_reads_our_schemas() -> None:
    for schema in (ALL, FRAMES, EXCHANGES):
        read = pyarrow.ipc.read_schema(pyarrow.py_buffer(schema.message))
        assert read.names == [field.name for field in schema.fields]
        assert not any(field.nullable for field in read)


@given(rows)
def test_pyarrow_reads_what_we_write(made: list[dict]) -> None:
    table = pyarrow.ipc.open_stream(ALL.message + encoded(made)).read_all()
    table.validate(full=True)
    assert table.to_pylist() == made


@given(rows)
def test_we_read_what_we_write(made: list[dict]) -> None:
    columns = ALL.decode(memoryview(encoded(made)))
    found = dict(zip((column.name for column in ALL.columns), columns, strict=True))
    assert found["number"].tolist() == [row["number"] for row in made]
    assert found["sizes"].tolist() == [size for row in made for size in row["sizes"]]
    assert bytes(found["data"]) == b"".join(row["data"] for row in made)


@given(rows, st.integers(0, 2**32))
def test_what_was_changed_is_refused_or_is_a_table(made: list[dict], seed: int) -> None:
    """Whatever stands there: an error, or columns whose offsets are in order and in bounds."""
    chance = random.Random(seed)
    data = bytearray(encoded(made))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        data[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\1\0\0\0"))
    try:
        columns = ALL.decode(memoryview(data))
    except ValueError:
        return
    found = dict(zip((column.name for column in ALL.columns), columns, strict=True))
    for name in ("sizes", "name", "data"):
        offsets = found[f"{name}[]"].tolist()
        assert offsets == sorted(offsets) and offsets[0] == 0
        assert offsets[-1] == len(found[name])


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -8, -1])
def test_what_is_cut_off_is_refused(cut: int) -> None:
    row = {"number": 1, "small": 2, "sizes": [3], "pairs": [], "name": b"n", "data": b"d" * 9}
    with pytest.raises(ValueError):
        ALL.decode(memoryview(encoded([row]))[:cut])
