"""A job's blocks and stores over several servers."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from tests.integration.fabric_worker import small_manifest

from luwu.errors import ConfigError, ManifestMismatchError
from luwu.fabric.address import parse_urls
from luwu.fabric.striping import Share, Standing, share_out, stripe

URLS = ["luwu://a:1", "luwu://b:1", "luwu://c:1"]
FIRST = uuid.UUID(int=7).hex
SECOND = uuid.uuid5(uuid.UUID(int=7), "1").hex


def test_every_server_gets_its_share_of_what_is_moved() -> None:
    manifest = small_manifest(blocks=9, elements=1000)
    striping = stripe(manifest, 3)
    assert sorted(sum(block.elements for block in part.blocks) for part in striping.parts) == [3000, 3000, 3064]
    for block, home in zip(manifest.blocks, striping.homes, strict=True):
        assert striping.parts[home.server].blocks[home.block] == block
    assert [home.server for home in striping.homes[1:7]] == [1, 2, 0, 1, 2, 0]  # neighbours come over different links


def test_a_frozen_block_is_moved_once() -> None:
    manifest = small_manifest(blocks=4, elements=1000)
    frozen = replace(
        manifest, blocks=tuple(replace(block, trainable=number > 2) for number, block in enumerate(manifest.blocks))
    )
    striping = stripe(frozen, 2)
    assert [home.server for home in striping.homes] == [0, 1, 0, 1, 0]


def test_one_server_has_all() -> None:
    manifest = small_manifest()
    assert stripe(manifest, 1).parts == (manifest,)


def test_more_servers_than_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most one for each of 3 blocks, found 4"):
        stripe(small_manifest(blocks=2), 4)


def test_fresh_stores_are_made_as_parts_of_one_job() -> None:
    standings = [Standing(FIRST, ()), Standing(uuid.uuid4().hex, ())]
    assert share_out(standings, URLS[:2]) == [Share(2, FIRST), Share(2, SECOND)]


@pytest.mark.parametrize(
    ("first", "second", "step"), [((5, 4), (5, 4), 5), ((6, 5), (5, 4), 5), ((5, 4), (6, 5), 5), ((0,), (1, 0), 0)]
)
def test_servers_one_step_apart_open_at_the_step_that_both_have(first, second, step) -> None:
    shares = share_out([Standing(FIRST, first), Standing(SECOND, second)], URLS[:2])
    assert [share.step for share in shares] == [step, step]


def test_a_server_that_was_lost_before_its_first_values_gets_them() -> None:
    shares = share_out([Standing(FIRST, (0,)), Standing(uuid.uuid4().hex, ())], URLS[:2])
    assert shares == [Share(2, FIRST, 0), Share(2, SECOND)]


@pytest.mark.parametrize(
    ("standings", "message"),
    [
        ([(SECOND, (3, 2)), (FIRST, (3, 2))], "b:1 is not part 2 of 2 of the job whose first part luwu://a:1 has"),
        ([(FIRST, (3, 2)), (uuid.uuid4().hex, (3, 2))], "b:1 is not part 2 of 2"),
        ([(FIRST, (3, 2)), (SECOND, (6, 5))], "expected step 3 at luwu://b:1, found 6 and 5"),
        ([(FIRST, (3,)), (SECOND, (2, 1))], "expected step 2 at luwu://a:1, found 3;"),
        ([(FIRST, (3, 2)), (SECOND, ())], "expected step 3 at luwu://b:1, found no values"),
    ],
)
def test_stores_that_do_not_belong_together_are_named(standings, message) -> None:
    with pytest.raises(ManifestMismatchError, match=message):
        share_out([Standing(*standing) for standing in standings], URLS[: len(standings)])


def test_urls_of_several_servers() -> None:
    assert [server.url for server in parse_urls("luwu://a:1,b,[::1]:2")] == [
        "luwu://a:1",
        "luwu://b:7070",
        "luwu://[::1]:2",
    ]
    assert parse_urls("luwu://a:1,luwu://b:2") == parse_urls("luwu://a:1,b:2")
    with pytest.raises(ConfigError, match="expected different servers, found a:1 twice"):
        parse_urls("luwu://a:1,b:1,a:1")
    for wrong in ("luwu://a:1,", "a:1,luwu://b:1", "luwu://a:1,b:0"):
        with pytest.raises(ConfigError):
            parse_urls(wrong)
