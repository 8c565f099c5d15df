"""The columns of tables as Spark's SQL declares them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from kproxy.tables.views import ViewColumn


def type_of(column: ViewColumn) -> str:
    """Return the type of a column, as Spark prints it."""
    return from_arrow_type(column.type).simpleString()


def ddl(columns: Iterable[ViewColumn]) -> str:
    """Return columns as a schema of Spark's SQL."""
    return ", ".join(map(_declared, columns))


def for_spark(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a Parquet file with what Spark wants to know: its own types, and the
    comments of the columns."""
    fields = [
        StructField(each.name, from_arrow_type(each.type), True, _comment(each)) for each in schema
    ]
    return schema.with_metadata({_SPARK_SCHEMA: StructType(fields).json()})


_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"


def _comment(field: pa.Field) -> dict[str, str]:
    text = (field.metadata or {}).get(b"comment", b"").decode()
    return {"comment": text} if text else {}


def _declared(column: ViewColumn) -> str:
    comment = column.comment.replace("'", "\\'")
    return f"`{column.name}` {type_of(column)} COMMENT '{comment}'"
