"""The proof of the ledger: it balances, and every amount elsewhere follows from its rows (KUD-15, KUD-19)."""

from dataclasses import dataclass

import asyncpg

from horde.native.db.administration import LEDGER_PROOFS
from horde.native.db.engine import Pool

__all__ = ["Finding", "check_ledger", "prove_ledger"]

_MAX_FINDINGS = 1000
"""Findings of one rule that are told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that breaks a rule of the ledger.

    Attributes:
        rule: The rule, in words.
        subject: What breaks it: an account, a request, a job or a row, with its number.
        expected: What the rows of the ledger say: hundredths of a kudos, or an account's number.
        found: What is there instead.
    """

    rule: str
    subject: str
    expected: int | None
    found: int


async def check_ledger(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> list[Finding]:
    """Return what breaks a rule, as the connection's transaction sees it; nothing, ever.

    Args:
        connection: A connection within a transaction that sees one moment (``repeatable read``).
    """
    findings = []
    for rule, query in LEDGER_PROOFS.items():
        for row in await connection.fetch(f"{query} LIMIT {_MAX_FINDINGS}"):
            expected = None if row["expected"] is None else int(row["expected"])
            findings.append(Finding(rule, row["subject"], expected, int(row["found"])))
    return findings


async def prove_ledger(pool: Pool) -> list[Finding]:
    """Check the ledger as it is at one moment, while the Horde goes on; nothing is locked.

    Args:
        pool: The Horde's database.
    """
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        return await check_ledger(connection)
