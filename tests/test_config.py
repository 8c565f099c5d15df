"""`--config kproxy.toml`: every option can stand in it, and its mistakes are told all at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.cli import main
from kproxy.commands import config
from kproxy.commands.parser import command_parser

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
FILES = TEXTS.map(lambda text: f"a/{text}")
BY_PLACEHOLDER: dict[str | None, Any] = {
    "FILE": FILES,
    "DIR": st.just("."),
    "FILTER": TEXTS.map(lambda text: f"client_id:{'x' + text!r}") | st.just("api:Fetch"),
    "HOST:PORT": st.sampled_from(["127.0.0.1:1", "[::1]:0"]),
    "HOST:PORT[,…]": st.sampled_from(["kafka", "a:1,b:2"]),
    "SIZE": st.sampled_from(["1GiB", "5"]),
    "TIME": st.sampled_from(["10min", "2.5"]),
    "N": st.integers(2, 99),
    "ID=PORT": st.integers(1, 999).map(lambda port: f"7={port}"),
    "SIZE,TIME": st.sampled_from(["off", "1GiB,1h", "1h"]),
    "SIZE,TIME,N": st.sampled_from(["20GiB", "24h,100"]),
    "HOST": st.sampled_from(["me", "::1"]),
    "NAME:PASSWORD": st.just("ann:secret"),
    "PATH": st.sampled_from(["created_at", "items[*].id"]),
    "fast|recorded|FACTOR": st.sampled_from(["fast", "0.5"]),
    "LIST": st.just("records,order"),
    "WORD": st.sampled_from(["key", "json:at:time"]),
}
"""Placeholder of an option → values that it may have; others take any text."""
SPECIAL = {"bootstrap-env": st.just("KAFKA"), "broker-tls-name": st.just("kafka.example.com")}
SPECIAL |= {"fault": st.just("api=Fetch latency=3ms"), "record": FILES.map(lambda t: t + "/x.mcap")}
OMITTED = ("config", "print-config", "help", "no-record")


def value(key: str, action: Any) -> Any:
    """The values that a file may give an option."""
    if action.nargs == 0:
        return st.booleans()
    if action.choices:
        return st.sampled_from(action.choices)
    texts = SPECIAL.get(key, BY_PLACEHOLDER.get(action.metavar, TEXTS))
    return st.lists(texts, max_size=3) if isinstance(action.default, list) else texts


def files(command: str) -> Any:
    """All that may stand in a file for a command."""
    options = dict(config._options(command_parser(command)))
    values = {key: value(key, each) for key, each in options.items() if key not in OMITTED}
    return st.fixed_dictionaries({}, optional=values)


def parsed(command: str, *words: str) -> dict[str, Any]:
    options = vars(config.parse(command_parser(command), words))
    return options | {
        name: str(options[name]) for name in ("only", "keep_matching") if name in options
    }


@pytest.mark.parametrize("command", ["run", "replay"])
def test_what_is_printed_can_be_given_back(command: str, tmp_path: Path) -> None:
    files_typed = ["x.mcap"] if command == "replay" else []
    path = tmp_path / "kproxy.toml"

    @given(files(command))
    def check(written: dict[str, Any]) -> None:
        typed = [
            word
            for key, value in written.items()
            for each in (value if isinstance(value, list) else [value])
            if each is not False
            for word in [f"--{key}" if each is True else f"--{key}={each}"]
        ]
        direct = parsed(command, *typed, *files_typed, "--print-config")
        path.write_text(direct.pop("printed"))
        assert "secret" not in path.read_text()
        read = tomllib.loads(path.read_text())
        back = parsed(command, "--config", str(path), *files_typed, "--print-config")
        assert tomllib.loads(back.pop("printed")) == read
        if not written.get("user"):
            assert back == direct | {"config_rules": back["config_rules"]}
        given_ = {
            key: each for key, each in written.items() if each not in (False, []) and key != "user"
        }
        assert given_.items() <= read.items()

    check()


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path, capsys) -> None:
    path = tmp_path / "kproxy.toml"
    path.write_text(
        """
