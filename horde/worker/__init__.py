"""The worker: serves a Horde's chat jobs with a real model server."""
