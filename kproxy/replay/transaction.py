"""A recorded transaction in one partition: where it begins, where it ends, and how."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class PartitionTransaction:
    """The writes of one transaction in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int | None = None
    """Offset of its marker; None while it is open."""
    aborted: bool = False
    unknown: bool = False
    """True if the EndTxn that was to commit it has no answer: it is served as committed."""
    unseen: bool = False
    """True if its beginning and its end are not in the recording: it is served as committed."""
    groups: list[str] = attrs.Factory(list)
    """Groups whose offsets were committed with it."""

    @property
    def committed(self) -> bool:
        """Whether readers of committed records see it."""
        return self.last_offset is not None and not self.aborted
