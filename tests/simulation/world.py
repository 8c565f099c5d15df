"""The simulated world: clients, the machine, brokers and the clock, all from one integer.

::

    seed ─▶ World ─ run ─▶ every link closed ─▶ checks.check(world)
              ├── Performer          of the machine under test, a Cluster
              ├── Link, Link …       what could happen next on each connection, and its wires
              └── listeners that open late or never, brokers that move, silence, the end

At each step one thing happens, chosen from all that could: so events of different connections, of
the two sides of one, and of listeners come in any order in which they could really come. Time goes
on by random amounts, sometimes by none.
"""

from __future__ import annotations

import functools
import random

from kproxy.exchange.entries import (
    INJECTED,
    MORE,
    TRUNCATED,
    UNANSWERED,
    Entry,
    Frame,
    Note,
    Side,
    each_frame,
)
from kproxy.proxy.actions import Address, Dial, Listen, Probe
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings
from tests.bed.memory import Clock, Performer
from tests.simulation import faults
from tests.simulation.filling import Filler
from tests.simulation.link import Link
from tests.simulation.scripts import Scripts, Step

START_NS = 1_790_000_000_000_000_000
_STEPS_MAX = 200_000
_TICKS_NS = (0, 1, 1_000, 40_000, 3_000_000)
_FREE_PORT = 40_000


