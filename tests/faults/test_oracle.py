"""Error responses beside Kafka's own, for every API and version.

`data/error-responses.txt` says, for generated requests, where Kafka's `getErrorResponse` puts the
error code, which values of the request it echoes, and what else it sets.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.verdicts import Verdict
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.generate import snake_case
from tests.faults.making import (
    KINDS,
    answer_body,
    ask,
    frame_of,
    hold_for,
    request_frame,
    respond,
    response_body,
    response_frame,
    sample,
)

DATA = Path(__file__).parent / "data" / "error-responses.txt"
LINE = re.compile(
    r"(\d+) (\w+) (?:3\.9\.2)? ?v(\d+)-(\d+) (\(.*?\)) \| MAP (\[.*?\]) \| other (.*)"
)

OURS = {"error_message"}
"""Where kproxy says that the error is its own."""


METADATA, DESCRIBE_LOG_DIRS = 3, 35
OF_THE_BROKERS = {(METADATA, version): "topics.error_code" for version in range(13)} | {
    (DESCRIBE_LOG_DIRS, version): "results.error_code" for version in range(3)
}
"""Versions in which the error is put into the broker's response, and where: Metadata has to name
brokers, and without log directories DescribeLogDirs has no place for a code."""


class Kafkas(NamedTuple):
    """What Kafka does in one version."""

    codes: tuple[str, ...]
    echoes: list[str]
    other: dict[str, Any]


def oracle() -> dict[tuple[int, int], Kafkas]:
    """(api key, version) → what Kafka does; the newest release that knows it has the last word."""
    found: dict[tuple[int, int], Kafkas] = {}
    for line in DATA.read_text().splitlines():
        match = LINE.match(line)
        if match is None:
            assert "EXC" in line, line
            continue
        key, _, first, last, codes, echoes, other = match.groups()
        for version in range(int(first), int(last) + 1):
            found[int(key), version] = Kafkas(
                literal_eval(codes), literal_eval(echoes), json.loads(other)
            )
    return found


ORACLE = oracle()


def values(body: Any, path: str) -> list[Any]:
    """The values at a path such as `Topics[].Partitions[].ErrorCode`."""
    found = [body]
    for part in path.split("."):
        name = snake_case(part.removesuffix("[]"))
        below = [getattr(one, name) for one in found if one is not None]
        found = [one for each in below for one in each or ()] if part.endswith("[]") else below
    return found


def codes(value: Any, fields: tuple[schema.Field, ...], path: str = "") -> Iterator[str]:
    """The paths of the fields that hold the error's code."""
    for field in fields:
        below = getattr(value, field.name)
        here = f"{path}.{field.name}" if path else field.name
        if field.type == "int16" and field.name.endswith("error_code") and below == -1:
            yield here
        for one in (below if isinstance(below, list) else [below]) if field.fields else ():
            if one is not None:
                yield from codes(one, field.fields, here)


def test_the_oracle_knows_every_version() -> None:
    assert [kind for kind in KINDS if kind not in ORACLE] == []


def refused(kind: tuple[int, int], request: Any) -> Verdict | None:
    """What becomes of a request that is to fail before the broker gets it."""
    name = schema.api_name(kind[0])
    rules = Rules([Rule(api=name, error="UNKNOWN_SERVER_ERROR", phase="before")])
    return ask(rules, request_frame(*kind, request))


# All versions: where the code stands changes in many, and each costs a millisecond.
def test_an_error_response_is_kafkas() -> None:
    hold_for([kind for kind in KINDS if kind not in OF_THE_BROKERS], _error_response_is_kafkas)


def _error_response_is_kafkas(kind: tuple[int, int]) -> None:
    api_key, version = kind
    kafkas, name = ORACLE[kind], schema.api_name(api_key)
    request = sample(api_key, version)
    if name == "Produce":
        request.acks = -1
    body = answer_body(refused(kind, request), api_key, version)
    message = schema.message(api_key, schema.RESPONSE)
    assert message is not None
    expected = {".".join(map(snake_case, p.replace("[]", "").split("."))) for p in kafkas.codes}
    assert set(codes(body, message.fields)) == expected
    for echo in kafkas.echoes:
        asked, _, answered = echo.partition(" -> ")
        assert sorted(set(map(str, values(request, asked)))) == sorted(
            set(map(str, values(body, answered)))
        ), echo
    for path, value in kafkas.other.items():
        check_other(name, path, value, body)


def test_an_error_is_put_into_the_brokers_response() -> None:
    hold_for(OF_THE_BROKERS, _error_is_put_into_it)


def _error_is_put_into_it(kind: tuple[int, int]) -> None:
    verdict = refused(kind, sample(*kind))
    assert verdict is not None and verdict.frames is None and verdict.own_response is None
    told = respond(verdict, response_frame(*kind, sample(*kind, schema.RESPONSE)))
    message = schema.message(kind[0], schema.RESPONSE)
    assert message is not None
    body = response_body(frame_of(told), *kind)
    assert set(codes(body, message.fields)) == {OF_THE_BROKERS[kind]}


def check_other(name: str, path: str, value: Any, body: Any) -> None:
    """What Kafka sets beside the code, we set."""
    field = snake_case(path.rsplit(".", 1)[-1])
    if field in OURS or field in ("resource_type", "user", "topic_name"):
        return  # the first is our own; the others echo the request, and the oracle's was another
    for ours in values(body, path):
        if isinstance(ours, bytes):
            ours = ours.decode()
        elif hasattr(ours, "hex") and not isinstance(ours, float):
            ours = ours.hex
        if value is None and ours in ([], ""):
            continue  # Fetch of 3.9.2 has null records where 4.4.0 has empty ones
        assert ours == value, (name, path)
