"""The action that damages records: corrupt."""

from __future__ import annotations

from typing import Any

import attrs

from kproxy.protocol import ProtocolError, codec
from kproxy.protocol.codec import Request
from kproxy.protocol.record_batch import entries, read_header
from kproxy.proxy.faults.action import AFTER, BEFORE, Hit, Plan
from kproxy.proxy.faults.items import Keys, Level, leaves
from kproxy.proxy.faults.values import INT32_MAX, is_whole
from kproxy.proxy.verdicts import Verdict

PRODUCE = 0
_CONTENT_OFFSET = (18, 26, 61)
"""Where the records of an entry start, by magic: behind all that a broker needs to place it."""
_CRC_OFFSET = (12, 12, 17)
"""Where the checksum stands, by magic."""
_BITS_MAX = 10_000
"""In each batch; every one is drawn."""


@attrs.frozen
class Damage:
    """What `corrupt` shall do."""

    bits: int
    fix_crc: bool
    """Whether the checksum matches the damaged records."""


def corrupt(hit: Hit) -> Plan | None:
    """So many bits of the records are turned over, with a checksum that shows it.

    In the records of a Produce request, or of a Fetch or ShareFetch response: in one batch of each
    partition that the rule means. {bits = 3, fix_crc = true} corrects the checksum, so that only
    who reads the records can see it.
    """
    view = hit.view
    if view.api_key != PRODUCE:
        return Plan(change=lambda frame: _in_response(hit, frame))
    if view.request is None or view.shape is None:
        return None
    request = codec.decode_request(view.frame)  # one of our own, to be changed
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
    said = value if isinstance(value, dict) else {"bits": value}
    bits, fix_crc = said.get("bits", 1), said.get("fix_crc", False)
    known = isinstance(fix_crc, bool) and not set(said) - {"bits", "fix_crc"}
    if not known or not is_whole(bits, 1, INT32_MAX):
        raise ValueError(f"{value!r} is not a number of bits, nor {{bits = 3, fix_crc = true}}")
    if bits > _BITS_MAX:
        raise ValueError(f"{bits} is more than {_BITS_MAX} bits")
    return Damage(bits, fix_crc)


def corrupt_phase(api_key: int) -> str:
    """On which way the records of an API travel."""
    return BEFORE if api_key == PRODUCE else AFTER


def _in_response(hit: Hit, frame: bytes) -> bytes | None:
    response = hit.view.decode_response(frame)
    if response is None or hit.view.shape is None:
        return None
    if not _damage_all(hit, response.body, hit.view.shape.response, hit.view.own):
        return None
    return hit.view.encode_response(response)


def _damage_all(hit: Hit, body: Any, levels: tuple[Level, ...], own: Keys) -> int:
    """Damage the records of all partitions that the rule means; return how many."""
    found = 0
    for number, (keys, element) in enumerate(leaves(body, levels, own)):
        if hit.means(keys) and element.records:
            damaged = _damaged(hit, element.records, number)
            if damaged is not None:
                element.records = damaged
                found += 1
    return found


def _damaged(hit: Hit, records: bytes, number: int) -> bytes | None:
    """Turn bits over in one batch that has any records; None if there is none."""
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
    for bit in _bits(hit, draw + 1, min(damage.bits, total), total):
        changed[first + bit // 8] ^= 1 << bit % 8
    if damage.fix_crc:
        crc = read_header(bytes(changed), start, end, magic).crc_computed
        at = start + _CRC_OFFSET[magic]
        changed[at : at + 4] = crc.to_bytes(4, "big")
    return bytes(changed)


def _bits(hit: Hit, draw: int, count: int, total: int) -> set[int]:
    """Draw so many different bits."""
    found: set[int] = set()
    for number in range(count):
        bit = int(total * hit.draw(draw + number))
        while bit in found:
            bit = (bit + 1) % total
        found.add(bit)
    return found
