"""`kproxy why client_id:C`: the life of a client."""

from __future__ import annotations

from kproxy.cli import main
from tests.look.why.test_key import metadata
from tests.look.why.traffic import Traffic


def test_a_client_that_there_is_not(tmp_path, capsys):
    traffic = Traffic()
    traffic.add(0, *metadata(2), client="shop")
    path = str(traffic.recorded(tmp_path))
    assert main(["why", path, "client_id:shp"]) == 1
    said = "there is no client_id shp in the recording (did you mean shop?)"
    assert capsys.readouterr().err == f"kproxy why: {said}\n"
    assert main(["why", path, "transactional_id:pay"]) == 1
    said = "there is no transactional_id pay in the recording, nor any other"
    assert capsys.readouterr().err == f"kproxy why: {said}\n"
