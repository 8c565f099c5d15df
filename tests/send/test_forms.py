"""What older versions name one of, and newer ones a list of, is the same in both."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.send import forms
from kproxy.send.target import TargetCluster, merged
from kproxy.wire.protocol import messages, schema
from tests.wire.protocol.making import decoded, encoded
from tests.wire.protocol.strategies import bodies

NEWEST_BY_NAME = {"OffsetFetchRequest": 9, "OffsetFetchResponse": 9, "DeleteTopicsRequest": 6}


@given(st.sampled_from(sorted(forms.MESSAGES)), st.data())
def test_a_newer_version_says_all_that_an_older_one_does(name: str, data) -> None:
    message = schema.named(name)
    newer = NEWEST_BY_NAME.get(name, message.versions[-1])
    of_list = forms.LISTS.get(name, "topics")
    (field,) = [each for each in message.fields if each.name == of_list]
    older = data.draw(st.sampled_from([v for v in message.versions if v not in field.versions]))
    body = data.draw(bodies(message, older, True, False))
    before = encoded(message, older, copy.deepcopy(body))
    forms.complete(body, older)
    other = decoded(message, newer, encoded(message, newer, body))
    assert name == "DeleteTopicsRequest" or len(getattr(other, of_list)) == 1
    forms.complete(other, newer)
    assert encoded(message, older, other) == before


@pytest.mark.parametrize("version", [7, 9])
def test_several_groups_are_asked_for_at_their_own_coordinators(version: int) -> None:
    kind, told = messages.OffsetFetchRequest, messages.OffsetFetchResponse
    groups = [kind.OffsetFetchRequestGroup(group_id=each, topics=None) for each in "ab"]
    body = kind(groups=groups)
    forms.complete(body, 8)
    cluster = TargetCluster(coordinators={(0, "a"): 1, (0, "b"): 2})
    parts = cluster.divided("OffsetFetch", body)
    message, answers = schema.named("OffsetFetchRequest"), []
    for _, part in parts:
        sent = decoded(message, version, encoded(message, version, part))
        group_id = sent.group_id if version < 8 else sent.groups[0].group_id
        one = told.OffsetFetchResponseGroup(group_id=group_id, error_code=1)
        answers.append(told(groups=[one]))
    assert [node for node, _ in parts] == [1, 2]
    assert [each.group_id for each in merged(answers).groups] == ["a", "b"]