class World:
    """One seed's world."""

    def __init__(self, seed: int, faulty: bool = False) -> None:
        self.seed = seed
        rng = self.rng = random.Random(seed)
        self.clock = Clock(START_NS + rng.randrange(10**9))
        self.settings = self._settings(faulty)
        self.readable = rng.random() < 0.3
        """Whether brokers send only what can be decoded, so that no address may slip through."""
        self.rules = faults.random_rules(seed) if faulty else None
        """What breaks on purpose."""
        self.cluster = Cluster(self.settings, self.rules)
        self.performer = Performer(
            self.cluster, self.clock, self._wires, self._dial, self._listen, self._learn
        )
        self.performer.probe = self._probed
        self.filler = Filler(rng, self.address)
        self.scripts = Scripts(rng, self.filler, not self.readable, told_apart=faulty)
        # Of a response that names too many brokers some are learnt, of one that is lost none.
        self.scripts.uncertain = self.settings.nodes_max < 1000 or faulty
        self.brokers: dict[int, Address] = {}
        """Where each broker is now."""
        self.past: dict[int, list[Address]] = {}
        """All the places where each has been."""
        self.listeners: dict[int, Address] = {}
        self.opened_ns: set[int] = set()
        """When listeners opened: what waited for them is taken in then."""
        self.links: list[Link] = []
        self.recorded: list[Entry] = self.performer.recorded
        self.logs: list[str] = self.performer.logs
        self.rested = False
        """Whether nothing more could happen when the end came."""
        self.disturbed: set[int] = set()
        """The connections that were broken, so that not all arrives."""
        self._learnt: dict[int, Address] = {}
        """Where each broker is by what the machine heard last."""
        self._asked: list[Listen] = []
        self._looks_around = rng.random() < 0.3
        self.late = rng.choice((0.0, 0.0, 0.5, 1.0))
        self._refuses = rng.random() < 0.05
        self._moves = rng.random() < 0.4
        self._dials = {address: rng.random() < 0.9 for address in self.settings.bootstrap}
        self._hurry = rng.choice((0.2, 0.02))
        self._to_open = rng.choice((1, 1, 2, 3, 3, 7))
        self._stops_after = rng.randint(1, 300) if rng.random() < 0.1 else None
        self._sleeps_after = rng.randint(1, 300) if rng.random() < 0.05 else None

    def _settings(self, faulty: bool) -> Settings:
        rng = self.rng
        names = ["boot-one", "boot-two", "boot-three"][: rng.choice((1, 1, 2, 3))]
        return Settings(
            [(name, 9092) for name in names],
            listen_port=rng.choice((0, 19_092, 65_530)),
            advertised_host=rng.choice((None, None, "h", "kproxy.test", "long.name." * 20)),
            node_ports={1: 7} if rng.random() < 0.2 else {},
            idle_seconds=rng.choice((600, 5)),
            pending_requests_max=rng.randint(2, 5) if rng.random() < 0.15 else 1000,
            nodes_max=3 if rng.random() < 0.05 else 1000,
            probes=not faulty and self.seed % 4 == 0,
        )

    def tick(self) -> int:
        """The next instant."""
        self.clock.now += self.rng.choice(_TICKS_NS)
        return self.clock.now

    @property
    def now(self) -> int:
        """What time it is."""
        return self.clock.now

    # ---- the brokers

    def address(self) -> tuple[int, str, int]:
        """What a broker names in a response: mostly one of the brokers, where it is now."""
        rng, chosen = self.rng, self.rng.random()
        if chosen < 0.06:
            return rng.choice(((-1, "", -1), (-1, "absent.example", 1), (2, "", 9), (3, "x", 0)))
        if not self.brokers or chosen < 0.2:
            node_id = rng.choice((0, 1, 2, 3, 7, 40_000, 2**31 - 1))
            if node_id not in self.brokers:
                self._move(node_id)
        else:
            node_id = rng.choice(list(self.brokers))
            if self._moves and chosen > 0.7:
                self._move(node_id)
        return node_id, *self.brokers[node_id]

    def _move(self, node_id: int) -> None:
        rng = self.rng
        many = len(self.past.setdefault(node_id, []))
        host = f"broker-{node_id}-{many}" + rng.choice(("", ".internal.example", "." + "y" * 180))
        ours = self.settings.advertised_host
        if ours and len(ours) > 5 and rng.random() < 0.3:
            host = host[: len(ours)].ljust(len(ours), "z")
        self.brokers[node_id] = (host, rng.randint(1, 65_535))
        self.past[node_id].append(self.brokers[node_id])

    def ours(self, link: Link) -> dict[int, Address]:
        """Where the client of a connection must find each broker."""
        host = self.settings.advertised_host or link.reached[0]
        return {node_id: (host, port) for node_id, (_, port) in self.listeners.items()}

    def _named(self) -> None:
        """The proxy has asked a broker for all brokers, before any client came."""
        none = (0, 0)
        for node_id in self.rng.sample((0, 1, 2, 3, 7), self.rng.randint(0, 5)):
            self._move(node_id)
        self._learnt.update(self.brokers)
        found = [(node_id, *address) for node_id, address in self.brokers.items()]
        brokers = [BrokerAddress(*address, none, none, None) for address in found]
        self.performer.perform(self.cluster.discovered(brokers, self.now))

    # ---- what happens

    def run(self) -> None:
        """Let everything happen until nothing more can, then wait until all is closed."""
        rng = self.rng
        if self._looks_around:
            self._named()
        for count in range(_STEPS_MAX):
            if count == self._stops_after:
                break
            if count == self._sleeps_after:
                self._sleep()
            move = self._next()
            if move is None:
                if self._wait_for_delays():
                    continue
                break
            self.tick()
            move()
            if rng.random() < 0.01:
                self._wake()
        else:
            raise AssertionError("it never comes to rest")
        self.rested = count != self._stops_after
        for node_id in self.listeners if rng.random() < 0.5 else ():
            self._connect(node_id, [])
            self._check_dial(self.links[-1])
        if not self.rested or rng.random() < 0.5:
            self._stop()
        else:
            self._sleep()
        self.clock.now += 2 * 10**9
        self._wake()

    def _next(self):
        rng = self.rng
        own = []
        if self._to_open:
            own.append(self._open)
        if self._asked:
            own.append(self._answer_listen)
        if own and rng.random() < self._hurry:
            return rng.choice(own)
        links = [link for link in self.links if not link.closed]
        rng.shuffle(links)
        for link in links:
            moves = link.moves()
            if moves:
                return rng.choice(moves)
        return rng.choice(own) if own else None

    def _open(self) -> None:
        rng = self.rng
        self._to_open -= 1
        node_id = None
        if self.listeners and rng.random() < 0.5:
            node_id = rng.choice(list(self.listeners))
        self._connect(node_id, self.scripts.script(rng.choice((0, 1, 3, 6, 15))))

    def _connect(self, node_id: int | None, script: list[Step]) -> None:
        port = self.settings.listen_port or 5 if node_id is None else self.listeners[node_id][1]
        reached = (self.rng.choice(("127.0.0.1", "192.0.2.7", "::1")), port)
        number = len(self.links) + 1
        self.links.append(Link(self, number, node_id, reached, script))
        self.links[-1].due = self._learnt.get(node_id)
        client = f"198.51.100.{number}:{50_000 + number}"
        self.performer.accept(number, node_id, client, reached)

    def _sleep(self) -> None:
        """Nothing arrives for so long that every connection is closed."""
        while self._wait_for_delays():
            pass
        idle_ns = int(self.settings.idle_seconds * 1e9)
        open_now = [link for link in self.links if not link.closed]
        if not open_now:
            return
        due = [self._silent_until(link) for link in open_now]
        self.clock.now = max(self.now, min(due) - 1)
        if min(due) > self.now:
            self._wake()
            assert not any(link.closed for link in open_now), "closed before its time"
        self.clock.now = max(self.now + idle_ns, *due)
        self._wake()
        assert all(link.closed for link in open_now), "silence did not end it"

    def _silent_until(self, link: Link) -> int:
        """When silence ends a connection: sooner where only the broker is waited for."""
        idle_ns = int(self.settings.idle_seconds * 1e9)
        return link.last_ns + (min(idle_ns, 10**10) if link.ended == {Side.CLIENT} else idle_ns)

    def _wait_for_delays(self) -> bool:
        """Let what a rule has delayed leave, where that is all that can still happen."""
        due = self.cluster.next_wake
        if self.rules is None or due is None or due - self.now > faults.DELAY_NS_MAX:
            return False
        self.clock.now = max(self.now, due)
        self._wake()
        return True

    def _stop(self) -> None:
        for link in self.links:
            if not link.closed:
                link.hows.add("stopped")
                if not self.rested:
                    self.disturbed.add(link.number)
        self.performer.stop()

    def _wake(self) -> None:
        due = self.cluster.next_wake
        if due is None or due > self.now:
            return
        for link in self.links:
            if not link.closed and self.now >= self._silent_until(link):
                link.hows.add("idle")
                if not self.rested:
                    self.disturbed.add(link.number)
        self.performer.advance(self.now)

    # ---- what links report

    def dialled(self, link: Link) -> None:
        """The dialling of a connection comes to its end."""
        addresses = link.addresses
        self._check_dial(link)
        for address in addresses:
            up = self._dials.get(address)
            if up is None:
                up = self.rng.random() < 0.95
            if up:
                self.performer.dialled(link.number, address)
                return
        link.hows.add("down")
        self.disturbed.add(link.number)
        self.performer.not_dialled(link.number, "refuses connections")

    def _probed(self, probe: Probe) -> bool:
        """A broker is probed where the machine heard last that it is, and is up or not."""
        if probe.node_id is None:
            assert sorted(probe.addresses) == sorted(self.settings.bootstrap)
        else:
            (address,) = probe.addresses
            assert address in self.past[probe.node_id], "probed where that broker never was"
        return self.rng.random() < 0.9

    def _check_dial(self, link: Link) -> None:
        """A broker is dialled where the machine heard last that it is."""
        if link.node_id is None:
            assert sorted(link.addresses) == sorted(self.settings.bootstrap)
            return
        (address,) = link.addresses
        assert address in self.past[link.node_id], "dialled where that broker never was"
        if not self.late and not self.scripts.uncertain:
            assert address == link.due, "dialled where that broker was before"

    def fed(self, link: Link, side: Side, data: bytes) -> None:
        """Bytes arrive at the machine."""
        link.last_ns = self.now
        self.performer.receive(link.number, side, data)

    def ended(self, link: Link, side: Side) -> None:
        """A half-close arrives at the machine."""
        link.last_ns = self.now
        self.performer.eof(link.number, side)

    def broken(self, link: Link, side: Side) -> None:
        """The machine finds that a peer is gone."""
        self.disturbed.add(link.number)
        self.performer.reset(link.number, side)

    @functools.cached_property
    def entries(self) -> list[Frame | Note]:
        """What was recorded, when all is over."""
        return list(each_frame(self.recorded))

    # ---- what the machine asks for

    def _wires(self, number: int) -> Link:
        link = self.links[number - 1]
        assert not link.closed, "dialled for a closed connection"
        return link

    def closed(self, link: Link) -> None:
        """The machine has closed a connection: what comes late leads to nothing."""
        assert not self.cluster.closed(link.number, Side.CLIENT, "eof", "", self.now)
        assert not self.cluster.receive(link.number, Side.BROKER, b"late", self.now)
        assert not self.cluster.dialled(link.number, ("late", 1), self.now)

    def _dial(self, dial: Dial) -> None:
        self.links[dial.connection - 1].addresses = list(dial.addresses)

    def _learn(self, entries: list[Entry]) -> None:
        """Note which addresses the machine has heard, in the order of its recording."""
        for entry in each_frame(entries):
            if isinstance(entry, Note) or entry.side is Side.CLIENT:
                continue
            link = self.links[entry.connection - 1]
            if entry.flags & (MORE | UNANSWERED | INJECTED) or link.heard == len(link.answers):
                continue
            _, answer = link.answers[link.heard]
            link.heard += 1
            if entry.flags & TRUNCATED:
                continue
            for item, address in zip(answer.addressed, answer.theirs, strict=True):
                node_id = getattr(item, "broker_id", None)
                self._learnt[item.node_id if node_id is None else node_id] = address

    def _listen(self, action: Listen) -> None:
        assert action.node_id not in self.listeners, "asked for a listener that is open"
        assert all(asked.node_id != action.node_id for asked in self._asked), "asked twice"
        fixed, first = self.settings.node_ports, self.settings.listen_port
        wanted = first + 1 + action.node_id if first else 0
        wanted = fixed.get(action.node_id, wanted)
        assert action.port == (wanted if wanted < 65_536 else 0)
        self._asked.append(action)
        if self.rng.random() >= self.late:
            self._answer_listen(len(self._asked) - 1)

    def _answer_listen(self, which: int | None = None) -> None:
        """A listener opens, or cannot."""
        rng = self.rng
        if which is None:
            which = rng.randrange(len(self._asked))
        action = self._asked.pop(which)
        if self._refuses and rng.random() < 0.5:
            for link in self.links:
                link.hows.add("refused")
            before = {link.number for link in self.links if not link.closed}
            self.performer.not_listening(action.node_id, "no ports")
            self.disturbed |= before - {link.number for link in self.links if not link.closed}
            return
        taken = rng.random() < 0.1 or not action.port
        port = _FREE_PORT + len(self.listeners) if taken else action.port
        self.listeners[action.node_id] = ("127.0.0.1", port)
        self.opened_ns.add(self.now)
        self.performer.listening(action.node_id, ("127.0.0.1", port))
