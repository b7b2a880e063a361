"""The front: OpenAI's chat completions API over a Horde's native chat routes."""
