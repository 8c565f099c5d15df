"""The columns of tables as Spark's SQL declares them."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.pandas.types import from_arrow_type

from kproxy.tables.views import ViewColumn


def type_of(column: ViewColumn) -> str:
    """Return the type of a column, as Spark prints it."""
    return from_arrow_type(column.type).simpleString()


def ddl(columns: Iterable[ViewColumn]) -> str:
    """Return columns as a schema of Spark's SQL."""
    return ", ".join(map(_declared, columns))


def _declared(column: ViewColumn) -> str:
    comment = column.comment.replace("'", "\\'")
    return f"`{column.name}` {type_of(column)} COMMENT '{comment}'"
