"""Recordings as tables: Arrow record batches, for polars, DuckDB, pandas, Spark, Parquet files.

    paths ─ splits ─▶ BatchRange, … ─ reading ─▶ Arrow record batches ─▶ RecordBatchReader

`read` is the entry point::

    from kproxy import tables

    reader = tables.read("captures/", columns=["api", "client_id", "service_ms", "errors"])
    polars.from_arrow(reader.read_all())
    duckdb.sql("SELECT api, max(service_ms) FROM reader GROUP BY api")

`views` has the tables and their columns.

Invariants: memory is bounded by one record batch, however long a recording is. Nothing here depends
on Spark.
"""

try:
    import pyarrow
except ImportError as error:
    what = f"{error.name} is not installed: pip install 'kproxy-kafka[tables]'"
    raise ImportError(what, name=error.name) from None

from kproxy.tables.reading import read

__all__ = ["read"]

del pyarrow
