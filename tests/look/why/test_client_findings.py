"""Findings about clients and their connections: quotas, small requests, logins, brokers."""

from __future__ import annotations

import attrs
import pytest

from kproxy.exchange import notes
from kproxy.exchange.derived import PENDING_REQUESTS_MAX
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import Side
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.wire.protocol import error_code
from kproxy.wire.protocol import messages as M
from tests.exchange.batches import batch
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import MS, START_NS
from tests.look.why.test_findings import found, one
from tests.look.why.traffic import Traffic, beat, ends, metadata, produce


def closed(
    traffic: Traffic, at: int, connection: int, how: str, reason: str, side: str = "client",
    node_id: int | None = None,
) -> None:  # fmt: skip
    """A connection of 127.0.0.1 ends at a time in milliseconds, for a reason."""
    at_ns = START_NS + at * MS
    about = {"node_id": node_id, "client_address": "127.0.0.1:5000"}
    side_ends = [SideEnd(side, how, at_ns)]
    traffic.entries.append(notes.closed(connection, at_ns, about, how, reason, side, side_ends))


# ---- topics


@pytest.mark.parametrize("is_created", [False, True])
def test_a_topic_that_clients_ask_for_in_vain(tmp_path, is_created):
    traffic = Traffic()
    for nth, client in enumerate(("typo", "typo", "group")):
        traffic.add(20_000 * nth, *metadata({}, "ordrs", error_code=3), client=client)
    if is_created:
        traffic.add(60_000, *metadata({0: 1}, "ordrs"), client="typo")
        assert not found(traffic, tmp_path, "topic that does not exist")
        return
    finding = one(traffic, tmp_path, "topic that does not exist")
    assert finding.text == (
        "Topic ordrs does not exist: typo (127.0.0.1), group (127.0.0.1) ask for it in vain, 3"
        " times."
    )
    assert finding.words == ("why", "topic:ordrs")
    assert traffic.story(tmp_path, "topic", "ordrs")[0] == finding.text


# ---- quotas and requests


def throttled(throttle_ms: int) -> Traffic:
    """A Fetch whose answer tells to wait, and one that is sent all the same."""
    answer = fetch_response({0: b""})
    answer.throttle_time_ms = throttle_ms
    asked = fetch_request({0: 5})
    asked.max_wait_ms = 500
    traffic = Traffic()
    traffic.add(0, "Fetch", 11, asked, answer, client="greedy")
    traffic.add(2, "Fetch", 11, asked, fetch_response({0: b""}), took_ms=10_000, client="greedy")
    return traffic


def test_a_wait_for_a_quota_is_not_the_brokers_time(tmp_path):
    traffic = throttled(10_000)
    finding = one(traffic, tmp_path, "quota")
    assert finding.text == ("The broker's quota held greedy (127.0.0.1) for 10.0 s (Fetch #1).")
    assert " ".join(finding.evidence) == (
        "Fetch #2, sent all the same, waited 10.0 s for that: it is throttling, not the broker's"
        " work. Quotas of its user or client id are the limit: consumer_byte_rate"
        " or request_percentage."
    )
    story = traffic.story(tmp_path, "number", "2")
    assert (
        "9.5 s of its time is the throttling that the response to Fetch #1 announced: a quota is"
        " exceeded, and the broker reads nothing of the connection meanwhile."
    ) in story
    assert not [line for line in story if line.startswith("The broker itself took")]
    data = light_data([traffic.recorded(tmp_path)])
    assert not [each for each in findings(data) if "#2" in each.text]
    assert not found(throttled(50), tmp_path, "quota")


def in_a_row(records: int, requests: int, pause_ms: int | None = None) -> Traffic:
    """Produces of so many records, all at once or each with a pause behind the one before."""
    traffic = Traffic()
    for nth in range(requests):
        at, took = (0, 100 + nth) if pause_ms is None else ((1 + pause_ms) * nth, 1)
        traffic.add(at, *produce(batch(records)), took_ms=took, client="chatty")
    return traffic


def test_requests_of_one_record(tmp_path):
    finding = one(in_a_row(1, 300), tmp_path, "requests of one record")
    assert finding.text == (
        "chatty (127.0.0.1) sent 300 records in 300 Produce requests, about one each."
    )
    assert finding.evidence[1].startswith("A larger linger.ms (5 to 100) and batch.size")
    waits = one(in_a_row(1, 300, pause_ms=1), tmp_path, "requests of one record").evidence[0]
    assert waits.startswith("299 of them came as soon as the one before had its answer: so it is")
    for others in (in_a_row(5, 300), in_a_row(1, 50), in_a_row(1, 300, pause_ms=50)):
        assert not found(others, tmp_path, "requests of one record")


