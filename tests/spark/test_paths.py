"""Paths of recordings in Spark: workers and restarted streams know them, however spelled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kproxy.tables import splits

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from kproxy.spark.source import KproxyDataSource, SparkPartition


def test_a_path_is_the_same_however_it_is_spelled(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stretches(
        spelled: str, start: dict[str, int]
    ) -> tuple[list[splits.BatchRange], dict[str, int]]:
        stream = KproxyDataSource({"path": spelled}).streamReader(schema)
        end = stream.latestOffset()
        partitions = stream.partitions(start, end)
        return [each for one in partitions for each in one.stretches], end

    schema = StructType().add("number", "long")
    monkeypatch.chdir(broken.parent)
    name = broken.name
    whole, offsets = stretches(name, {})
    assert whole and all(os.path.isabs(each.path) for each in whole), "workers are elsewhere"
    (partition,) = KproxyDataSource({"paths": json.dumps([name])}).reader(schema).partitions()
    assert isinstance(partition, SparkPartition)
    assert all(os.path.isabs(each.path) for each in partition.stretches)
    older = {os.path.relpath(path): end for path, end in offsets.items()}
    for known in (offsets, older):
        for spelled in (str(broken), f"./{name}/", f"{name}/*.mcap", broken.as_uri()):
            assert stretches(spelled, known) == ([], offsets)


def test_paths_may_be_uris_folders_and_globs(broken: Path) -> None:
    named = [
        [str(broken)],
        [f"{broken}/*.mcap"],
        [path.as_uri() for path in broken.glob("*.mcap")],
    ]
    assert len({tuple(splits.find(paths).files) for paths in named}) == 1
