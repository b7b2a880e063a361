"""Operating a Horde: what an administrator does to its users, workers and models, and the proof of its ledger."""
