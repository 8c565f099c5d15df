"""The top-level module in which Spark finds the format `kproxy`: Spark imports all modules named
`pyspark_…` and looks for a `DefaultSource`. The wheel has this file at its top level."""

from kproxy.spark.source import KproxyDataSource as DefaultSource

__all__ = ["DefaultSource"]
