"""How far a group is behind the ends of logs, over time: a line for each partition.

Invariant: the lag is that of what was committed, as far as ends of logs are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count
from kproxy.look.pictures.bounded import Steps
from kproxy.look.pictures.drawing import Panel
from kproxy.look.pictures.offsets import plot

_LINES_DRAWN = 4


def lag(behind: Mapping[TopicPartition, Steps], uncommitted: Sequence[TopicPartition]) -> Panel:
    """Return the panel of a group's partitions, those that were furthest behind; others have no lag
    for nothing is committed."""
    worst = sorted(behind, key=lambda where: (-most(behind[where]), where))
    lines = [
        (f"curve lag n{at}", f"{where.topic}[{where.partition}]", behind[where])
        for at, where in enumerate(worst[:_LINES_DRAWN])
    ]
    more = len(worst) - len(lines)
    heading = f"lag; {count(more, 'more partition')}, less far behind" if more > 0 else "lag"
    if uncommitted:
        topic, partition = uncommitted[0]
        others = f" and {len(uncommitted) - 1} more" if len(uncommitted) > 1 else ""
        heading += f"; of {topic}[{partition}]{others} nothing is committed"
    return plot(heading, lines, from_zero=True)


def most(steps: Steps) -> int:
    """Return the largest value."""
    return max((each.high for each in steps.points if each.value is not None), default=0)
