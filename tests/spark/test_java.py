"""A Java that is there, and does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.test_analyze import DEMO, run


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("false", "java does not start: No room: For the heap (is it "),
        ("true", "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port"),
    ],
)
def test_a_java_that_does_not_start_is_said(version: str, what: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"[ $1 = -version ] && {version} && echo 'openjdk version \"21\"' && exit\n"
        "echo No room >&2; echo For the heap >&2; exit 1\n"
    )
    program.chmod(0o700)
    done = run(DEMO, "--out", str(tmp_path / "out"), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    *_, said = done.stderr.splitlines()
    assert what in said and "memory" in said
