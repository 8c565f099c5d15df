"""DescribeConfigs: the recorded configs of each topic, broker or other resource.

A request that was recorded gets its recorded responses, one after the other: configs may have been
altered between them. A request for another set of resources gets the configs that were recorded
last for each of them. Configs that the recording does not have are not made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproxy.replay.call import Call
from kproxy.replay.steps import Steps
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.errors import CODES

if TYPE_CHECKING:
    from kproxy.replay.state import State

_UNKNOWN_TOPIC = CODES["UNKNOWN_TOPIC_OR_PARTITION"]
_INVALID_CONFIG = CODES["INVALID_CONFIG"]
_TOPIC = 2
_ADVICE = "record a run that does this"

Resource = tuple[int, str]
"""Type and name."""


def describe_configs(state: State, call: Call) -> Steps:
    """DescribeConfigs."""
    body = state.semantic.recorded(call)
    if body is not None:
        return body
    kind = messages.DescribeConfigsResponse
    recorded = _recorded(state, call.api_key)
    results = []
    for each in call.body.resources:
        yield
        found = recorded.get((each.resource_type, each.resource_name))
        result = kind.DescribeConfigsResult(
            resource_type=each.resource_type, resource_name=each.resource_name
        )
        if each.resource_type == _TOPIC and each.resource_name not in state.cluster.topics:
            result.error_code = _UNKNOWN_TOPIC
        elif found is None:
            text = f"the recording does not have the configs of {each.resource_name!r}"
            result.error_code, result.error_message = _INVALID_CONFIG, text
            state.report.add("not served", f"DescribeConfigs: {text}", _ADVICE)
        else:
            wanted = each.configuration_keys
            result.configs = [config for config in found if wanted is None or config.name in wanted]
        results.append(result)
    return kind(results=results)


def _recorded(state: State, api_key: int) -> dict[Resource, list[Any]]:
    """Return the configs of each resource, the last of each name."""
    found: dict[Resource, dict[str, Any]] = {}
    for exchange in state.loaded.others.get(api_key, ()):
        for each in exchange.response.results:
            if not each.error_code:
                configs = found.setdefault((each.resource_type, each.resource_name), {})
                configs.update((config.name, config) for config in each.configs)
    return {resource: list(configs.values()) for resource, configs in found.items()}


HANDLERS = {"DescribeConfigs": describe_configs}
