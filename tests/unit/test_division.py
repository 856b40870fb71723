"""A job's blocks and stores over several servers."""

from __future__ import annotations

import uuid

import pytest
from tests.integration.fabric_worker import small_manifest

from luwu.control.address import parse_urls
from luwu.core.division import PIECE_STEP, Piece, Share, Standing, cut_segments, divide, require_one_job, share_out
from luwu.errors import ConfigError, ManifestMismatchError
from luwu.store.settings import DiskSettings

URLS = ["luwu://a:1", "luwu://b:1", "luwu://c:1"]
FIRST = uuid.UUID(int=7).hex
SECOND = uuid.uuid5(uuid.UUID(int=7), "1").hex


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_every_server_has_as_much_of_every_block(servers: int) -> None:
    manifest = small_manifest(blocks=5, elements=20 * PIECE_STEP + 7)
    division = divide(manifest, servers)
    for number, (block, pieces) in enumerate(zip(manifest.blocks, division.pieces, strict=True)):
        end = 0
        for piece in pieces:
            assert (piece.first, piece.first % PIECE_STEP) == (end, 0)
            end += piece.elements
            own = division.parts[piece.server].blocks[piece.block]
            assert (own.name, own.first, own.elements) == (block.name, piece.first, piece.elements)
            assert own.parameters == block.parameters
        assert end == block.elements
        if number > 0:
            assert sorted(division.servers_of(number)) == list(range(servers))
            lengths = [piece.elements for piece in pieces]
            assert max(lengths) <= -(-block.elements // servers) + PIECE_STEP
    assert sum(len(part.blocks) for part in division.parts) == sum(map(len, division.pieces))


def test_small_blocks_go_to_the_servers_in_turn() -> None:
    division = divide(small_manifest(blocks=5, elements=100), 3)
    assert [division.servers_of(block) for block in range(6)] == [[0], [1], [2], [0], [1], [2]]


def test_one_server_has_all() -> None:
    manifest = small_manifest()
    assert divide(manifest, 1).parts == (manifest,)


def test_a_server_with_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 3 for so small a model, found 4"):
        divide(small_manifest(blocks=2, elements=100), 4)


@pytest.mark.parametrize(
    ("first", "elements", "expected"),
    [
        (0, 100, [(10, 0), (40, 1), (100, 0)]),
        (0, 10, [(10, 0)]),
        (10, 20, [(20, 1)]),
        (5, 40, [(5, 0), (35, 1), (40, 0)]),
        (40, 60, [(60, 0)]),
    ],
)
def test_segments_are_cut_as_the_block_is(first: int, elements: int, expected: list[tuple[int, int]]) -> None:
    assert cut_segments([(10, 0), (40, 1), (100, 0)], Piece(0, 0, first, elements)) == expected


def test_fresh_stores_are_made_as_parts_of_one_job() -> None:
    standings = [Standing(FIRST, ()), Standing(uuid.uuid4().hex, ())]
    assert share_out(standings, URLS[:2]) == [Share(2, FIRST), Share(2, SECOND)]


@pytest.mark.parametrize(
    ("first", "second", "step"),
    [((5, 4), (5, 4), 5), ((6, 5), (5, 4), 5), ((5, 4), (6, 5), 5), ((0,), (1, 0), 0), ((25, 20), (24, 20), 20)],
)
def test_servers_that_are_apart_open_at_the_last_step_that_both_have(first, second, step) -> None:
    shares = share_out([Standing(FIRST, first), Standing(SECOND, second)], URLS[:2])
    assert [share.step for share in shares] == [step, step]


def test_servers_that_commit_different_steps_are_refused() -> None:
    words = [
        DiskSettings(durable=durable, snapshot_every=every).commit_words
        for durable, every in [("10 steps", 0), ("10steps", 4), ("stop", 4), ("5 min", 0), ("step", 4), ("1 step", 0)]
    ]
    assert words == [
        "'10 steps'", "'10 steps' and snapshot_every 4", "'stop' and snapshot_every 4", "'300 s'", "'step'", "'step'",
    ]  # fmt: skip
    standings = [Standing(FIRST, (3,), words[0]), Standing(SECOND, (3,), words[1])]
    with pytest.raises(
        ConfigError,
        match=r"durable: expected '10 steps' at luwu://b:1 as at luwu://a:1, found '10 steps' and snapshot_every 4",
    ):
        share_out(standings, URLS[:2])


def test_a_server_that_was_lost_before_its_first_values_gets_them() -> None:
    shares = share_out([Standing(FIRST, (0,)), Standing(uuid.uuid4().hex, ())], URLS[:2])
    assert shares == [Share(2, FIRST, 0), Share(2, SECOND)]


@pytest.mark.parametrize(
    ("standings", "message"),
    [
        (
            [(SECOND, (3, 2)), (FIRST, (3, 2))],
            "b:1 is not part 2 of 2 of the job that the store of luwu://a:1 belongs to",
        ),
        ([(FIRST, (3, 2)), (uuid.uuid4().hex, (3, 2))], "b:1 is not part 2 of 2"),
        ([(FIRST, (3, 2)), (SECOND, (6, 5))], "expected step 3 at luwu://b:1, found 6 and 5"),
        ([(FIRST, (3,)), (SECOND, (2, 1))], "expected step 2 at luwu://a:1, found 3;"),
        ([(FIRST, (3, 2)), (SECOND, ())], "expected step 3 at luwu://b:1, found no values"),
    ],
)
def test_stores_that_do_not_belong_together_are_named(standings, message) -> None:
    with pytest.raises(ManifestMismatchError, match=message):
        share_out([Standing(*standing) for standing in standings], URLS[: len(standings)])


def test_a_worker_that_comes_to_a_run_must_name_its_servers_also_where_they_are_empty() -> None:
    """A fresh run has been opened at no step, and a server that is none of its own has no store at all."""
    first, second = Standing(FIRST, (), under_way=True), Standing(SECOND, (), under_way=True)
    stranger = Standing(uuid.uuid4().hex, ())
    require_one_job([first, second], URLS[:2])
    for standings in ([second, first], [first, stranger], [first, second, stranger]):
        with pytest.raises(ManifestMismatchError, match=r"is not part \d of"):
            require_one_job(standings, URLS[: len(standings)])
    require_one_job([Standing(FIRST, ()), stranger], URLS[:2])  # the run has not begun: the server takes the part


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
