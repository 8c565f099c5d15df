"""The users of logins: known with `record_users` from the login on; nothing else of a token is."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy.exchange.entries import Frame, Side
from kproxy.exchange.pairing import pair
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.mechanisms import USER_CHARACTERS_MAX, user_in
from kproxy.proxy.settings import Settings
from kproxy.recording import Recording, read
from tests.proxy.playing import BROKER, Player, end, heartbeat, heartbeat_answer
from tests.proxy.test_logins import FAILED, authentication, log_in, shake
from tests.recording.making import SETTINGS

SECRET = "s3cr3t-Passw0rd"


def bearer(claims: object, parts: str = "eyJhbGciOiJub25lIn0.{}." + SECRET) -> bytes:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"n,,\x01auth=Bearer {parts.format(encoded)}\x01\x01".encode()


@pytest.mark.parametrize(
    ("mechanism", "token", "user"),
    [
        ("PLAIN", b"\0alice\0" + SECRET.encode(), "alice"),
        ("PLAIN", b"other\0alice\0" + SECRET.encode(), "alice"),
        ("PLAIN", SECRET.encode(), ""),
        ("PLAIN", b"\0alice\0s3\0cr3t", ""),
        ("PLAIN", b"\0al\xffce\0s3cr3t", ""),
        ("PLAIN", "\0a\x1b[2J\u202eb\0s3cr3t".encode(), "a\\x1b[2J\\u202eb"),
        ("PLAIN", b"\0" + 999 * b"a" + b"\0s3cr3t", "a" * (USER_CHARACTERS_MAX - 1) + "…"),
        ("SCRAM-SHA-256", b"n,,n=a=2Cb=3D2C,r=s3cr3t", "a,b=2C"),
        ("SCRAM-SHA-512", b"n,a=bob,n=bob,r=s3cr3t,ext=1", "bob"),
        ("SCRAM-SHA-256", b"n,,n=id-of-a-delegation-token,r=s3cr3t,tokenauth=true", ""),
        ("SCRAM-SHA-256", b"\0alice\0s3cr3t", ""),
        ("SCRAM-SHA-256", b"c=biws,r=s3cr3t,p=proof", ""),
        ("OAUTHBEARER", bearer({"sub": "carol", "exp": 1}), "carol"),
        ("OAUTHBEARER", bearer({"sub": ["carol"]}), ""),
        ("OAUTHBEARER", bearer({}), ""),
        ("OAUTHBEARER", bearer([]), ""),
        ("OAUTHBEARER", bearer({"sub": "carol"}, SECRET), ""),
        ("GSSAPI", b"\0alice\0s3cr3t", ""),
        ("AWS_MSK_IAM", b'{"sub": "AKIA"}', ""),
    ],
)  # fmt: skip
def test_the_user_in_a_token(mechanism: str, token: bytes, user: str) -> None:
    assert user_in(mechanism, token) == user


def connected(record_users: bool = True) -> Player:
    player = Player(Settings([BROKER], 19092, record_users=record_users))
    player.connect()
    return player


def ask(player: Player, correlation_id: int = 7) -> None:
    player.client(heartbeat(correlation_id))
    player.broker(heartbeat_answer(correlation_id))


def told(player: Player) -> list[tuple[str, int]]:
    return [(each.body["user"], each.body["user_since"]) for each in player.notes("user")]


def test_a_user_is_known_from_the_login_on_and_may_change(tmp_path) -> None:
    """While it is recorded, in the file, and in the next file alone."""
    player = connected()
    shake(player, "PLAIN")
    log_in(player, b"\0alice\0one")
    ask(player)
    shake(player, "SCRAM-SHA-256")
    log_in(player, b"n,,n=bob,r=1", answer=b"r=12,s=3,i=4096")
    log_in(player, b"c=biws,r=12,p=5", answer=b"v=6")
    run = Recording(tmp_path / "run.mcap", rotate_bytes=1, **SETTINGS)
    run.write(player.entries)
    first = len(player.entries)
    ask(player, 8)
    shake(player, "SCRAM-SHA-256")
    log_in(player, b"n,,n=bob,r=1", FAILED)
    run.write(player.entries[first:])
    run.close()
    users = [None, "alice", "alice", "alice", "alice", "bob", "bob", "bob", "bob"]
    assert [each.user for each in pair(player.entries)] == users
    assert [each.user for each in read(run.paths)] == users
    assert [each.user for each in read(run.paths[-1])] == users[-3:]
    assert [each.number for each in read(run.paths, "user:alice")] == [2, 3, 4, 5]
    assert told(player) == [("alice", 2), ("bob", 6)], "each once"
    assert [each.user for each in player.cluster.connections] == ["bob"]


def test_a_login_that_a_rule_kept_from_the_broker_is_followed_by_one_that_counts() -> None:
    rules = Rules([Rule(api="SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", times=1)])
    player = Player(cluster=Cluster(Settings([BROKER], 19092, record_users=True), rules))
    player.connect()
    shake(player, "PLAIN")
    player.client(authentication(b"\0alice\0one"))
    shake(player, "PLAIN")
    log_in(player, b"\0alice\0one")
    ask(player)
    assert told(player) == [("alice", 4)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_refused_login_names_its_user(mechanism: str) -> None:
    player = connected()
    shake(player, mechanism)
    log_in(player, b"\0bob\0secret-1" if mechanism == "PLAIN" else b"n,,n=bob,r=1", FAILED)
    end(player, Side.BROKER)
    end(player, Side.CLIENT)
    (note,) = player.notes("closed")
    assert note.body["reason"].startswith(
        f"the broker refuses the login of user bob with {mechanism}"
    )
    assert note.body["reason"] in player.logs[-1]
    assert told(player) == [("bob", 2)]


def test_a_bare_token_has_logged_in_when_a_request_is_answered() -> None:
    player = connected()
    shake(player, "PLAIN", version=0)
    token = b"\0alice\0secret-1"
    player.client(len(token).to_bytes(4) + token)
    player.broker(bytes(4))
    assert told(player) == []
    ask(player)
    assert told(player) == [("alice", 3)]


def test_without_the_option_no_user_is_recorded() -> None:
    player = connected(record_users=False)
    shake(player, "PLAIN")
    log_in(player, b"\0alice\0secret-1", FAILED)
    end(player, Side.BROKER)
    assert "alice" not in str(player.entries) + str(player.logs)


tokens = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda parts, joined: joined.join(parts),
        st.lists(st.sampled_from([b"", b"n", b"n=al", b"a=b", b"r=1", b"auth=Bearer e30.e30.e30",
                                  b"\xff", b"alice", "\u202e".encode(), bytes(3)])),
        st.sampled_from([b"\0", b",", b"\x01", b"."]),
    ),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]),
    tokens, st.sampled_from(["accepted", "refused", "bare"]), st.booleans(),
)  # fmt: skip
@example(
    "OAUTHBEARER", b"n,,\x01auth=Bearer e30." + b"W1tb" * 50_000 + b".\x01\x01", "refused", True
)
def test_any_token_passes_and_names_at_most_a_user(
    mechanism: str, token: bytes, outcome: str, ends_with_secret: bool
) -> None:
    """What stands where a password or a nonce does is nowhere but on its way."""
    tail = {"PLAIN": b"\0", "OAUTHBEARER": b"."}.get(mechanism, b",r=") + SECRET.encode()
    token += tail if ends_with_secret else b""
    player = connected()
    shake(player, mechanism, version=0 if outcome == "bare" else 1)
    if outcome == "bare":
        player.client(len(token).to_bytes(4) + token)
        player.broker(bytes(4))
    else:
        log_in(player, token, FAILED if outcome == "refused" else 0)
    ask(player)
    assert not player.closed and token in player.to_broker()
    for user, _ in told(player):
        assert user and user.isprintable() and len(user) <= USER_CHARACTERS_MAX
    said = [each.data if isinstance(each, Frame) else each.body for each in player.entries]
    assert SECRET not in str(said) + str(player.logs)


@pytest.mark.parametrize("record_users", [True, False])
def test_behind_a_login_of_kproxys_own_the_user_is_its_own(record_users: bool) -> None:
    player = Player(Settings([BROKER], 19092, record_users=record_users))
    player.performer.accept(1, None, "127.0.0.1:5000", ("127.0.0.1", 19092))
    session = LoginSession("PLAIN", 2, 0, "billing")
    player.performer.dialled(1, player.dialled[-1].addresses[0], session)
    ask(player)
    (exchange,) = pair(player.entries)
    assert exchange.user == ("billing" if record_users else None)
