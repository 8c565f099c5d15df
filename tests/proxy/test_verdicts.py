"""What a rule decides is carried out: hold, drop, respond in order, replace, end in the middle."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    OPAQUE,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Side,
)
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.redact import blank
from kproxy.proxy.settings import Settings
from kproxy.proxy.verdicts import Ending, RequestContext, Verdict
from kproxy.wire.protocol import messages
from tests.proxy.playing import BROKER, Player, end, heartbeat, heartbeat_answer, produce, request

HEARTBEAT = 12
SECOND = 1_000_000_000


@attrs.define(eq=False)
class ByCorrelationId:
    """Rules for the tests: a verdict per correlation id of a Heartbeat."""

    verdicts: dict[int, Verdict] = attrs.field(factory=dict)
    shown: list[RequestContext] = attrs.field(factory=list)
    ended: list[int] = attrs.field(factory=list)
    generation: int = 0
    api_key: int = HEARTBEAT

    def wants(self, api_key: int, api_version: int) -> bool:
        return api_key == self.api_key

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> Verdict | None:
        self.shown.append(context)
        return self.verdicts.get(int.from_bytes(frame[8:12], signed=True))

    def closed(self, connection: int) -> None:
        self.ended.append(connection)

    def want(self, api_key: int) -> None:
        """Have only requests of this API shown from now on."""
        self.api_key = api_key
        self.generation += 1


def player(rules: ByCorrelationId | None = None, **verdicts: Verdict) -> Player:
    """A machine with rules, or verdicts for correlation ids (`_3=…`), and one connection."""
    by_id = {int(name[1:]): verdict for name, verdict in verdicts.items()}
    rules = rules or ByCorrelationId(by_id)
    found = Player(cluster=Cluster(Settings([BROKER], listen_port=19092), rules))
    found.connect()
    return found


def heartbeats(*correlation_ids: int) -> bytes:
    return b"".join(map(heartbeat, correlation_ids))


def answers(*correlation_ids: int) -> bytes:
    return b"".join(map(heartbeat_answer, correlation_ids))


def wait(player: Player, nanoseconds: int) -> None:
    """Let time pass, waking the machine exactly when it wants to be woken."""
    player.advance(player.now + nanoseconds)


def ours(correlation_id: int, error_code: int = 27) -> Verdict:
    """The broker gets nothing, the client our own response."""
    response = Verdict((heartbeat_answer(correlation_id, error_code),), fault_ids=(7,))
    return Verdict(frames=(), response=response, fault_ids=(7,))


def known(**verdict) -> Verdict:
    """The broker's response becomes this, as is known before it has arrived."""
    return Verdict(response=Verdict(fault_ids=(7,), **verdict), fault_ids=(7,))


def changed(**verdict) -> Verdict:
    """The broker's response becomes this, as is decided when it is whole."""

    def respond(frame: bytes, now: int) -> Verdict:
        return Verdict(fault_ids=(7,), **verdict)

    return Verdict(response=respond, fault_ids=(7,))