def test_the_limit_of_pending_requests(tmp_path):
    traffic = in_a_row(1, PENDING_REQUESTS_MAX + 2)
    for at, each in enumerate(traffic.entries):
        if getattr(each, "number", 0) > PENDING_REQUESTS_MAX:  # sent on after another answer
            sent_ns = START_NS + (100 + each.number - PENDING_REQUESTS_MAX - 1) * MS
            sent = "sent_ns" if each.side is Side.CLIENT else "request_sent_ns"
            traffic.entries[at] = attrs.evolve(each, **{sent: sent_ns})
    finding = one(traffic, tmp_path, "limit of pending requests")
    assert finding.text == (
        "kproxy's limit of 1000 pending requests held 2 requests of chatty (127.0.0.1)."
    )
    assert finding.evidence[0].startswith("Produce #1002 waited longest, 101 ms: ")
    story = traffic.story(tmp_path, "number", "1001")
    assert [line for line in story if line.startswith("kproxy added 100 ms: 1000 requests")]
    shown = [each.text for each in findings(light_data([traffic.recorded(tmp_path)]))]
    assert not [each for each in shown if "itself held" in each or "more connections" in each]


@pytest.mark.parametrize(("requests", "is_found"), [(1, True), (4, False)])
def test_producers_made_anew(requests, is_found, tmp_path):
    traffic = Traffic()
    for nth in range(25):
        client, connection = f"web-{nth}", 10 + nth
        for each in range(requests):
            at = 10 * nth + each
            traffic.add(at, *produce(batch(1)), connection=connection, client=client)
        ends(traffic, 10 * nth + 8, connection=connection)
    texts = [each.text for each in found(traffic, tmp_path, "producers made anew")]
    said = "25 connections of web-0 carried a single Produce each."
    assert texts == ([said] if is_found else [])


# ---- connections


def test_clients_whose_tls_fails(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    plain = "it does not speak TLS: set security.protocol=SSL (or SASL_SSL) in the client"
    for nth in range(3):
        closed(traffic, 100 + nth, 10 + nth, "tls", plain)
    needs = "TLS failed: it requires a certificate (--broker-tls-cert shows it one)"
    closed(traffic, 200, 20, "tls", needs, "broker", 2)
    closed(traffic, 300, 30, "reset", "reset by the peer")
    for nth in range(5):
        closed(traffic, 400, 40 + nth, "tls", f"no cipher in common {nth}")
    first, second, *_, last = found(traffic, tmp_path, "failed TLS")
    assert last.evidence == ("It is so 2 more times, with other clients or for other reasons.",)
    assert (
        first.text == "3 connections of clients of 127.0.0.1 failed in TLS: it does not speak TLS."
    )
    assert first.evidence == ("What helps: set security.protocol=SSL (or SASL_SSL) in the client.",)
    assert first.command(["a"]) == "kproxy why a connection:10"
    assert second.text == (
        "1 connection of clients of 127.0.0.1 failed in TLS with broker 2: it requires a"
        " certificate (--broker-tls-cert shows it one)."
    )
    assert not found(traffic, tmp_path, "failed connections")


def test_logins_that_fail(tmp_path):
    traffic = Traffic()
    for nth in range(2):
        chosen = M.SaslHandshakeRequest(mechanism="PLAIN")
        offered = M.SaslHandshakeResponse(mechanisms=["PLAIN"])
        traffic.add(10 * nth, "SaslHandshake", 1, chosen, offered, connection=5 + nth)
        refused = M.SaslAuthenticateResponse(error_code=error_code("SASL_AUTHENTICATION_FAILED"))
        asked = M.SaslAuthenticateRequest(auth_bytes=b"")
        traffic.add(10 * nth + 5, "SaslAuthenticate", 1, asked, refused, connection=5 + nth)
        wrong = "the broker refuses the login with PLAIN: user or password is wrong"
        closed(traffic, 10 * nth + 8, 5 + nth, "eof", wrong, "broker")
    wants = "the broker hung up on the first request after ApiVersions: if it wants SASL, set that"
    closed(traffic, 90, 30, "eof", wants, "broker")
    finding = one(traffic, tmp_path, "failed logins")
    assert finding.text == (
        "The login of a with PLAIN failed 2 times: SASL_AUTHENTICATION_FAILED (first #2)."
    )
    assert finding.evidence[1].startswith("User, password or token must be those")
    assert one(traffic, tmp_path, "failed connections").text == (
        "1 connection of clients of 127.0.0.1 ended: the broker hung up on the first request after"
        " ApiVersions."
    )


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        (0, "The broker refused the first message: it has no such user for this mechanism."),
        (1, "The broker took the first message and refused the second: the password is wrong."),
    ],
)
def test_which_message_of_scram_was_refused(tmp_path, taken, says):
    traffic = Traffic()
    chosen = M.SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
    traffic.add(0, "SaslHandshake", 1, chosen, M.SaslHandshakeResponse())
    for nth, error in enumerate(["NONE"] * taken + ["SASL_AUTHENTICATION_FAILED"]):
        answered = M.SaslAuthenticateResponse(error_code=error_code(error))
        asked = M.SaslAuthenticateRequest(auth_bytes=b"")
        traffic.add(5 + nth, "SaslAuthenticate", 1, asked, answered)
    assert one(traffic, tmp_path, "failed logins").evidence[0] == says


