"""The map of finished messages in a commit's metadata: it says the truth, is short, and leaves others' maps alone."""

from __future__ import annotations

import json
import random

import pytest

from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import LIMIT, OffsetMap

PLAIN = json.dumps({"consumer_id": "consumer-1-" + "f" * 36, "hostname": "host"})


@pytest.mark.parametrize("seed", range(30))
def test_a_map_says_again_what_was_written(seed: int) -> None:
    chance = random.Random(seed)
    base, length, share = (
        chance.choice((0, 7, 2**40)),
        chance.choice((1, 9, 500, 9000)),
        chance.choice((0.01, 0.5, 0.99)),
    )
    unfinished = tuple(base + n for n in range(length) if chance.random() < share)
    known = OffsetMap(unfinished, base + length)
    text = offset_map.encode(known, base)
    if len(unfinished) == length:
        assert text == ""
    else:
        assert offset_map.decode(text, base) == known


def test_one_stuck_message_takes_a_few_characters() -> None:
    text = offset_map.encode(OffsetMap((5,), 100_006), 5)
    assert len(text) < 20
    assert offset_map.decode(text, 5) == OffsetMap((5,), 100_006)


def test_the_map_stands_beside_pykafkas_metadata() -> None:
    text = offset_map.encode(OffsetMap((5, 8), 12), 5)
    metadata = offset_map.with_map(PLAIN, text)
    assert json.loads(metadata) == {**json.loads(PLAIN), "finished": text}
    assert offset_map.map_in(metadata) == text
    assert offset_map.with_map(PLAIN, "") == PLAIN
    assert offset_map.map_in(PLAIN) == ""


def test_what_does_not_fit_is_left_out_and_counts_as_unfinished() -> None:
    chance, base = random.Random(3), 100
    unfinished = tuple(n for n in range(base, 90_000) if chance.random() < 0.4)
    known = OffsetMap(unfinished, 90_000)
    room = offset_map.room_for_map(PLAIN)
    text = offset_map.shortened(known, base, room)
    assert 0.8 * room < len(text) <= room
    assert len(offset_map.with_map(PLAIN, text).encode()) <= LIMIT
    told = offset_map.decode(text, base)
    assert told is not None
    assert told.unfinished == tuple(offset for offset in unfinished if offset < told.top)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1g",
        "2gAB",
        "xgAB",
        "1gé",
        "1G0000",
        '1g"',
        "1g" + "z" * 11,
        "bQAAAA==",
        "0",
        "1b00",
        "1g~~~~~~~~~~~~~~~",
    ],
)
def test_maps_of_others_are_not_ours(text: str) -> None:
    assert offset_map.decode(text, 7) is None


@pytest.mark.parametrize(
    "metadata", ["", "finished", '{"finished": 3}', '["finished"]', '{"finished": "x"', "o:finished", '{"finished"']
)
def test_metadata_of_others_is_no_map(metadata: str) -> None:
    assert offset_map.map_in(metadata) == ""


def test_a_text_that_would_become_huge_is_refused() -> None:
    import base64
    import zlib

    bomb = "1B" + base64.b85encode(zlib.compress(bytes(64 << 20), 9)).decode()
    assert offset_map.decode(bomb, 0) is None
