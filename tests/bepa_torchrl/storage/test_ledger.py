"""The ledger: finished units are found again, torn and damaged lines are not, and those around them are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack

from bepa_torchrl.storage.json_lines import UNITS, count_units
from bepa_torchrl.storage.ledger import Ledger


def rows(number: int) -> TensorDict:
    made = [
        TensorDict({"tokens": torch.arange(number + step), "png": NonTensorData(b"\x89" * number)}) for step in (1, 2)
    ]
    return lazy_stack(made)


def filled(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.add("episode", [1, 2], data={"score": 0.5})
    ledger.add("episode", [1, 3], data={"score": 1.0}, rows=rows(3))
    ledger.add("episode", [1, 4], data={"score": 0.0})
    return ledger


def test_finished_units_are_found_in_another_process(tmp_path: Path) -> None:
    filled(tmp_path / "kept")
    again = Ledger(tmp_path / "kept")
    assert len(again) == count_units(tmp_path / "kept") == 3
    assert again.find("episode", [1, 2]) == ({"score": 0.5}, None)
    assert again.find("episode", [1, 5]) is None
    assert again.find("expert", [1, 2]) is None
    found = again.find("episode", [1, 3])
    assert found is not None
    data, stored = found
    assert data == {"score": 1.0}
    assert stored is not None
    assert [row["tokens"].tolist() for row in stored.unbind(0)] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert stored[0]["png"] == b"\x89\x89\x89"
    again.remove()
    assert not (tmp_path / "kept").exists()
    assert count_units(tmp_path / "kept") == 0


@pytest.mark.parametrize("length", [2, 40, 120])
def test_a_torn_last_line_is_done_again(tmp_path: Path, length: int) -> None:
    filled(tmp_path)
    path = tmp_path / UNITS
    path.write_bytes(path.read_bytes()[:-length])
    again = Ledger(tmp_path)
    assert len(again) == 2
    again.add("episode", [1, 4], data={"score": 1.0})  # must not be appended to the torn line
    assert [Ledger(tmp_path).find("episode", [1, n])[0]["score"] for n in (2, 3, 4)] == [0.5, 1.0, 1.0]  # type: ignore[index]


def test_every_damaged_byte_of_a_line_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / UNITS
    whole = path.read_bytes()
    first = whole.index(b"\n")
    for place in range(first):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        ledger = Ledger(tmp_path)
        found = ledger.find("episode", [1, 2])
        assert found is None or found == ({"score": 0.5}, None)
        assert ledger.find("episode", [1, 4]) == ({"score": 0.0}, None)
    path.write_bytes(whole + b"\x00" * 64)  # as after a power failure
    assert len(Ledger(tmp_path)) == 3


def test_a_unit_with_damaged_rows_is_done_again(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (tensors,) = tmp_path.glob("rows/*/rows/tensors.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(bytes(data))
    assert Ledger(tmp_path).find("episode", [1, 3]) is None
    ledger.add("episode", [1, 3], data={"score": 1.0}, rows=rows(3))
    assert Ledger(tmp_path).find("episode", [1, 3]) is not None


def test_the_seconds_of_earlier_processes_are_summed(tmp_path: Path) -> None:
    filled(tmp_path)
    lines = [json.loads(line)["unit"]["seconds"] for line in (tmp_path / UNITS).read_text().splitlines()]
    assert Ledger(tmp_path).seconds == sum(lines)
