"""Recordings as tables: Arrow record batches, which other tools read without knowing recordings.

    paths ─ splits ─▶ Stretch … ─ reading ─▶ Arrow record batches

`views` says which tables there are, and what their columns are.
"""
