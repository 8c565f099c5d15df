"""The claims of the threat model (`kproxy/manual/security.md`): each has a test of its name.

A claim `* **Web pages**: …` is proved by `test_web_pages` here, or by the tests that `ELSEWHERE`
names, or by both.
"""

from __future__ import annotations

import ast
import hmac
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import h11
import pytest

from kproxy.cli import main
from kproxy.commands.parser import command_parser
from kproxy.commands.place import listen_address
from kproxy.net import control
from kproxy.net.control import ControlServer, RequestRefused
from kproxy.net.control_address import open_addresses
from kproxy.net.control_api import RULES_MAX
from kproxy.net.page_process import ANSWER_SECONDS
from kproxy.net.tls.contexts import broker_contexts, listen_contexts
from kproxy.net.tls.settings import BrokerTls, Identity, ListenTls
from kproxy.net.unusable import Unusable
from kproxy.recording import Recording
from kproxy.testing.files import keep
from tests.bed import certificates, needs
from tests.bed.pages import MANUAL, Page
from tests.exchange.batches import batch
from tests.exchange.bodies import produce_request
from tests.exchange.making import START_NS, request

_RULES = "test_rules_take_latencies_only_from_files_below_the_folder_that_is_named"
ELSEWHERE = {
    "other machines": ("net/test_start_checks.py::test_a_proxy_that_other_machines_reach_says_so",),
    "the page's address": (
        "look/page/test_routes.py::test_the_code_works_once_and_nothing_without_a_cookie",
        "look/page/test_routes.py::test_an_address_lets_one_browser_in_and_then_there_is_another",
    ),
    "texts stay texts": (
        "look/page/test_browser.py::test_texts_of_clients_stay_texts",
        "look/page/test_routes.py::test_the_page_loads_nothing_and_makes_no_markup_of_texts",
    ),
    "client certificates": ("net/test_tls.py::test_clients_may_have_to_show_a_certificate",),
    "credentials": (
        "net/tls/test_credentials.py::test_credentials_are_found",
        "net/test_logins.py::test_a_login_that_fails_ends_the_connection",
        "net/test_logins.py::test_an_endpoint_that_gives_none_is_named_and_not_quoted",
        "net/test_tls.py::test_a_broker_that_is_not_who_it_should_be_is_not_spoken_to",
    ),
    "its own connection": (
        "integration/test_bad_input.py::test_what_is_not_kafka_ends_its_connection_only",
    ),
    "health": ("net/test_health.py::test_anybody_may_ask_for_health_and_for_nothing_else",),
    "handshakes": (
        "net/test_handshake.py::test_who_says_nothing_takes_no_turn_and_ends_alone",
        "net/test_handshake.py::test_who_sends_byte_by_byte_ends",
    ),
    "brokers": ("net/test_tls.py::test_a_broker_that_is_not_who_it_should_be_is_not_spoken_to",),
    "verification": ("net/test_tls.py::test_verification_that_is_off_is_logged",),
    "session keys": (
        "net/test_tls.py::test_keys_are_logged_by_an_option_only",
        "net/tls/test_restrictions.py::test_a_key_log_that_others_may_read_is_refused",
    ),
    "bounds": (
        "net/test_control.py::test_what_is_not_to_be_had_is_answered_in_one_line",
        "net/test_control.py::test_a_body_that_is_not_wanted_is_refused",
        "net/test_control.py::test_the_slow_and_the_silent_hold_up_nobody",
        "net/test_control_api.py::test_there_is_an_end_to_rules",
    ),
    "the page": (
        "look/page/test_live.py::test_what_was_recorded_takes_the_cookie_or_the_token",
        "look/page/test_live.py::test_what_passes_is_on_the_page_and_a_rule_from_it_holds",
    ),
    "rules": (f"net/test_control_api.py::{_RULES}",),
    "nothing overwritten": ("test_cli.py::test_a_recording_is_not_overwritten",),
    "the authority": ("net/tls/test_stores.py::test_a_ca_is_made_once_and_is_its_owners",),
    "private keys": ("net/tls/test_stores.py::test_a_key_and_its_authority_come_out_of_pkcs12",),
    "logins": ("integration/test_secrets.py::test_logging_in_leaves_no_secret",),
    "damage": ("fuzz/test_fuzz.py::test_a_few_seconds",),
    "bombs": (
        "recording/test_compression.py::test_a_bomb_does_not_go_off",
        "wire/protocol/test_compression.py::test_a_bound_is_on_what_comes_out_and_not_on_a_ratio",
        "exchange/test_unpacking.py::test_a_command_ends_and_says_what_it_left_out",
    ),
    "terminals": (
        "look/lines/test_printable.py::test_show_prints_no_character_that_a_terminal_obeys",
    ),
    "reports": (
        "look/report/test_page.py::test_names_that_clients_made_up_show_no_control_characters",
    ),
}
"""Claim → the tests that prove it, below `tests`."""
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def claims() -> list[str]:
    """The names of the claims on the page."""
    page = Page(MANUAL / "security.md").text.partition("## Threat model")[2]
    return [name.lower() for name in re.findall(r"^\* \*\*(.+?)\*\*:", page, re.MULTILINE)]


