"""The action that damages records: corrupt."""

from __future__ import annotations

from typing import Any

import attrs

from kproxy.proxy.faults.action import AFTER, BEFORE, Hit, Plan
from kproxy.proxy.faults.items import Keys, Level, leaves
from kproxy.proxy.faults.values import INT32_MAX, is_whole
from kproxy.proxy.verdicts import Verdict
from kproxy.wire.protocol import ProtocolError, codec
from kproxy.wire.protocol.codec import Request
from kproxy.wire.protocol.record_batch import entries, read_header

PRODUCE = 0
_CONTENT_OFFSET = (18, 26, 61)
"""Offset of the records in an entry, by magic: behind the fields that place it in the log."""
_CRC_OFFSET = (12, 12, 17)
"""Offset of the checksum, by magic."""
_BITS_MAX = 10_000
"""The most damaged bits of a batch; each one costs a draw."""


@attrs.frozen
class Damage:
    """The damage that `corrupt` does."""

    bits: int
    fix_crc: bool
    """The checksum is corrected to match the damaged records."""


def corrupt(hit: Hit) -> Plan | None:
    """So many bits of the records are turned over, with a checksum that shows it.

    In the records of a Produce request, or of a Fetch or ShareFetch response: in one batch of each
    partition that the rule means. {bits = 3, fix_crc = true} corrects the checksum, so that only
    who reads the records can see it.
    """
    view = hit.view
    if view.request is None or view.shape is None:
        return None
    if view.api_key != PRODUCE:
        levels = view.shape.response
        return Plan(
            change=hit.edit_response(lambda each: _damage_all(hit, each.body, levels, view.own))
        )
    request = codec.decode_request(view.frame)  # a copy of our own, to be changed
    (levels,) = view.shape.requests
    if not _damage_all(hit, request.body, levels, view.own):
        return None
    changed = codec.encode_request(Request(request.header, request.body, request.trailing))
    return Plan(Verdict(frames=(changed,)))


def parse_damage(value: Any) -> Damage:
    """Read a number of bits, or {bits = 3, fix_crc = true}.

    Raises:
        ValueError: it is neither.
    """
    table = value if isinstance(value, dict) else {"bits": value}
    bits, fix_crc = table.get("bits", 1), table.get("fix_crc", False)
    valid = isinstance(fix_crc, bool) and not set(table) - {"bits", "fix_crc"}
    if not valid or not is_whole(bits, 1, INT32_MAX):
        raise ValueError(f"{value!r} is not a number of bits, nor {{bits = 3, fix_crc = true}}")
    if bits > _BITS_MAX:
        raise ValueError(f"{bits} is more than {_BITS_MAX} bits")
    return Damage(bits, fix_crc)


def corrupt_phase(api_key: int) -> str:
    """Return the phase in which the records of an API travel."""
    return BEFORE if api_key == PRODUCE else AFTER


def _damage_all(hit: Hit, body: Any, levels: tuple[Level, ...], own: Keys) -> bool:
    """Damage the records of all partitions that the rule matches; return whether there is any."""
    found = False
    for number, (keys, element) in enumerate(leaves(body, levels, own)):
        if hit.matches(keys) and element.records:
            damaged = _damage_batch(hit, element.records, number)
            if damaged is not None:
                element.records = damaged
                found = True
    return found


def _damage_batch(hit: Hit, records: bytes, number: int) -> bytes | None:
    """Flip bits in one batch that has records; None if there is none."""
    damage: Damage = hit.value
    try:
        found = list(entries(records))
    except ProtocolError:
        return None
    filled = [(start, end, m) for start, end, m in found if end - start > _CONTENT_OFFSET[m]]
    if not filled:
        return None
    draw = 1 + number * (damage.bits + 1)
    start, end, magic = filled[int(len(filled) * hit.draw(draw))]
    first = start + _CONTENT_OFFSET[magic]
    changed = bytearray(records)
    total = (end - first) * 8
    for bit in _draw_bits(hit, draw + 1, min(damage.bits, total), total):
        changed[first + bit // 8] ^= 1 << bit % 8
    if damage.fix_crc:
        crc = read_header(bytes(changed), start, end, magic).crc_computed
        at = start + _CRC_OFFSET[magic]
        changed[at : at + 4] = crc.to_bytes(4, "big")
    return bytes(changed)


def _draw_bits(hit: Hit, draw: int, count: int, total: int) -> set[int]:
    """Draw this many different bits."""
    found: set[int] = set()
    for number in range(count):
        bit = int(total * hit.draw(draw + number))
        while bit in found:
            bit = (bit + 1) % total
        found.add(bit)
    return found