@pytest.fixture(params=[known, changed])
def altered(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """Both ways to decide on a response."""
    return request.param


@pytest.fixture(params=["at once", "byte by byte"])
def feed(request: pytest.FixtureRequest) -> Callable[[Callable[[bytes], None], bytes], None]:
    """Bytes arrive in one chunk, or each by itself."""

    def feed(to: Callable[[bytes], None], data: bytes) -> None:
        size = len(data) if request.param == "at once" else 1
        for start in range(0, len(data), size):
            to(data[start : start + size])

    return feed


# ---- hold


def test_a_held_request_leaves_when_it_is_due_and_no_earlier(feed) -> None:
    play = player(_2=Verdict(delay_ns=SECOND))
    feed(play.client, heartbeats(1, 2, 3))
    arrived = play.frames(Side.CLIENT)[1].received_ns
    assert play.to_broker() == heartbeat(1)
    assert play.cluster.next_wake == arrived + SECOND
    play.perform(play.cluster.wake(arrived + SECOND - 1))
    assert play.to_broker() == heartbeat(1)
    play.perform(play.cluster.wake(arrived + SECOND))
    assert play.to_broker() == heartbeats(1, 2, 3)


def test_a_held_response_holds_those_behind_it_and_nothing_else(feed, altered) -> None:
    play = player(_1=altered(delay_ns=SECOND))
    play.connect(2)
    feed(play.client, heartbeats(1, 2))
    feed(play.broker, answers(1, 2))
    assert play.to_client() == b"" and play.to_broker() == heartbeats(1, 2)
    play.client(heartbeats(3))
    assert play.to_broker() == heartbeats(1, 2, 3)
    wait(play, SECOND)
    assert play.to_client() == answers(1, 2)


def test_what_is_delayed_pauses_its_own_connection_and_resumes_it() -> None:
    play = player(_1=Verdict(delay_ns=SECOND))
    play.client(heartbeats(1) + produce(1, correlation_id=2, size=2 << 20))
    assert play.paused == {(1, Side.CLIENT)}
    wait(play, SECOND)
    assert play.paused == set() and len(play.to_broker()) > 2 << 20


def test_a_rate_lets_bytes_leave_no_faster(altered) -> None:
    size = len(answers(1))
    play = player(_1=altered(bytes_per_second=size))
    play.client(heartbeats(1, 2))
    play.broker(answers(1, 2))
    wait(play, SECOND // 2)
    assert 0 < len(play.to_client()) <= size * 0.6
    wait(play, SECOND)
    assert play.to_client() == answers(1, 2)
    slow = play.frames(Side.BROKER)[0]
    assert slow.sent_ns > slow.received_ns, "it is not recorded as sent on"


def test_a_part_of_a_request_that_a_rule_waits_for_leaves_when_its_client_has_ended() -> None:
    play = player()
    play.client(heartbeats(1) + heartbeat(2)[:14])
    assert play.to_broker() == heartbeat(1)
    end(play, Side.CLIENT)
    assert play.to_broker() == heartbeat(1) + heartbeat(2)[:14]


# ---- drop


def test_a_dropped_request_never_arrives_and_is_recorded(feed) -> None:
    play = player(_2=Verdict(frames=(), fault_ids=(7,)))
    feed(play.client, heartbeats(1, 2, 3))
    assert play.to_broker() == heartbeats(1, 3)
    feed(play.broker, answers(1, 3))
    assert play.to_client() == answers(1, 3)
    request = play.frames(Side.CLIENT)[1]
    assert request.data == heartbeat(2) and request.flags & FAULTED and request.sent_ns == 0
    (closing,) = [frame for frame in play.frames(Side.BROKER) if frame.flags & UNANSWERED]
    assert closing.number == request.number and closing.fault_ids == (7,)


def test_a_dropped_response_never_arrives_and_is_recorded(feed, altered) -> None:
    play = player(_2=altered(frames=()))
    feed(play.client, heartbeats(1, 2, 3))
    feed(play.broker, answers(1, 2, 3))
    assert play.to_client() == answers(1, 3)
    assert [frame.data for frame in play.frames(Side.BROKER)] == [*map(heartbeat_answer, (1, 2, 3))]
    assert play.frames(Side.BROKER)[1].sent_ns == 0


# ---- respond


def test_our_own_response_waits_for_its_turn(feed) -> None:
    play = player(_2=ours(2))
    feed(play.client, heartbeats(1, 2, 3))
    assert play.to_broker() == heartbeats(1, 3) and play.to_client() == b""
    feed(play.broker, answers(1, 3))
    assert play.to_client() == answers(1) + heartbeat_answer(2, 27) + answers(3)
    response = play.frames(Side.BROKER)[1]
    assert response.flags & INJECTED and response.flags & FAULTED and response.fault_ids == (7,)


def test_our_own_response_waits_while_another_has_left_in_part() -> None:
    play = player(_2=ours(2))
    play.client(heartbeats(1, 2))
    play.broker(answers(1)[:9])
    play.client(heartbeats(3))
    assert play.to_client() == answers(1)[:9]
    play.broker(answers(1)[9:])
    assert play.to_client() == answers(1) + heartbeat_answer(2, 27)


def test_a_client_that_half_closes_gets_our_own_response_first() -> None:
    play = player(_1=Verdict((), response=Verdict((answers(1),), delay_ns=SECOND)))
    play.client(heartbeats(1))
    end(play, Side.CLIENT)
    assert play.eofs == [] and play.to_client() == b""
    wait(play, SECOND)
    assert play.to_client() == answers(1) and play.eofs == [(1, Side.BROKER)]


def test_a_client_that_knows_of_the_brokers_end_gets_no_response_of_ours_behind_it() -> None:
    play = player(_2=ours(2))
    end(play, Side.BROKER)
    assert play.eofs == [(1, Side.CLIENT)]
    play.client(heartbeats(2))
    assert play.to_client() == b"" and play.frames(Side.BROKER)[0].flags & UNANSWERED


# ---- replace


def test_a_replaced_response_is_recorded_as_it_came_and_as_it_left(feed) -> None:
    play = player(_2=changed(frames=(heartbeat_answer(2, 27),)))
    feed(play.client, heartbeats(1, 2, 3))
    feed(play.broker, answers(1, 2, 3))
    assert play.to_client() == answers(1) + heartbeat_answer(2, 27) + answers(3)
    response = play.frames(Side.BROKER)[1]
    assert response.data == heartbeat_answer(2) and response.sent == heartbeat_answer(2, 27)
    assert response.flags & REWRITTEN and response.flags & FAULTED


def test_a_replaced_request_is_recorded_as_it_came_and_as_it_left(feed) -> None:
    play = player(_2=Verdict(frames=(heartbeat(9),), fault_ids=(7,)))
    feed(play.client, heartbeats(1, 2, 3))
    assert play.to_broker() == heartbeats(1, 9, 3)
    request = play.frames(Side.CLIENT)[1]
    assert request.data == heartbeat(2) and request.sent == heartbeat(9)


def test_a_duplicated_request_is_answered_once(feed) -> None:
    play = player(_2=Verdict(frames=(heartbeat(2), heartbeat(2)), fault_ids=(7,)))
    feed(play.client, heartbeats(1, 2, 3))
    assert play.to_broker() == heartbeats(1, 2, 2, 3)
    feed(play.broker, answers(1, 2, 2, 3))
    assert play.to_client() == answers(1, 2, 3)
    numbers = [frame.number for frame in play.frames(Side.CLIENT)]
    assert numbers == [1, 2, 3, 4]


def test_the_secrets_of_what_a_rule_makes_of_a_request_are_not_recorded() -> None:
    token = messages.SaslAuthenticateRequest(auth_bytes=b"n,,n=me,r=secret-7Qx")
    frame = request(36, 2, token, 5)
    other = request(36, 2, attrs.evolve(token, auth_bytes=b"another-secret-7Qx"), 5)
    rules = ByCorrelationId({5: Verdict(frames=(other, frame))}, api_key=36)
    play = Player(cluster=Cluster(Settings([BROKER], listen_port=19092), rules))
    play.connect()
    play.client(frame)
    assert play.to_broker() == other + frame
    recorded = [b"".join([e.data, *(new for _, _, new in e.splices)]) for e in play.frames()]
    assert len(recorded) == 2 and not any(b"secret" in data for data in recorded)


# ---- end


@pytest.mark.parametrize(("ending", "abrupt"), [(Ending.DISCONNECT, False), (Ending.RESET, True)])
def test_a_connection_ends_in_the_middle_of_a_response(
    ending: Ending, abrupt: bool, feed, altered
) -> None:
    play = player(_2=altered(ending=ending, ending_bytes=6))
    feed(play.client, heartbeats(1, 2, 3))
    play.broker(answers(1, 2, 3))
    assert play.to_client() == answers(1) + answers(2)[:6]
    assert play.closed == {1: abrupt}
    (note,) = play.notes("closed")
    assert note.body["how"].startswith("fault")


def test_a_connection_ends_instead_of_a_request(feed) -> None:
    play = player(_2=Verdict(ending=Ending.DISCONNECT, delay_ns=SECOND, fault_ids=(7,)))
    feed(play.client, heartbeats(1, 2, 3))
    assert play.to_broker() == heartbeats(1) and play.closed == {}
    wait(play, SECOND)
    assert play.to_broker() == heartbeats(1) and play.closed == {1: False}
    ends = [frame for frame in play.frames(Side.BROKER) if frame.flags & UNANSWERED]
    assert sorted(frame.number for frame in ends) == [1, 2, 3]


def test_a_large_delayed_response_is_not_held_whole() -> None:
    fetch = request(1, 4, messages.FetchRequest(), 1)
    play = player(ByCorrelationId({1: known(delay_ns=SECOND)}, api_key=1))
    play.client(fetch)
    size = 3 << 20
    answer = (size + 4).to_bytes(4) + (1).to_bytes(4) + bytes(size)
    for start in range(0, len(answer), 1 << 18):
        if (1, Side.BROKER) in play.paused:
            break
        play.broker(answer[start : start + (1 << 18)])
    assert (1, Side.BROKER) in play.paused and play.to_client() == b""
    sent = start
    wait(play, SECOND)
    assert play.to_client() == answer[:sent] and play.paused == set()


def test_a_black_hole_swallows_both_directions_until_a_side_ends() -> None:
    play = player(_2=Verdict(ending=Ending.BLACKHOLE, fault_ids=(7,)))
    play.client(heartbeats(1, 2, 3))
    play.broker(answers(1))
    assert play.to_broker() == heartbeats(1) and play.to_client() == b"" and play.closed == {}
    end(play, Side.CLIENT)
    assert play.closed and play.eofs == []


# ---- the rules themselves


def test_rules_may_change_while_connections_stand() -> None:
    rules = ByCorrelationId({2: ours(2)}, api_key=0)
    play = player(rules)
    play.client(heartbeats(2))
    rules.want(HEARTBEAT)
    play.client(heartbeats(2))
    rules.want(0)
    play.client(heartbeats(2))
    assert play.to_broker() == heartbeats(2, 2) and len(rules.shown) == 1
    play.broker(answers(2, 2))
    assert play.to_client() == answers(2) + heartbeat_answer(2, 27) + answers(2)


def test_rules_are_told_who_asks_and_when_it_ends() -> None:
    rules = ByCorrelationId()
    play = player(rules)
    play.client(heartbeats(1))
    (context,) = rules.shown
    assert (context.connection, context.number, context.node_id) == (1, 1, None)
    assert context.client_address == "127.0.0.1:5000"
    end(play, Side.CLIENT)
    play.broker(answers(1))
    end(play, Side.BROKER)
    assert rules.ended == [1]


@pytest.mark.parametrize("side", Side)
def test_what_kproxy_fails_on_is_recorded_as_it_came_and_the_end_is_its_own(side: Side) -> None:
    def fails(frame: bytes, now: int) -> Verdict | None:
        raise ZeroDivisionError

    class Broken(ByCorrelationId):
        def on_request(self, context: RequestContext, frame: bytes, now: int) -> Verdict | None:
            return fails(frame, now)

    played = player(
        (Broken if side is Side.CLIENT else ByCorrelationId)({2: Verdict(response=fails)})
    )
    came = {Side.CLIENT: heartbeat(2), Side.BROKER: heartbeat_answer(2)}[side]
    with pytest.raises(ZeroDivisionError):
        played.client(heartbeat(2))
        played.broker(came)
    played.perform(played.cluster.closed(1, side, "defect", "", played.now))
    (failed,) = [frame for frame in played.frames(side) if frame.data]
    # Of a request, it was not known yet that its connection needs no login.
    assert failed.data == (blank(came, side) if side is Side.CLIENT else came)
    assert failed.api_key == HEARTBEAT and not failed.flags & (TRUNCATED | OPAQUE)
    (note,) = played.notes("closed")
    assert [(each["side"], each["how"]) for each in note.body["ends"]] == [("proxy", "defect")]
    assert "side" not in note.body and played.closed == {1: True}


@pytest.mark.parametrize("delay_ns", [0, SECOND])
def test_what_is_behind_the_end_of_a_connection_is_shown_to_no_rule(delay_ns: int) -> None:
    ending = Verdict(delay_ns=delay_ns, ending=Ending.DISCONNECT)
    rules = ByCorrelationId({2: ending})
    played = player(rules)
    played.client(heartbeats(1, 2, 3))
    if delay_ns:
        played.client(heartbeats(4))
        played.advance(played.now + 2 * SECOND)
    assert len(rules.shown) == 2
    assert played.closed == {1: False} and played.to_broker() == heartbeats(1)
    assert len(played.frames(Side.CLIENT)) == (4 if delay_ns else 3)
