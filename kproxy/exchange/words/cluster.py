"""The cluster in words: brokers, topics, configs, and how a connection begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kproxy.exchange.words.wording import (
    Context,
    Words,
    count,
    joined,
    listed,
    no_text,
    resource,
)
from kproxy.units import format_bytes

_NODES_LISTED_MAX = 6

# ---- the cluster


def _metadata_request(request: Any, context: Context) -> str:
    if request.topics is None:
        return "all topics"
    # An empty list means none, but all in version 0: the response makes it clear.
    return listed(context.topic(topic) for topic in request.topics)


def _metadata_response(response: Any, context: Context) -> str:
    known = [topic for topic in response.topics or () if not topic.error_code]
    in_all = count(sum(len(topic.partitions or ()) for topic in known), "partition")
    # One topic is named by the request.
    topics = joined(count(len(known), "topic") if len(known) > 1 else "", in_all if known else "")
    return joined(topics, _nodes(broker.node_id for broker in response.brokers or ()))


def _describe_cluster_response(response: Any, context: Context) -> str:
    nodes = _nodes(broker.broker_id for broker in response.brokers or ())
    return joined(nodes, f"controller {response.controller_id}")


def _nodes(node_ids: Iterable[int]) -> str:
    ids = [str(node_id) for node_id in sorted(node_ids)]
    if not ids:
        return "no brokers"
    more = f" +{len(ids) - _NODES_LISTED_MAX}" if len(ids) > _NODES_LISTED_MAX else ""
    return f"broker{'s' * (len(ids) > 1)} {','.join(ids[:_NODES_LISTED_MAX])}{more}"


def _api_versions_request(request: Any, context: Context) -> str:
    return f"{request.client_software_name} {request.client_software_version}".strip()


def _api_versions_response(response: Any, context: Context) -> str:
    keys = response.api_keys or ()
    if response.error_code and len(keys) == 1:
        return f"ApiVersions {keys[0].min_version} to {keys[0].max_version}"
    return count(len(keys), "API")


_COORDINATED = {0: "group", 1: "transaction", 2: "share"}


def _find_coordinator_request(request: Any, context: Context) -> str:
    keys = listed(request.coordinator_keys or [request.key])
    return f"{_COORDINATED.get(request.key_type, f'type {request.key_type}')} {keys}"


def _find_coordinator_response(response: Any, context: Context) -> str:
    found = [each for each in response.coordinators or [response] if not each.error_code]
    if len(response.coordinators or ()) > 1:
        return listed(sorted(f"{each.key}: node {each.node_id}" for each in found))
    return listed(f"node {each.node_id}" for each in found)


# ---- administration


def _create_topics_request(request: Any, context: Context) -> str:
    def topic(each: Any) -> str:
        given = each.num_partitions if each.num_partitions >= 0 else len(each.assignments or ())
        partitions = count(given, "partition") if given else "default partitions"
        configs = listed(f"{config.name}={_value(config)}" for config in each.configs or ())
        return f"{each.name} ({joined(partitions, configs)})"

    return joined(
        listed(topic(each) for each in request.topics or ()),
        "only to validate" if request.validate_only else "",
    )


def _delete_topics_request(request: Any, context: Context) -> str:
    return listed(request.topic_names or [context.topic(topic) for topic in request.topics or ()])


def _create_partitions_request(request: Any, context: Context) -> str:
    return listed(f"{topic.name} to {topic.count}" for topic in request.topics or ())


def _describe_configs_request(request: Any, context: Context) -> str:
    return listed(resource(each) for each in request.resources or ())


_VALUE_LENGTH_MAX = 40


def _value(config: Any) -> str:
    """Return the value of a config, as a person types it; secrets have been blanked out."""
    if config.value is None:
        return "default"
    value = config.value
    blank = value and not value.strip("*")
    text = "(redacted)" if blank else value
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[: _VALUE_LENGTH_MAX - 1]}…"


_CONFIG_OPERATIONS = {
    0: "{0.name}={1}",
    1: "{0.name} back to its default",
    2: "{0.name}+={1}",
    3: "{0.name}-={1}",
}
"""The text for each operation of IncrementalAlterConfigs: SET, DELETE, APPEND, SUBTRACT."""


def _config_change(config: Any) -> str:
    operation = getattr(config, "config_operation", 0)
    form = _CONFIG_OPERATIONS.get(operation, f"{{0.name}} operation {operation} {{1}}")
    return form.format(config, _value(config))


def _alter_configs_request(request: Any, context: Context) -> str:
    changes = listed(
        f"{resource(each)}: {listed(map(_config_change, each.configs or ()))}"
        for each in request.resources or ()
    )
    return joined(changes, "only to validate" if request.validate_only else "")


def _describe_configs_response(response: Any, context: Context) -> str:
    return count(sum(len(each.configs or ()) for each in response.results or ()), "config")


# ---- SASL


def _sasl_handshake_response(response: Any, context: Context) -> str:
    return f"offers {listed(response.mechanisms or ())}" if response.error_code else ""


def _sasl_token(body: Any, context: Context) -> str:
    lifetime_ms = getattr(body, "session_lifetime_ms", 0)
    token = f"token {format_bytes(len(body.auth_bytes or b''))}"
    return joined(token, f"session {lifetime_ms / 1000:.0f} s" if lifetime_ms else "")


WORDS: Words = {
    "ApiVersions": (_api_versions_request, _api_versions_response),
    "SaslHandshake": (lambda request, context: request.mechanism, _sasl_handshake_response),
    "SaslAuthenticate": (_sasl_token, _sasl_token),
    "Metadata": (_metadata_request, _metadata_response),
    "DescribeCluster": (no_text, _describe_cluster_response),
    "FindCoordinator": (_find_coordinator_request, _find_coordinator_response),
    "CreateTopics": (_create_topics_request, no_text),
    "DeleteTopics": (_delete_topics_request, no_text),
    "CreatePartitions": (_create_partitions_request, no_text),
    "DescribeConfigs": (_describe_configs_request, _describe_configs_response),
    "AlterConfigs": (_alter_configs_request, no_text),
    "IncrementalAlterConfigs": (_alter_configs_request, no_text),
}
