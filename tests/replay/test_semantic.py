"""What is answered as it was recorded, and what is refused."""

from __future__ import annotations

from kproxy.replay.semantic import meaning
from kproxy.wire.protocol import error_name, messages
from tests.replay.making import Playing, Recorded


def describe(name: str, synonyms: bool = False):
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=None
    )
    return request(resources=[resource], include_synonyms=synonyms)


def described(name: str, value: str):
    kind = messages.DescribeConfigsResponse
    config = kind.DescribeConfigsResourceResult(name="retention.ms", value=value)
    result = kind.DescribeConfigsResult(resource_type=2, resource_name=name, configs=[config])
    return kind(results=[result])


def recorded() -> Recorded:
    was = Recorded().metadata().add(1, describe("orders"), described("orders", "1"))
    was.metadata("other").add(1, describe("other"), described("other", "x"))
    return was.add(1, describe("orders"), described("orders", "2"))


def value(answer) -> str:
    return answer.results[0].configs[0].value


def test_responses_come_in_order_and_the_last_one_for_ever() -> None:
    client = Playing(recorded().loaded).connect()
    found = [value(client.ask(1, describe("orders"))) for _ in range(4)]
    assert found == ["1", "2", "2", "2"]
    assert value(client.ask(1, describe("other"))) == "x"


def test_any_version_and_what_does_not_matter_may_differ() -> None:
    client = Playing(recorded().loaded).connect()
    assert value(client.ask(4, describe("orders", synonyms=True))) == "1"


def test_what_a_run_makes_up_means_nothing_in_any_request() -> None:
    def commit(chance: int, offset: int):
        request = messages.TxnOffsetCommitRequest
        partition = request.TxnOffsetCommitRequestPartition(
            committed_offset=offset, committed_leader_epoch=chance, committed_metadata=f"{chance}"
        )
        topic = request.TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])
        ids = {"producer_id": chance, "producer_epoch": chance, "member_id": f"m-{chance}"}
        return request(transactional_id="t", group_id="g", topics=[topic], **ids)

    assert meaning(commit(1, 5)) == meaning(commit(2, 5)) != meaning(commit(2, 6))


def test_what_was_not_recorded_is_refused_and_reported() -> None:
    def electing(topic: str):
        request = messages.ElectLeadersRequest
        wanted = request.TopicPartitions(topic=topic, partitions=[0])
        return request(election_type=0, topic_partitions=[wanted])

    elected = messages.ElectLeadersResponse()
    broker = Playing(Recorded().metadata().add(2, electing("a"), elected).loaded)
    answer = broker.connect().ask(2, electing("b"))
    assert answer.error_code == -1
    (finding,) = broker.report.findings
    assert finding.kind == "not served"
    assert "ElectLeaders v2" in finding.text and "another meaning" in finding.text


def test_configs_are_told_resource_by_resource_and_never_made_up() -> None:
    broker = Playing(recorded().metadata("silent").loaded)
    client = broker.connect()
    request = messages.DescribeConfigsRequest
    wanted = [
        request.DescribeConfigsResource(resource_type=2, resource_name=name)
        for name in ("orders", "other", "silent", "none")
    ]
    wanted[0].configuration_keys = ["retention.ms"]
    wanted[1].configuration_keys = ["another"]
    found = client.ask(4, request(resources=wanted)).results
    codes = [error_name(each.error_code) for each in found]
    assert codes == ["NONE", "NONE", "INVALID_CONFIG", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [[each.value for each in one.configs] for one in found] == [["2"], [], [], []]
    (finding,) = broker.report.findings
    assert "the configs of 'silent'" in finding.text


def test_secrets_are_compared_as_they_were_recorded() -> None:
    from kproxy.exchange.entries import Side
    from kproxy.proxy import redact

    def alter(password: bytes):
        request = messages.AlterUserScramCredentialsRequest
        credential = request.ScramCredentialUpsertion(
            name="bob", mechanism=1, iterations=4096, salt=b"salt", salted_password=password
        )
        return request(deletions=[], upsertions=[credential])

    kind = messages.AlterUserScramCredentialsResponse
    done = kind(results=[kind.AlterUserScramCredentialsResult(user="bob", error_message=None)])
    was = Recorded().metadata().add(0, alter(b"first"), done)
    frame = was.entries[-2]
    blanked = redact.redact(frame.data, Side.CLIENT, frame.api_key, frame.api_version)
    assert blanked is not None
    frame.pieces = [blanked]
    broker = Playing(was.loaded)
    answer = broker.connect().ask(0, alter(b"another one"))
    assert answer.results[0].user == "bob"
    assert broker.report.findings == []