# a comment
listen = 19092
node_port = ["1=19101"]
idle-timeout = "soon"
quiet = "yes"
fault-rules = 7
only = ["api:Fetch"]
node-port = "1=19101"
no-record = true
record = "x.mcap"

[[fault]]
api = "Fetch"
latency = "long"
"""
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", "--config", str(path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"kproxy run: {path}:").partition(";")[0] for line in said] == [
        "3: listen: '19092': the port is missing",
        "4: node_port: there is no such option",
        "5: idle-timeout: 'soon' is not a duration such as 300ms or 1h",
        "6: quiet: it is true or false",
        "7: fault-rules: there is no such option",
        "8: only: it is one value, no list",
        '9: node-port: it is a list, as in ["…"]',
        "11: record: another key excludes it",
        "15: latency: 'long' is not a duration such as 300ms or 1h",
    ]
    assert said[1].endswith("; did you mean node-port?")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"listen = ", ":1: this is no TOML"),
        (b"record = '\xff'", ":1: this is no UTF-8"),
        (b'record = "a\\u0000b"', ":1: record: it is a text, as it is typed"),
        (b'fault = ["api=Nope latency=1s"]', ":1: fault: --fault 'api=Nope latency=1s': api: "),
        (b"fault = [3]", ":1: fault: "),
        (b"[fault]\napi = 'Fetch'", ":1: fault: it is a list"),
        (b"[run]\nlisten = 'a:1'", ":1: run: there is no such option"),
        (None, ": No such file or directory"),
    ],
)
def test_a_wrong_file_is_one_line(text: bytes | None, why: str, tmp_path, capsys) -> None:
    path = tmp_path / "kproxy.toml"
    if text is not None:
        path.write_bytes(text)
    try:
        code = main(["run", "--config", str(path)])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}{why}" in line


def test_what_is_typed_replaces_what_the_file_says(tmp_path, capsys) -> None:
    path = tmp_path / "kproxy.toml"
    path.write_text(
        "bootstrap = 'kafka'\nrecord = 'x.mcap'\nnode-port = ['1=19101']\nlocal = true\n"
        "[[fault]]\napi = 'Fetch'\nlatency = '3ms'\n"
    )
    typed = ["--no-record", "--node-port=2=19102", "--fault", "api=Produce latency=1s"]
    assert main(["run", "--config", str(path), *typed, "--print-config"]) == 0
    read = tomllib.loads(capsys.readouterr().out)
    assert read.pop("fault") == ["api=Produce latency=1s"]
    assert (read["bootstrap"], read["no-record"], read["local"]) == ("kafka", True, True)
    assert read["node-port"] == ["2=19102"] and "record" not in read
    assert main(["run", "--config", str(path), "--print-config"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["fault"] == [{"api": "Fetch", "latency": "3ms"}]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("--keep-matching is:error", "--keep-matching needs a size"),
        ("--control 0.0.0.0:0", "set KPROXY_CONTROL_TOKEN"),
        ("--broker-tls-ca {0}/none.pem", "none.pem"),
        ("--listen-tls {0}/x.mcap", "x.mcap is not PEM"),
        ("--record {0}/x.mcap", "x.mcap exists and is not overwritten"),
    ],
)
def test_printing_refuses_what_running_would_refuse(typed, why, tmp_path, capsys) -> None:
    (tmp_path / "x.mcap").touch()
    words = typed.format(tmp_path).split()
    assert main(["run", "--print-config", "--bootstrap", "a", *words]) == 2
    told = capsys.readouterr()
    assert why in told.err and not told.out


def test_numbers_are_printed_as_numbers(capsys) -> None:
    assert main(["run", "--print-config", "--bootstrap", "a", "--pending-requests-max=7"]) == 0
    read = tomllib.loads(capsys.readouterr().out)
    assert (read["connections-max"], read["pending-requests-max"]) == (10000, 7)
