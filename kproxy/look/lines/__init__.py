"""Views of recordings for people and programs: lines, JSON, exchanges as they pass.

::

    Exchange ─▶ text (words_*, generic) ─▶ show: lines            show FILE
        │                              └─▶ live: as they pass   run, demo
        └─────▶ jsonl: one object per line                      show --json FILE
"""
