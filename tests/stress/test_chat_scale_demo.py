"""A small run of the scale demo, with and without parts that die: nothing is lost, doubled or left behind."""

from pathlib import Path

import pytest

from horde.local.valkey import LocalValkey
from tests.stress.chat_scale_demo import CHAOS, ScaleOptions, read_finished_lines, run_scale

CLIENTS, REQUESTS = 12, 36


async def small_run(tmp_path: Path, database_url: str, chaos: str) -> tuple[int, dict[str, int]]:
    options = ScaleOptions(
        clients=CLIENTS, requests=REQUESTS, workers=1, word_seconds=0.01, chaos=chaos, pause_seconds=2.0
    )
    async with LocalValkey(tmp_path / "valkey") as store:
        report = await run_scale(options, tmp_path, database_url, store)
    assert report.is_clean, "\n".join(report.lines())
    assert report.delivered + report.refused.total() == REQUESTS
    assert len(report.waits) == report.delivered
    return report.delivered, dict(report.refused)


@pytest.mark.rule("MAP-41", "LOG-7")
async def test_every_request_is_delivered_once(migrated_database_url: str, tmp_path: Path) -> None:
    delivered, _ = await small_run(tmp_path, migrated_database_url, "none")
    assert delivered == REQUESTS


@pytest.mark.parametrize("chaos", CHAOS)
async def test_a_part_that_dies_loses_and_doubles_nothing(
    migrated_database_url: str, tmp_path: Path, chaos: str
) -> None:
    _, refused = await small_run(tmp_path, migrated_database_url, chaos)
    # What can be told to a client: its attempt ended after text was shown, the Horde or a worker was away, this front
    # stops.
    assert set(refused) <= {
        "ChatStreamDiverged",
        "ChatRequestFaulted",
        "HordeUnavailable",
        "no_eligible_worker",
        "FrontShuttingDown",
    }


@pytest.mark.rule("LOG-7")
def test_the_reader_of_the_finished_line_reads_it_up_to_waited() -> None:
    lines = [
        "Chat request 1-2 finished: streamed=True submitted_at=1.5 woke_at=3.5 woke_by=signal waited=2.0s and more",
        "Chat request 3-4 finished: streamed=False submitted_at=1.5 woke_at=none woke_by=None waited=0.25s status=502",
        "Unsubmitted chat request finished: streamed=False submitted_at=none woke_at=none woke_by=None waited=nones",
    ]
    read = read_finished_lines(lines)
    assert [(line.request_id, line.woke_by, line.waited_seconds) for line in read] == [
        ("1-2", "signal", 2.0),
        ("3-4", "None", 0.25),
    ]
