"""Made the golden files of format version 3, once: `python -m tests.recording.golden.make`.

A new format version gets new files beside the old ones, which stay for ever. Files that exist are
never overwritten.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcap.writer import CompressionType

from kproxy.recording import entries
from tests.recording.making import conversation, portable, rewrite, write

HERE = Path(__file__).parent


def main() -> None:
    """Make the files that are not there."""
    compressions = {"stored": "none", "zstd": "adaptive", "torn": "none"}
    for name, compression in compressions.items():
        path = HERE / f"v3-{name}.mcap"
        if not path.exists():
            write(path, conversation(), compression=compression, metadata={"command": "test"})
            if name == "torn":
                os.truncate(path, path.read_bytes().rindex(b"\x0f\x04\0\0\0\0\0\0\0") - 30)
    path = HERE / "v3-rewritten-lz4.mcap"
    if not path.exists():
        how = {"compression": CompressionType.LZ4, "chunk_size": 200, "keep_schemas": False}
        rewrite(HERE / "v3-stored.mcap", path, **how)
    path = HERE / "v3.json"
    if not path.exists():
        values = [portable(entry) for entry in entries(HERE / "v3-stored.mcap")]
        path.write_text("[\n" + ",\n".join(map(json.dumps, values)) + "\n]\n")


if __name__ == "__main__":
    main()
