"""`kproxy why client_id:C`: the life of a client."""

from __future__ import annotations

from kproxy.cli import main
from kproxy.history import connections
from kproxy.wire.protocol import messages as M
from tests.look.why.test_findings import member
from tests.look.why.test_key import fetch, metadata, produce
from tests.look.why.test_transactional_id import initialize
from tests.look.why.traffic import Traffic, ends


def test_the_life_of_a_client(tmp_path):
    software = M.ApiVersionsRequest(client_software_name="kafka-go", client_software_version="2.1")
    traffic = Traffic()
    traffic.add(0, "ApiVersions", 3, software, M.ApiVersionsResponse(), client="shop")
    traffic.add(10, *metadata(2), client="shop")
    member(traffic, 20, "shop", 1, 0)
    traffic.add(30, *initialize(0), client="shop")
    traffic.add(40, *produce(0, -1, b"k", error=10), client="shop")
    traffic.add(50, *produce(0, 1, b"k")[:3], None, client="shop", connection=2)
    ends(traffic, 60, connection=2)
    traffic.add(70, *metadata(2), client="other", connection=2)
    traffic.add(5070, *fetch(0, 0, b"k"), client="shop")
    told = traffic.story(tmp_path, "client_id", "shop")
    assert told == [
        (
            "Client shop (127.0.0.1): 8 requests on 2 connections, from ApiVersions #1 of"
            " 22:13:20.000 to Fetch #9 of 22:13:25.070."
        ),
        "Its software is kafka-go 2.1.",
        (
            "It used Produce v8 ×2, ApiVersions v3 ×1, Metadata v8 ×1, JoinGroup v8 ×1,"
            " SyncGroup v3 ×1, InitProducerId v4 ×1, Fetch v11 ×1."
        ),
        "It named groups: billing (2 requests).",
        "It named transactional ids: pay (1 request).",
        "It tried to write to topics: orders (2 requests).",
        "It fetched from topics: orders (1 request).",
        "MESSAGE_TOO_LARGE of Produce, #6 of 22:13:20.040.",
        "1 request was never answered, first Produce #7.",
        "22:13:20.060 it asked nothing for 5.0 s, until Fetch #9.",
        (
            "22:13:20.060 connection 2 to broker 1, opened at 22:13:20.000, with 1 request, ended"
            " at 22:13:20.060, first by the client (reset)."
        ),
        "Connection 1: the end is not in the recording.",
    ]


def test_a_connection_is_told_of_however_many_there_are_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "_KEPT_MAX", 3)
    traffic = Traffic()
    traffic.add(0, *metadata(2), client="shop")
    ends(traffic, 10)
    for other in range(2, 9):
        traffic.add(10 * other, *metadata(2), client="other", connection=other)
        ends(traffic, 10 * other + 5, connection=other)
    told = "at 22:13:20.010, first by the client (reset)."
    assert traffic.story(tmp_path, "client_id", "shop")[-1].endswith(told)
    assert "ended at 22:13:20.010." in "".join(traffic.story(tmp_path, "connection", "1"))


def test_what_is_routine_is_apart_from_errors(tmp_path):
    traffic = Traffic()
    asked, answer = M.JoinGroupRequest(group_id="g"), M.JoinGroupResponse(error_code=79)
    traffic.add(0, "JoinGroup", 5, asked, answer, client="shop")
    routine = "Routine answers, which are no failures: MEMBER_ID_REQUIRED of JoinGroup ×1."
    told = traffic.story(tmp_path, "client_id", "shop")
    assert f"{routine} It got no other answer." in told
    assert not [line for line in told if line.startswith("MEMBER_ID_REQUIRED")]
    traffic.add(5, "JoinGroup", 5, asked, None, client="shop")
    told = traffic.story(tmp_path, "client_id", "shop")
    assert f"{routine} It got no other answer." in told, "one that did not come is none"
    traffic.add(10, *metadata(2), client="shop")
    assert routine in traffic.story(tmp_path, "client_id", "shop")


def test_a_client_that_there_is_not(tmp_path, capsys):
    traffic = Traffic()
    traffic.add(0, *metadata(2), client="shop")
    path = str(traffic.recorded(tmp_path))
    assert main(["why", path, "client_id:shp"]) == 1
    said = "there is no client_id shp in the recording (did you mean shop?)"
    assert capsys.readouterr().err == f"kproxy why: {said}\n"
    assert main(["why", path, "transactional_id:pay"]) == 1
    said = "there is no transactional_id pay in the recording, nor any other"
    assert capsys.readouterr().err == f"kproxy why: {said}\n"