UNREACHED = "broker that could not be reached"


def test_brokers_that_could_not_be_reached(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    for nth, node_id in enumerate((None, 2, 1, 2)):
        reason = "no broker: b1:9092 refuses connections"
        closed(traffic, 100 + nth, 10 + nth, "down", reason, "broker", node_id)
    closed(
        traffic, 110, 20, "down", "b3:9092: TLS failed: no version of TLS in common", "broker", 3
    )
    findings = found(traffic, tmp_path, UNREACHED)
    why = "no broker: b1:9092 refuses connections."
    tls = "b3:9092: TLS failed: no version of TLS in common."
    assert [(each.text, *each.evidence) for each in findings] == [
        ("Broker 1 could not be reached at 22:13:20.102.",
         f"1 connection ended because of that: {why}"),
        ("Broker 2 could not be reached between 22:13:20.101 and 22:13:20.103.",
         f"2 connections ended because of that: {why}"),
        ("TLS with broker 3 failed at 22:13:20.110.",
         f"1 connection ended because of that: {tls}"),
        ("No bootstrap address could be reached at 22:13:20.100.",
         f"1 connection ended because of that: {why}"),
    ]  # fmt: skip
    assert findings[1].command(["a.mcap"]) == "kproxy why a.mcap connection:11"


def test_an_outage_is_as_long_as_kproxy_knew_it(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    why = "no broker: b1:9092 refuses connections"
    closed(traffic, 100, 10, "down", why, "broker", 1)
    for node_id, *times_ms in ((1, 100, 150_100), (2, 50, 60), (2, 70, 30_070), (None, 200, None)):
        from_ns, until_ns = (None if at is None else START_NS + at * MS for at in times_ms[-2:])
        for end_ns in dict.fromkeys((None, until_ns)):
            traffic.entries.append(notes.outage(node_id, why, from_ns, end_ns))
    findings = found(traffic, tmp_path, UNREACHED)
    longest = "Broker 2 could not be reached 2 times, the longest for 30.0 s,"
    assert [(each.text, *each.evidence) for each in findings] == [
        ("Broker 1 could not be reached for 2.5 min, from 22:13:20.100 to 22:15:50.100.",
         f"1 connection ended because of that: {why}."),
        (f"{longest} from 22:13:20.070 to 22:13:50.070.", f"kproxy found it out: {why}."),
        ("No bootstrap address could be reached from 22:13:20.200 on.",
         f"kproxy found it out: {why}."),
    ]  # fmt: skip


# ---- permissions


def test_permissions_that_brokers_refuse(tmp_path):
    """Of each user apart, where users are known; not what a rule made."""
    traffic = Traffic()
    refused = {name: error_code(f"{name}_AUTHORIZATION_FAILED") for name in ("GROUP", "CLUSTER")}
    joined = M.JoinGroupResponse(error_code=refused["GROUP"])
    for user, times in (("ann", 2), ("bob", 1), ("rule", 1)):
        traffic.entries.append(
            notes.user(1, START_NS + traffic.number * MS, user, traffic.number + 1)
        )
        for _ in range(times):
            asked = M.JoinGroupRequest(group_id="bills")
            traffic.add(traffic.number, "JoinGroup", 5, asked, joined)
    traffic.inject()
    answer = M.InitProducerIdResponse(error_code=refused["CLUSTER"])
    traffic.add(9, "InitProducerId", 3, M.InitProducerIdRequest(), answer, connection=2)
    starts = [
        each.text.partition(" (first")[0] for each in found(traffic, tmp_path, "refused permission")
    ]
    assert starts == [
        "a (127.0.0.1) as user ann may not use group bills: JoinGroup was refused 2 times",
        "a (127.0.0.1) as user bob may not use group bills: JoinGroup was refused 1 time",
        "a (127.0.0.1) may not use the cluster: InitProducerId was refused 1 time",
    ]
    assert "Its users are ann, bob, rule." in traffic.story(tmp_path, "client_id", "a")