def functions_of(path: Path) -> set[str]:
    """The names of the functions of a file."""
    found = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in found if isinstance(each, kinds)}


def test_each_claim_of_the_page_has_its_test() -> None:
    here = functions_of(Path(__file__))
    direct = [name for name in claims() if f"test_{name.replace(' ', '_')}" in here]
    assert len(claims()) > 20 and {*direct, *ELSEWHERE} == {*claims()}
    for name, tests in ELSEWHERE.items():
        for path, _, test in (each.partition("::") for each in tests):
            assert test in functions_of(needs.REPOSITORY / "tests" / path), name


# ── listeners, TLS ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("typed", [("run", "--bootstrap", "a"), ("replay", str(DEMO))])
def test_loopback(typed: tuple[str, ...]) -> None:
    command, *arguments = typed
    options = command_parser(command).parse_args(arguments)
    for options.command in (None, ["true"]):
        assert listen_address(options)[0] == "127.0.0.1"


def test_versions(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    both = [
        broker_contexts(BrokerTls(), print).context(),
        listen_contexts(ListenTls(Identity(made.broker)), [], print).context(),
    ]
    assert [each.minimum_version for each in both] == [ssl.TLSVersion.TLSv1_2] * 2


# ── the control port ─────────────────────────────────────────────────────────────────────────


def test_off() -> None:
    assert command_parser("run").parse_args(["--bootstrap", "a"]).control is None


def refused(token: str | None, **headers: str) -> int:
    """The status with which a request is refused; 404 is what all get that may ask."""
    server = ControlServer({}, "127.0.0.1", token, print)
    asked = h11.Request(method="GET", target="/", headers=[*({"host": "a"} | headers).items()])
    with pytest.raises(RequestRefused) as caught:
        server.route(asked)
    return caught.value.answer.status


async def test_token() -> None:
    with pytest.raises(Unusable, match="set KPROXY_CONTROL_TOKEN"):
        await open_addresses(("0.0.0.0", 0), None, None)
    opened = (await open_addresses(("0.0.0.0", 0), "s3cret", None)).control
    assert opened and opened.token == "s3cret"
    for listener in opened.listening:
        listener.close()
    assert refused("s3cret") == refused("s3cret", authorization="Bearer s3crets") == 401
    assert refused("s3cret", authorization="Bearer s3cret") == 404


def test_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def comparing(given: bytes, right: bytes) -> bool:
        compared.append((given, right))
        return given == right

    monkeypatch.setattr(hmac, "compare_digest", comparing)
    assert refused("s3cret", authorization="Bearer s") == 401
    assert compared == [(b"Bearer s", b"Bearer s3cret")], "by this function, and the whole of it"


def test_web_pages() -> None:
    for token in (None, "s3cret"):
        login = {"authorization": f"Bearer {token}"}
        assert refused(token, host="127.0.0.1", **login) == 404
        assert refused(token, host="127.0.0.1", origin="https://evil.example", **login) == 403
    assert refused(None, host="evil.example") == 403


def test_bounds() -> None:
    """The page has the numbers of the code; that they hold is tested where `ELSEWHERE` says."""
    text = " ".join(Page(MANUAL / "security.md").text.split())
    assert (
        f"at most {control.BROWSER_CONNECTIONS_MAX} connections of {control.REQUEST_SECONDS:g} s,"
        f" {control.HEAD_BYTES_MAX >> 10} KiB of head, {control.BODY_BYTES_MAX >> 10} KiB of body"
        f" and {RULES_MAX} rules. An answer of the page may take {ANSWER_SECONDS:g} s more."
    ) in text


# ── files ────────────────────────────────────────────────────────────────────────────────────


def modes(path: Path) -> set[int]:
    """The modes of the files below a folder; those of the folders with `S_IFDIR`."""
    found = (each.stat().st_mode for each in path.rglob("*"))
    return {mode & 0o777 | mode & stat.S_IFDIR for mode in found}


def test_no_file_of_kproxy_is_for_others_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask: of the CA, what clients get, the report, and recordings of tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own" / "config"))
    old = os.umask(0)
    try:
        for _ in range(2):  # it is written again
            assert main(["certs", "--out", str(tmp_path / "clients" / "certs")]) == 0
            (tmp_path / "clients" / "certs" / "ca.pem").chmod(0o666)
        assert main(["certs", "--out", str(tmp_path / "clients" / "certs")]) == 0
        (tmp_path / "own" / "report").mkdir(0o700)
        page = tmp_path / "own" / "report" / "report.html"
        assert main(["report", str(DEMO), "--out", str(page)]) == 0
        keep(DEMO, tmp_path / "own" / "recordings" / "tests" / "kept.mcap")
    finally:
        os.umask(old)
    assert modes(tmp_path / "own") == {0o600, stat.S_IFDIR | 0o700}
    assert modes(tmp_path / "clients") == {0o644, stat.S_IFDIR | 0o755}


_SECRET = "s3cret-Xy9"
_URL = f"https://ann:{_SECRET}@host/x.mcap?sig={_SECRET}.mcap"


@pytest.mark.parametrize(
    "typed",
    [
        *(
            ["run", "--bootstrap", "h:1", "--listen", "127.0.0.1:0", "--schema-registry", each]
            for each in (
                f"http://host:8081?apikey={_SECRET}",
                f"http://host:8081/#{_SECRET}",
                f"host:8081?apikey={_SECRET}",
                f"ann:{_SECRET}@host:8081",
                f"http://ann:{_SECRET},x@host",
                f"http://ann:{_SECRET}[@host",
                f"ftp://ann:{_SECRET}@host",
                f"http://[{_SECRET}/",
                f"http://host:{_SECRET}/",
                f"htp://host/{_SECRET}",
                f"http://ann {_SECRET}",
            )
        ),
        *(
            ["run", "--bootstrap", each]
            for each in (
                f"ann:{_SECRET}@host:9092",
                f"SASL_SSL://ann:{_SECRET}@host:9092",
                f"http://ann:{_SECRET},x@host:9092",
                f"host:9092?password={_SECRET}",
            )
        ),
        ["run", "--bootstrap", "h:1", "--listen", f"http://ann:{_SECRET}@host"],
        ["replay", str(DEMO), "--user", _SECRET],
        *(["run", "--bootstrap", "h:1", option, _URL] for option in ("--record", "--rotate")),
        ["report", str(DEMO), "--out", _URL],
        ["export", str(DEMO), "--to", _URL],
        ["demo", "--record", _URL],
    ],
    ids=" ".join,
)
def test_what_may_be_a_credential_is_not_echoed_when_it_is_refused(
    typed: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, told = not_done(typed, capsys)
    assert code == 2
    assert list(tmp_path.iterdir()) == []
    assert told.count("\n") == 1 and typed[-2] in told


def not_done(typed: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command and all that it said, in which there is no secret."""
    try:
        code = main(typed)
    except SystemExit as stopped:  # the parser itself ends so
        code = int(stopped.code or 0)
    told = "".join(capsys.readouterr())
    assert _SECRET not in told
    return code, told


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["run", f"--schemaregistry=http://h/?apikey={_SECRET}"], "--schemaregistry"),
        (["run", "--bootstrap", "h:1", "--usr", f"alice:{_SECRET}"], "--usr"),
        (["run", "--bootstrap", "h:1", "--usr", f"alice:{_SECRET} x"], "--usr"),
        (["run", "--bootstrap", "h:1", f"-p{_SECRET}"], "-p"),
        (["run", "--bootstrap", "h:1", f"--quiet={_SECRET}"], "--quiet"),
        (["replay", str(DEMO), f"--usr=alice:{_SECRET}"], "--usr"),
        (["replay", str(DEMO), "--usr", f"alice:{_SECRET}"], "--usr"),
        (["--usr", f"alice:{_SECRET}", "replay", str(DEMO)], "--usr"),
        ([f"--usr=alice:{_SECRET}", "replay", str(DEMO)], "--usr"),
    ],
)
def test_the_value_of_an_unknown_option_is_not_echoed(
    typed: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = not_done(typed, capsys)
    assert (code, told.count("\n")) == (2, 1)
    assert named in told


@pytest.mark.parametrize(
    "command",
    [
        *("show", "stats", "scan", "why", "recover", "tail", "textconv", "replay", "web"),
        *(f"{name} {DEMO}" for name in ("show", "stats", "replay", "why", "tail")),
        *("report --out x.html", "export --to x.mcap", "replay --cassette once --broker h:1"),
    ],
)
@pytest.mark.parametrize("url", [_URL, _URL.removesuffix(".mcap"), f"s3:/{_SECRET}@h/x.mcap"])
def test_what_a_url_in_place_of_a_recording_may_hide_is_not_echoed(
    command: str,
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    child = ["--", "true"] if "cassette" in command else []
    code, told = not_done([*command.split(), url, *child], capsys)
    assert code in (1, 2) and told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("user", [["--user", f"alice:{_SECRET}"], [f"--user=alice:{_SECRET}"]])
def test_the_command_that_records_again_is_printed_without_its_password(
    user: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording = shutil.copy(DEMO, tmp_path / "demo.mcap")
    code, told = not_done(["replay", str(recording), *user, "--", "true"], capsys)
    assert code == 3 and "record again: kproxy replay" in told and "--user=alice:…" in told


def test_files(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        recorded = tmp_path / "recorded.mcap"
        Recording(recorded, start_ns=START_NS, schema_id="x", library_version="0").close()
        exported = [tmp_path / f"exported.{kind}" for kind in ("mcap", "jsonl", "parquet", "html")]
        for path in exported:
            assert main(["export", str(DEMO), "number:1", "--to", str(path)]) == 0
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (recorded, *exported)} == {0o600}


# ── recordings that somebody else has made ───────────────────────────────────────────────────

_WATCH = """
import json, os, sys
from kproxy.cli import main

BEGINNINGS = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "subprocess.",
              "socket.", "pickle.", "ctypes.", "shutil.", "os.remove", "os.rename", "os.mkdir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def refuse(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if writes or event.startswith(BEGINNINGS):
        os.write(2, f"REFUSED {event} {arguments}\\n".encode())
        os._exit(99)

sys.addaudithook(refuse)
sys.exit(max(main(typed) > 1 for typed in json.loads(sys.argv[1])))
"""

CODE = b"cos\nsystem\n(S'touch owned'\ntR."
"""A pickle that would run a program."""
TEXT = "$(touch owned)`touch owned`{0.__class__}%(a)s;__import__('os').system('touch owned')"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose content would be code, if anybody took it for that."""
    path = tmp_path_factory.mktemp("hostile") / "hostile.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id=TEXT, library_version=TEXT)
    for number, value in enumerate(
        [CODE, TEXT.encode(), json.dumps({"__reduce__": TEXT}).encode()]
    ):
        body = produce_request({0: batch(1, value=value)}, topic=TEXT)
        recording.write([request("Produce", 9, body, number + 1)])
    recording.close()
    return path


READING = (
    "show FILE",
    "show --json FILE",
    "show --frame 1 FILE",
    "show --records orders FILE",
    "stats FILE",
    "why FILE number:1",
    "textconv FILE",
    "scan FILE",
)


def watched(folder: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in a process that ends when one does more than to read."""
    typed = [sys.executable, "-B", "-c", _WATCH, json.dumps(commands)]
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True)


def test_only_data(hostile: Path, tmp_path: Path) -> None:
    commands = [
        [str(path) if word == "FILE" else word for word in typed.split()]
        for typed in READING
        for path in (hostile, DEMO)
    ]
    done = watched(tmp_path, *commands)
    assert (done.returncode, done.stderr.count("REFUSED")) == (0, 0), done.stderr
    assert TEXT in done.stdout and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_watch_of_only_data_sees_what_it_should(tmp_path: Path) -> None:
    """`export` writes a file, and so it is refused."""
    done = watched(tmp_path, ["export", str(DEMO), "--to", "b.jsonl"])
    assert done.returncode == 99 and "REFUSED open" in done.stderr
