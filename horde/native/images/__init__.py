"""Pictures in prompts: fetched, checked, re-encoded, stored, handed to workers, deleted (IMG)."""
