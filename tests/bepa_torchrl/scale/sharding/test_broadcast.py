"""Rows survive the way from rank 0 to the others."""

from __future__ import annotations

import torch
from history_rows import ShortPromptPolicy, made_episodes

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.scale.sharding.broadcast import decode_rows, encode_rows
from bepa_torchrl.scale.sharding.gradient import _digest


def test_rows_are_equal_and_an_image_is_sent_once() -> None:
    rows = row_list(made_episodes(ShortPromptPolicy(max_new_tokens=6), (3, 1)))
    data = encode_rows(rows)
    found = decode_rows(data)
    assert _digest(found) == _digest(rows)
    for ours, theirs in zip(found, rows, strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        assert ours[K.TASK_ID] == theirs[K.TASK_ID]
        assert ours[K.IMAGES] == theirs[K.IMAGES]
        assert torch.equal(ours[K.RESPONSE_TOKENS], theirs[K.RESPONSE_TOKENS])
    images = {image for row in rows for image in row[K.IMAGES]}
    assert sum(data.count(image) for image in images) == len(images)
    assert len({id(image) for row in found for image in row[K.IMAGES]}) == len(images)
