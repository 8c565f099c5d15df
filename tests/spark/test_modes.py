"""What `kproxy analyze` makes is for its owner only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.bed import needs
from tests.spark.modes import readable
from tests.spark.test_analyze import DEMO, TABLES, run


@pytest.mark.java
def test_nobody_else_may_read_what_it_makes(tmp_path: Path) -> None:
    needs.program("java")
    above = tmp_path / "above"
    above.mkdir(mode=0o755)
    out = above / "new" / "out"
    done = run(DEMO, "--out", str(out), umask=0o022)
    assert done.returncode == 0, done.stderr
    assert {each.parent.name for each in out.glob("*/*.parquet")} == TABLES
    assert readable(above) == {}
    assert stat.S_IMODE(above.stat().st_mode) == 0o755, "the user's own folder stays as it is"
