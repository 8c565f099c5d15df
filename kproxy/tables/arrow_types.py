"""Arrow types of the columns of tables.

    fields.Type ─▶ OF_FIELDS ─▶ columns of views

Invariant: types that two modules use are defined here.
"""

from __future__ import annotations

import pyarrow as pa

from kproxy.exchange.fields import Type

INT64, INT32, INT16 = pa.int64(), pa.int32(), pa.int16()
DOUBLE, BOOLEAN, TEXT, BYTES = pa.float64(), pa.bool_(), pa.string(), pa.binary()
TEXTS = pa.list_(TEXT)
TIME, DAY = pa.timestamp("us", tz="UTC"), pa.date32()
HEADERS = pa.list_(pa.struct([("key", TEXT), ("value", BYTES)]))
WAITED = pa.struct([("waited_for", TEXT), ("behind", INT64), ("waited_ms", DOUBLE)])
"""The type of an `endings.Unanswered`."""

OF_FIELDS: dict[Type, pa.DataType] = {
    Type.INT16: INT16,
    Type.INT32: INT32,
    Type.INT64: INT64,
    Type.FLOAT: DOUBLE,
    Type.BOOL: BOOLEAN,
    Type.TEXT: TEXT,
    Type.TEXTS: TEXTS,
    Type.TIME: TIME,
    Type.PARTITIONS: pa.list_(pa.struct([("topic", TEXT), ("partition", INT32)])),
    Type.WAITED: WAITED,
    Type.BODY: TEXT,
    Type.BYTES: BYTES,
}
"""Arrow types of the fields of exchanges."""
