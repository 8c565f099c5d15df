"""What each client records, once in a run: it is judged by itself, and replayed to the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bed import programs, proxies, shared
from tests.bed.clients.job import COMPRESSIONS
from tests.bed.recorded import Worked

Record = Callable[..., Worked]


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest) -> Record:
    """Records a client that does before a broker all that the two can do."""

    def address(broker: str) -> str:
        if broker == "mock":
            return request.getfixturevalue("mock_brokers")
        return request.getfixturevalue(f"kafka_{broker.replace('.', '')}").address

    def get(name: str, broker: str = "4.3.1", compressions: tuple[str, ...] = COMPRESSIONS):
        def make(folder: Path) -> Worked:
            client, prefix = programs.named(name), f"t{os.urandom(4).hex()}"
            with proxies.running(address(broker), folder) as proxy:
                work = client, proxy.bootstrap, prefix, client.steps[broker]
                results = programs.work(*work, compressions=compressions)
            return Worked(proxy.recording, prefix, compressions, results)

        return shared.once("-".join((name, broker, *compressions)), make)

    return get
