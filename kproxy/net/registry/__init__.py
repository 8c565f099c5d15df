"""The sources of schemas: a registry, or a folder of files.

ids in records ─▶ SchemaCollector ─▶ Source, Source … ─▶ Schema ─▶ a note of the recording
"""
