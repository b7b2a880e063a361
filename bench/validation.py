"""Cost of checking a request: the front's whole path from bytes to a request, beside the OpenAI client's own models.

Run: ``.venv/bin/python -m bench.validation``. One process, one core; each row is the median of rounds that
visit the variants in turn, so that a drift of the machine meets all of them alike.
"""

import statistics
import time
from collections.abc import Callable

import orjson
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from horde.oai.prepare import read_chat_request

ROUNDS, CALLS = 15, 100

_WORDS = "the crowd of volunteer machines serves language models and is paid in kudos for every reply "


def typical_request() -> bytes:
    """Return a request of 30 messages, 5 tools and about 20 KB, as a coding agent sends it."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": _WORDS * 2,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": "string", "description": _WORDS} for key in ("path", "query", "reason", "limit")
                    },
                    "required": ["path", "query", "reason", "limit"],
                    "additionalProperties": False,
                },
            },
        }
        for number in range(5)
    ]
    messages: list[dict[str, object]] = [{"role": "system", "content": _WORDS * 8}]
    for turn in range(9):
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "tool_1", "arguments": '{"path": "a"}'}}
        messages += [
            {"role": "user", "content": [{"type": "text", "text": _WORDS * 4}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": _WORDS * 6},
        ]
    messages += [{"role": "assistant", "content": _WORDS * 4}, {"role": "user", "content": _WORDS * 4}]
    return orjson.dumps(
        {"model": "a/model", "messages": messages, "tools": tools, "tool_choice": "auto", "max_tokens": 900}
    )


def microseconds(call: Callable[[], object]) -> float:
    """Return the time of one call in microseconds, over :data:`CALLS` calls."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


def main() -> None:
    """Measure and print the table."""
    data = typical_request()
    sdk = TypeAdapter(CompletionCreateParamsNonStreaming)
    variants: dict[str, Callable[[], object]] = {
        "orjson.loads alone": lambda: orjson.loads(data),
        "front: parse, screen, validate, shared rules": lambda: read_chat_request(data),
        "orjson.loads, then openai's request types by pydantic": lambda: sdk.validate_python(orjson.loads(data)),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            times[name].append(microseconds(call))
    base = statistics.median(times["orjson.loads alone"])
    table = Table("what", "µs a request", "ratio to parsing alone", title=f"One request of {len(data):,} bytes")
    for name, samples in times.items():
        median = statistics.median(samples)
        table.add_row(name, f"{median:.0f}", f"{median / base:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
