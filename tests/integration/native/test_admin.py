import asyncio
import shlex
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from horde.native.admin.cli import main
from horde.native.admin.ledger_check import check_ledger, prove_ledger
from horde.native.db.administration import MOVE_KUDOS
from horde.native.ledger import MAX_BALANCE_CENTS, MAX_PURSE_CENTS
from tests.support.native_server import MODEL, Caller, NativeServer, declaration

_CORRUPTIONS: Final = {
    "a balance is the sum of its rows": "UPDATE accounts SET balance = balance + 1 WHERE id = 2 * $1::bigint",
    "all balances sum to zero": "UPDATE accounts SET balance = balance - 7 WHERE id = 2 * $1::bigint",
    "what is held is what open requests hold": """
        UPDATE accounts SET balance = balance + 5 WHERE id = 2 * $1::bigint + 1""",
    "an ended request holds nothing": "UPDATE chat_requests SET held = 3 WHERE user_id = $1 AND state = 'replied'",
    "an open request holds what the ledger says": """
        UPDATE chat_requests SET held = held + 1 WHERE user_id = $1 AND state = 'waiting'""",
    "a hold is released whole, once its request has ended": """
        UPDATE ledger SET amount = amount + 1 WHERE kind = 'release' AND target = 2 * $1::bigint""",
    "what is released was held": """
        DELETE FROM ledger WHERE kind = 'hold' AND source = 2 * $1::bigint
            AND request_id IN (SELECT request_id FROM ledger WHERE kind = 'release')""",
    "a request's charge is its row of the ledger": """
        UPDATE chat_requests SET charged = charged + 1 WHERE user_id = $1 AND state = 'replied'""",
    "a charge is paid by the requester, or by the Horde for the anonymous user": """
        UPDATE ledger SET source = -2 WHERE kind = 'charge' AND source = 2 * $1::bigint""",
    "a charge is the reward of the worker's owner": """
        UPDATE ledger SET target = -2 WHERE kind = 'charge' AND source = 2 * $1::bigint""",
    "a request is held, released and charged once": """
        INSERT INTO ledger (kind, source, target, amount, request_id)
        SELECT kind, source, target, amount, request_id FROM ledger WHERE kind = 'hold' AND source = 2 * $1::bigint
        LIMIT 1""",
    "an award is between the purse and a user, and all else is for a request": """
        UPDATE ledger SET source = -2 WHERE kind = 'grant' AND target = 2 * $1::bigint""",
    "the anonymous user neither pays nor holds": """
        UPDATE ledger SET source = 0 WHERE kind = 'charge' AND source = 2 * $1::bigint""",
}
"""A change of one row, by the rule that has to find it; the argument is a user with a reply and a waiting request."""


_NO_AMOUNTS: Final = (
    *("0", "-1", "-1e999999", "1.234", "1.00000000000000000000000000000001", "nan", "snan", "-inf", "inf", "many", ""),
    *("1e30", "1e999999", "1e-999999", "10000000000001", "99999999999999999999", "9" * 5000),
)


async def _admin(*arguments: str) -> int:
    """Run ``horde admin`` as the program does, with an event loop of its own."""
    return await asyncio.to_thread(main, arguments)


