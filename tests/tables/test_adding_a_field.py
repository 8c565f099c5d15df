"""A field that bodies tell is one entry of `exchange.Exchange`; every reader has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.exchange.making import request, response
from tests.recording import making
from tests.versions import some

FACT = "meanings.THROTTLE"
FUNCTION = 'lambda exchange: getattr(exchange.response, "throttle_time_ms", 0) > 0'
READERS = """
import contextlib, io, json, sys
import pyarrow.parquet
from kproxy import tables
from kproxy.cli import main
from kproxy.look.lines import manual
from kproxy.spark.ddl import ddl
from kproxy.tables.views import chosen

def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(list(words))
    return out.getvalue()

def shown(*words):
    return [json.loads(line) for line in printed("show", "--json", *words).splitlines()]

path, parquet = sys.argv[1:]
printed("export", path, "--to", parquet)
print(json.dumps({
    "json": [each["throttled"] for each in shown(path)],
    "filter": [each["number"] for each in shown(path, "is:throttled")],
    "help": manual.page("filters"),
    "table": tables.read(path, columns=["throttled"]).read_all()["throttled"].to_pylist(),
    "parquet": pyarrow.parquet.read_table(parquet)["throttled"].to_pylist(),
    "spark": ddl(chosen("exchanges", ["throttled"])),
}))
"""


@pytest.mark.parametrize("source", some([FACT, FUNCTION], [FACT]))
def test_a_field_that_bodies_tell_is_one_entry(source: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    kproxy, pycache = needs.REPOSITORY / "kproxy", shutil.ignore_patterns("__pycache__")
    shutil.copytree(kproxy, tmp_path / "kproxy", ignore=pycache)
    module = tmp_path / "kproxy" / "exchange" / "exchange.py"
    before, opaque, after = module.read_text().partition("    opaque = ExchangeField(\n")
    entry = f'    throttled = ExchangeField(Type.BOOL, Need.RESPONSE, "it is to wait", {source})\n'
    module.write_text(before + entry + opaque + after)
    asked = [request("Heartbeat", 4, messages.HeartbeatRequest(group_id="g"), n) for n in (1, 2)]
    answers = [messages.HeartbeatResponse(throttle_time_ms=time_ms) for time_ms in (0, 250)]
    entries = [*asked, *map(response, asked, answers)]
    path = making.write(tmp_path / "a.mcap", [entries])
    done = subprocess.run(
        [sys.executable, "-c", READERS, str(path), str(tmp_path / "a.parquet")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["json"] == found["table"] == found["parquet"] == [False, True]
    assert found["filter"] == [2]
    assert "is:throttled" in found["help"]
    assert found["spark"] == "`throttled` boolean COMMENT 'it is to wait'"
