import asyncio
from typing import Any

import openai
import orjson
import pytest

from horde.native.admin.cli import main
from horde.native.admin.operations import list_applications
from horde.native.db import traffic
from horde.native.db.traffic import PURGE_TRAFFIC, TRAFFIC_DAYS
from tests.integration.conftest import Chain
from tests.support.native_server import MODEL, Caller, NativeServer, submit_body
from tests.support.waiting import wait_until

_NO_RECORDS = "SELECT count(*) = 0 FROM chat_requests"


async def _send(client: Caller, agent: str | None, times: int = 1) -> None:
    headers = {} if agent is None else {"Client-Agent": agent}
    for _ in range(times):
        answer = await client.call("POST", "/v2/generate/chat", submit_body(), **headers)
        assert answer.status == 202


async def _delete_records(native: NativeServer) -> None:
    await native.pool.execute("UPDATE chat_requests SET expires_at = now() - interval '21 minutes'")
    await wait_until(lambda: native.pool.fetchval(_NO_RECORDS), description="the records to be deleted")
    # Their day may be yesterday by now.
    await native.pool.execute("UPDATE application_traffic SET day = (now() AT TIME ZONE 'UTC')::date")


async def _traffic(native: NativeServer, days: int = 1) -> dict[str, tuple[int, int, int]]:
    rows = await list_applications(native.pool, days)
    return {row["application"]: (row["requests"], row["replies"], row["kudos"]) for row in rows}


@pytest.mark.rule("NAT-19")
async def test_requests_count_for_their_application_before_and_after_their_records_are_deleted(
    native: NativeServer, owner: Caller, client: Caller
) -> None:
    await owner.come_online()
    await _send(client, "busy:1:me")
    await owner.reply(await owner.pop_job(), "x" * 84)
    await _send(client, "busy:2:somebody else")
    for agent in (None, "", " : ", "no colon"):
        await _send(client, agent)
    await client.submit(models=["nobody's"])
    sent = {"busy": (2, 1, 100), "no colon": (1, 0, 0), "unknown": (3, 0, 0)}
    assert await _traffic(native) == sent

    await _delete_records(native)
    assert await _traffic(native) == sent

    await _send(client, "busy:1:me")
    assert (await _traffic(native))["busy"] == (3, 1, 100)
    await native.pool.execute("UPDATE application_traffic SET day = day - 1")
    assert await _traffic(native) == {"busy": (1, 0, 0)}
    assert (await _traffic(native, 2))["busy"] == (3, 1, 100)


@pytest.mark.rule("NAT-19")
async def test_no_client_can_make_more_names_than_a_day_may_have(
    native: NativeServer, owner: Caller, client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MAX_APPLICATIONS_A_DAY", 2)
    await owner.come_online()
    for number in range(4):
        await _send(client, f"application {number}", times=4 - number)
    await _delete_records(native)
    assert await _traffic(native) == {"application 0": (4, 0, 0), "application 1": (3, 0, 0), "(others)": (3, 0, 0)}

    for agent in ("application 0", "another"):
        await _send(client, agent)
    await _delete_records(native)
    assert await _traffic(native) == {"application 0": (5, 0, 0), "(others)": (4, 0, 0), "application 1": (3, 0, 0)}


async def test_days_are_forgotten_after_a_year_or_so(native: NativeServer) -> None:
    old = "INSERT INTO application_traffic SELECT (now() AT TIME ZONE 'UTC')::date - $1::integer, 'old', 1, 1, 1"
    for days in (TRAFFIC_DAYS, TRAFFIC_DAYS + 1):
        await native.pool.execute(old, days)
    await native.pool.execute(PURGE_TRAFFIC, TRAFFIC_DAYS)
    left = await native.pool.fetch("SELECT (now() AT TIME ZONE 'UTC')::date - day AS age FROM application_traffic")
    assert [row["age"] for row in left] == [TRAFFIC_DAYS]


@pytest.mark.rule("ATT-4")
async def test_an_application_counts_under_the_title_that_its_client_sends(
    chain: Chain, migrated_database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await chain.worker.come_online()
    titled = {"X-Title": "My Application"}
    async with openai.AsyncOpenAI(
        base_url=chain.base_url, api_key=chain.api_key, max_retries=0, default_headers=titled
    ) as client:
        waiting = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}]),
            name="test - a completion",
        )
        job = (await chain.worker.pop(wait_seconds=20)).body
        await chain.worker.reply(job, "x" * 84)
        await waiting

    monkeypatch.setenv("HORDE_NATIVE_DATABASE_URL", migrated_database_url)
    assert await asyncio.to_thread(main, ["applications", "--json"]) == 0
    listed: list[dict[str, Any]] = orjson.loads(capsys.readouterr().out)
    assert listed == [{"application": "My Application", "requests": 1, "replies": 1, "kudos": 1.0}]