@pytest.fixture(autouse=True)
def _database(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORDE_NATIVE_DATABASE_URL", migrated_database_url)


async def _use(native: NativeServer, client: Caller, owner: Caller) -> int:
    """Have one request replied and another wait, both with holds; return the submitter's number."""
    # Longer than the free output allowance of an idle pool, so that each is held for.
    long: dict[str, Any] = {"params": {"max_length": 5000}}
    declared = declaration(max_length=5000)
    await owner.come_online(declared=declared)
    replied = await client.submit_id(**long)
    await owner.reply(await owner.pop_job(declared=declared))
    assert (await client.status(replied))["done"]
    await client.submit_id(**long)
    found = await native.pool.fetchval("SELECT user_id FROM chat_requests LIMIT 1")
    return int(found)


def _printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return orjson.loads(capsys.readouterr().out)


async def test_a_key_is_shown_once_and_only_its_hash_is_stored(
    native: NativeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _admin("users", "create", "ada", "--kudos", "12.5", "--json") == 0
    key = _printed(capsys)["api_key"]

    found = await native.caller(key).call("GET", "/v2/find_user")
    assert (found.body["username"], found.body["kudos"]) == ("ada", 12.5)
    assert await native.pool.fetchval("SELECT count(*) FROM users u WHERE u::text LIKE '%' || $1 || '%'", key) == 0
    assert await _admin("users", "show", "ada", "--json") == 0
    assert key not in capsys.readouterr().out


async def test_a_rotated_or_revoked_key_and_a_disabled_user_are_refused(
    native: NativeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _admin("users", "create", "ada", "--json") == 0
    first = _printed(capsys)["api_key"]
    assert await _admin("keys", "rotate", "ada", "--json") == 0
    second = _printed(capsys)["api_key"]

    assert (await native.caller(first).call("GET", "/v2/find_user")).rc == "InvalidAPIKey"
    assert await _admin("users", "disable", "ada") == 0
    assert (await native.caller(second).call("GET", "/v2/find_user")).rc == "InvalidAPIKey"
    assert await _admin("users", "enable", "ada") == 0
    assert (await native.caller(second).call("GET", "/v2/find_user")).status == 200


async def test_a_name_is_given_once(native: NativeServer, capsys: pytest.CaptureFixture[str]) -> None:
    await native.user("ada")

    assert await _admin("users", "create", "ada") == 1
    assert "There is a user named 'ada' already." in capsys.readouterr().err


async def test_awards_are_rows_of_a_ledger_that_balances(
    native: NativeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await native.user("ada", kudos=3)

    assert await _admin("kudos", "award", "ada", "10.25", "--json") == 0
    assert _printed(capsys) == {"user": "ada", "kudos": 13.25}
    assert await _admin("kudos", "take", "ada", "1", "--json") == 0
    assert _printed(capsys) == {"user": "ada", "kudos": 12.25}
    assert await prove_ledger(native.pool) == []


@pytest.mark.parametrize("amount", _NO_AMOUNTS)
@pytest.mark.parametrize("command", ["award", "take"])
async def test_an_amount_that_is_none_moves_nothing(
    native: NativeServer, command: str, amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await native.user("ada")

    assert await _admin("kudos", command, "ada", "--", amount) in {1, 2}
    assert "Traceback" not in (said := capsys.readouterr().err)
    assert "Kudos are" in said or "An amount has at most two decimals" in said
    assert await native.pool.fetchval("SELECT count(*) FROM ledger") == 0


@pytest.mark.rule("KUD-15")
async def test_no_award_makes_a_balance_or_a_debt_that_a_settlement_could_push_over_its_column(
    native: NativeServer, owner: Caller, client: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _admin("kudos", "award", "client", "9999999999000") == 0
    assert await _admin("kudos", "take", "owner", "10000000000000") == 0
    capsys.readouterr()
    assert await _admin("kudos", "award", "client", "0.01") == 1
    assert await _admin("kudos", "take", "owner", "0.01") == 1
    assert capsys.readouterr().err.count("Nothing was moved") == 2

    await _use(native, client, owner)
    assert await prove_ledger(native.pool) == []


async def test_the_purse_gives_no_more_than_it_can_book(native: NativeServer) -> None:
    await native.user("ada")
    async with native.pool.acquire() as connection:
        spent = connection.transaction()
        await spent.start()
        await connection.execute("UPDATE accounts SET balance = 100 - $1::bigint WHERE id = -1", MAX_PURSE_CENTS)
        limits = ("ada", -1, 101, MAX_BALANCE_CENTS, MAX_PURSE_CENTS)
        assert await connection.fetchval(MOVE_KUDOS, *limits) is None
        assert await connection.fetchval(MOVE_KUDOS, "ada", -1, 100, *limits[3:]) == 100
        await spent.rollback()


async def test_a_worker_in_maintenance_is_told_why_and_gets_no_job(owner: Caller) -> None:
    await owner.come_online()

    assert await _admin("workers", "maintenance", "worker-1", "on", "--message", "A fan is broken.") == 0
    refused = await owner.pop()
    assert (refused.rc, refused.body["message"]) == ("WorkerMaintenance", "A fan is broken.")
    assert await _admin("workers", "maintenance", "worker-1", "off") == 0
    await owner.come_online()


async def test_a_worker_is_deleted_once_none_of_its_jobs_is_on_record(
    native: NativeServer, owner: Caller, client: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    await owner.come_online()
    await client.submit_id()
    await owner.pop_job()

    assert await _admin("workers", "delete", "worker-1") == 1
    assert "on record" in capsys.readouterr().err
    await native.pool.execute("DELETE FROM chat_requests")
    assert await _admin("workers", "delete", "worker-1") == 0
    assert await native.pool.fetchval("SELECT count(*) FROM workers") == 0


@pytest.mark.rule("NAT-16")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("maintenance", "{}"), "MaintenanceMode"),
        (("admission", "{}"), "ChatAdmissionDisabled"),
        (("models", "admission", MODEL, "{}"), "ChatAdmissionDisabled"),
    ],
)
async def test_the_next_submit_notices_a_switch_and_what_waits_is_served(
    owner: Caller, client: Caller, command: tuple[str, ...], code: str
) -> None:
    closes = code == "MaintenanceMode"
    await owner.come_online()
    taken = await client.submit_id()

    assert await _admin(*(part.format("on" if closes else "off") for part in command)) == 0
    refused = await client.submit()
    assert (refused.status, refused.rc, "retry-after" in refused.headers) == (503, code, True)
    await owner.reply(await owner.pop_job())
    assert (await client.status(taken))["done"]
    assert await _admin(*(part.format("off" if closes else "on") for part in command)) == 0
    assert (await client.submit()).status == 202


async def test_a_declared_size_changes_the_price(native: NativeServer, owner: Caller, client: Caller) -> None:
    await owner.come_online()
    before = (await client.submit(dry_run=True)).body["kudos"]

    assert await _admin("models", "add", MODEL, "--parameters-billions", "2") == 0
    assert (await client.submit(dry_run=True)).body["kudos"] == pytest.approx(2 * before, abs=0.02)
    assert (await native.pool.fetchval("SELECT count(*) FROM models")) == 1


async def test_the_check_of_a_ledger_in_use_finds_nothing(
    native: NativeServer, client: Caller, owner: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    await _use(native, client, owner)

    assert await _admin("ledger", "check", "--json") == 0
    assert _printed(capsys) == []


@pytest.mark.parametrize("rule", _CORRUPTIONS)
async def test_the_check_finds_a_row_that_was_changed(
    native: NativeServer, client: Caller, owner: Caller, rule: str
) -> None:
    user = await _use(native, client, owner)
    async with native.pool.acquire() as connection:
        change = connection.transaction()
        await change.start()
        # Nothing that the Horde may do changes the ledger: the trigger has to be out of the way.
        await connection.execute("ALTER TABLE ledger DISABLE TRIGGER ledger_append_only")
        await connection.execute("DROP INDEX ledger_once_idx")
        changed = await connection.execute(_CORRUPTIONS[rule], user)
        found = {finding.rule for finding in await check_ledger(connection)}
        await change.rollback()

    assert changed.split()[-1] != "0"
    assert rule in found
    assert await prove_ledger(native.pool) == []


async def test_findings_are_printed_and_the_exit_code_says_so(
    native: NativeServer, client: Caller, owner: Caller, capsys: pytest.CaptureFixture[str]
) -> None:
    user = await _use(native, client, owner)
    await native.pool.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 2 * $1::bigint", user)

    assert await _admin("ledger", "check", "--json") == 1
    assert {finding["subject"] for finding in _printed(capsys)} == {"all accounts", f"account {2 * user}"}


async def test_a_database_without_a_horde_is_told_in_a_sentence_and_can_be_migrated(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HORDE_NATIVE_DATABASE_URL", database_url)

    assert await _admin("users", "list") == 1
    assert "horde admin migrate" in capsys.readouterr().err
    assert await _admin("migrate") == 0
    assert await _admin("users", "list", "--json") == 0
    assert [user["name"] for user in _printed(capsys)] == ["Anonymous"]


async def test_settings_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HORDE_NATIVE_DATABASE_URL")

    assert await _admin("users", "list") == 2
    assert "HORDE_NATIVE_DATABASE_URL" in capsys.readouterr().err


async def test_the_commands_of_the_how_to_work_as_written(native: NativeServer, owner: Caller) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "run_a_horde.md").read_text()
    block = page.partition("## Operate it")[2].partition("```sh\n")[2].partition("```")[0]
    await owner.come_online(model="some/model")

    for line in block.splitlines():
        horde, admin, *arguments = shlex.split(line, comments=True)
        assert (horde, admin) == ("horde", "admin")
        assert await _admin(*arguments) == 0, line
    assert await native.pool.fetchval("SELECT maintenance_message FROM horde_state") == "Back at noon."
