"""The native Horde: queue, eligibility, kudos ledger and live progress on PostgreSQL and Valkey/Redis."""
