"""Clients with the same few verbs, to see what each makes of a fault: `ACTORS` has one of a kind.

::

    produce(bootstrap, topics, values, …) ─▶ Produced: what was acknowledged, what failed, how long
    consume(bootstrap, topic, count, …)   ─▶ Consumed: what arrived, when, what was committed

The clients are used as their users use them, with short timeouts. Errors have Kafka's own names;
what a client reports of its own accord, such as a timeout, is named as the client names it.
"""

from __future__ import annotations

from tests.bed.actors import with_aiokafka, with_confluent, with_kafka_python
from tests.bed.actors.verbs import Actor

ACTORS: dict[str, Actor] = {
    "confluent-kafka": Actor(with_confluent.produce, with_confluent.consume),
    "aiokafka": Actor(with_aiokafka.produce, with_aiokafka.consume),
    "kafka-python": Actor(with_kafka_python.produce, with_kafka_python.consume),
}
