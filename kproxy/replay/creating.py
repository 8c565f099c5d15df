"""CreateTopics and CreatePartitions, for topics and partitions that the recording has.

Only recorded topics and partitions can be created, each generation of a topic after the one before
was deleted. With `--visible causal` a topic that a client
created in the recording does not exist before it is created again; nor do added partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproxy.exchange.words.wording import count
from kproxy.protocol import messages
from kproxy.protocol.errors import CODES
from kproxy.replay.call import Call
from kproxy.replay.steps import Steps
from kproxy.replay.topics import Topic

if TYPE_CHECKING:
    from kproxy.replay.state import State

_TOPIC_ALREADY_EXISTS = CODES["TOPIC_ALREADY_EXISTS"]
_POLICY_VIOLATION = CODES["POLICY_VIOLATION"]
_UNKNOWN_TOPIC = CODES["UNKNOWN_TOPIC_OR_PARTITION"]
_ADVICE = "record a run that creates it"


def create_topics(state: State, call: Call) -> Steps:
    """CreateTopics: each topic once, as recorded."""
    kind = messages.CreateTopicsResponse
    recorded = _recorded(state, call.api_key, "topics")
    results = []
    for wanted in call.body.topics:
        yield
        name = wanted.name
        found = recorded.get(name)
        exists = name in state.cluster.topics
        if found and not (exists and name in state.created):
            topic = state.cluster.topics.get(name) or state.cluster.later.get(name)
            if not call.body.validate_only:
                state.created.add(name)
                state.cluster.create(name)
            results.append(_result_of(topic, found))
            continue
        error, text = _TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
        if not exists:
            error, text = _POLICY_VIOLATION, f"the recording has no topic {name!r}"
            state.report.add("not served", f"CreateTopics: {text}", _ADVICE)
        results.append(kind.CreatableTopicResult(name=name, error_code=error, error_message=text))
    return kind(topics=results)


def create_partitions(state: State, call: Call) -> Steps:
    """CreatePartitions: partitions that come later in the recording."""
    kind = messages.CreatePartitionsResponse
    recorded = _recorded(state, call.api_key, "results")
    results = []
    for wanted in call.body.topics:
        yield
        topic = state.cluster.topics.get(wanted.name)
        found = recorded.get(wanted.name)
        result = kind.CreatePartitionsTopicResult(name=wanted.name)
        if topic is None:
            result.error_code = _UNKNOWN_TOPIC
        elif wanted.count > len(topic.partitions) + len(topic.later):
            many = count(wanted.count, "partition")
            text = f"topic {wanted.name!r} never has {many} in the recording"
            result.error_code, result.error_message = _POLICY_VIOLATION, text
            state.report.add("not served", f"CreatePartitions: {text}", _ADVICE)
        elif wanted.count > len(topic.partitions):
            new = [index for index in topic.later if index < wanted.count]
            for index in () if call.body.validate_only else new:
                topic.partitions[index] = topic.later.pop(index)
        elif found:
            result = found[-1]
        else:
            text = f"Topic already has {len(topic.partitions)} partition(s)."
            result.error_code, result.error_message = CODES["INVALID_PARTITIONS"], text
        results.append(result)
    return kind(results=results)


def _result_of(topic: Topic | None, found: list[Any]) -> Any:
    """Return the recorded result that created a topic, or else the last that did not."""
    created = [each for each in found if not each.error_code]
    if topic is None or not created:
        return found[-1]
    result = next((each for each in created if each.topic_id == topic.topic_id), created[-1])
    result.topic_id = topic.topic_id
    return result


def _recorded(state: State, api_key: int, field: str) -> dict[str, list[Any]]:
    """Return the recorded results of each topic."""
    found: dict[str, list[Any]] = {}
    for exchange in state.loaded.others.get(api_key, ()):
        for each in getattr(exchange.response, field):
            found.setdefault(each.name, []).append(each)
    return found


HANDLERS = {"CreateTopics": create_topics, "CreatePartitions": create_partitions}
