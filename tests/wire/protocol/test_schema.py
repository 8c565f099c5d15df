"""The table of messages and what it says about versions."""

from __future__ import annotations

import pytest

from kproxy.wire.protocol import schema


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("none", ()),
        ("3", (3,)),
        ("0-2", (0, 1, 2)),
        ("4+", (4, 5, 6)),
        ("0,3-4,6+", (0, 3, 4, 6)),
        ("5-9", (5, 6)),
        ("9+", ()),
    ],
)
def test_versions(text, versions):
    assert schema.parse_versions(text, (0, 1, 2, 3, 4, 5, 6)) == versions


@pytest.mark.parametrize(
    ("name", "path", "versions"),
    [
        ("ListOffsetsRequest", "topics.partitions.max_num_offsets", (0,)),
        ("ListOffsetsResponse", "topics.partitions.old_style_offsets", (0,)),
        ("OffsetCommitRequest", "topics.partitions.commit_timestamp", (1,)),
        ("DescribeConfigsResponse", "results.configs.is_default", (0,)),
        ("AlterPartitionRequest", "topics.topic_name", (0, 1)),
        ("AlterPartitionResponse", "topics.topic_name", (0, 1)),
        ("ProduceRequest", "acks", tuple(range(14))),
        ("LeaderAndIsrRequest", "controller_id", tuple(range(8))),
        # 4.1 inserted a field into a version that 3.9 had: the newer release counts.
        ("ReadShareGroupStateSummaryResponse", "results.partitions.leader_epoch", (0, 1)),
    ],
)
def test_fields_of_versions_that_kafka_4_dropped(name, path, versions):
    fields = schema.named(name).fields
    for step in path.split("."):
        field = next(field for field in fields if field.name == step)
        fields = field.fields
    assert field.versions == versions


def test_every_api_has_both_directions_in_the_same_versions():
    names = schema.api_names()
    assert sorted(names) == list(range(95))
    for key in names:
        request, response = (schema.message(key, d) for d in (schema.REQUEST, schema.RESPONSE))
        assert request.versions == response.versions
        assert request.flexible_versions == response.flexible_versions


def test_data_schemas_are_there_too():
    for name in ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "EndTxnMarker"):
        assert schema.named(name).api_key is None
    with pytest.raises(KeyError):
        schema.named("Nonsense")
