"""All in one: starts and stops database, stream store, model server, Horde, worker and front in order."""
