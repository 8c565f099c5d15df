"""Tables as polars and DuckDB read them: whole folders."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars


def assert_read_by_folder(folder: Path, counts: dict[str, int]) -> None:
    """Check that polars and DuckDB read each table by the name of its folder."""
    assert len(counts) == 11
    for name, count in counts.items():
        rows = polars.scan_parquet(folder / name, hive_partitioning=True).collect()
        files = f"{folder}/{name}/**/*.parquet"
        query = "SELECT count(*) FROM read_parquet($1, hive_partitioning = true)"
        (found,) = duckdb.sql(query, params=[files]).fetchall()
        assert (rows.height, *found) == (count, count), name
        others = [each for each in (folder / name).rglob("*") if each.suffix != ".parquet"]
        assert all(each.is_dir() for each in others), others
