"""What people look at: lines, JSON, the exchanges as they pass.

::

    Exchange ─▶ text (words_*, generic) ─▶ show: lines            show FILE
        │                              └─▶ live: as they pass   run, demo
        └─────▶ jsonl: one object per line                      show --json FILE
"""
