"""The one owner of every transition of a request and its jobs."""
