"""The classes of messages: ordinary attrs classes with Kafka's defaults."""

from __future__ import annotations

import copy
import pickle

import attrs
import pytest

from kproxy.wire.protocol import messages, schema
from tests.wire.protocol.making import decoded, encoded

METADATA = messages.MetadataResponse


def test_defaults_are_kafkas():
    empty = METADATA()
    assert empty.controller_id == -1
    assert empty.cluster_authorized_operations == -2147483648
    assert empty.cluster_id is None
    assert empty.brokers == []
    assert empty.unknown_tags == ()
    assert empty.brokers is not METADATA().brokers
    assert messages.FetchResponse.LeaderIdAndEpoch().leader_id == -1
    create = messages.DescribeTopicPartitionsRequest
    assert create().cursor is None
    assert messages.AlterReplicaLogDirsRequest().dirs == []
    assert messages.FetchResponse.PartitionData().current_leader is None


def test_they_compare_copy_and_print():
    one = METADATA(brokers=[METADATA.MetadataResponseBroker(node_id=1, host="a")])
    assert one == METADATA(brokers=[METADATA.MetadataResponseBroker(node_id=1, host="a")])
    assert one != METADATA()
    assert one != 5
    assert attrs.evolve(one, controller_id=3).controller_id == 3
    assert attrs.asdict(one)["brokers"][0]["host"] == "a"
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one
    assert "MetadataResponse.MetadataResponseBroker(node_id=1, host='a'," in repr(one)


def test_what_they_do_not_have_is_refused():
    with pytest.raises(TypeError, match="MetadataResponse has no field 'nonsense'"):
        METADATA(nonsense=1)
    with pytest.raises(AttributeError):
        METADATA().nonsense = 1
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = messages.Nonsense
    with pytest.raises(TypeError):
        METADATA(1)


@pytest.mark.parametrize("version", [0, 9, 13])
def test_a_decoded_object_has_every_attribute(version):
    message = schema.named("MetadataResponse")
    topic = METADATA.MetadataResponseTopic(
        name="t", partitions=[METADATA.MetadataResponsePartition(partition_index=1)]
    )
    body = METADATA(brokers=[METADATA.MetadataResponseBroker()], topics=[topic])
    found = decoded(message, version, encoded(message, version, body))
    assert attrs.asdict(found) == attrs.asdict(body)
    found.topics[0].partitions[0].isr_nodes.append(7)
    assert METADATA.MetadataResponsePartition().isr_nodes == []
