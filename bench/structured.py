"""How often forced calls and strict schemas come out valid through the whole chain, with the bundled model.

``python bench/structured.py [REQUESTS]`` starts a whole Horde and asks, at the default temperature, for as many forced
calls and as many strict documents; fifty each when left out. It ends with 1 when a single one is not valid.
"""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import openai
import orjson
from rich.console import Console
from rich.table import Table

from horde.local.console import Terminal
from horde.local.start import Running, Start, UpOptions
from horde.local.state import StateFolder
from horde.local.supervisor import Supervisor

MAX_TOKENS: Final = 256
CONCURRENT: Final = 4
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 24},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
}
FORCED_CALL: Final[dict[str, Any]] = {
    "tools": [
        {"type": "function", "function": {"name": "forecast", "strict": True, "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "forecast"}},
}
STRICT_SCHEMA: Final[dict[str, Any]] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "forecast", "strict": True, "schema": SCHEMA}},
}
CITIES: Final = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Seoul", "Tunis", "Dakar")


async def run(requests: int) -> bool:
    """Start everything, ask, print; return whether every answer was valid."""
    with tempfile.TemporaryDirectory(prefix="horde-bench-") as folder:
        options = UpOptions(state_dir=Path(folder) / "state", front_port=0, native_port=0, sample=False)
        supervisor = Supervisor(lambda _name, _seconds: None)
        with StateFolder(options.state_dir) as state, Terminal().steps() as steps:
            async with supervisor:
                running = await Start(options, state, supervisor, steps).run()
                return await _ask_all(running, requests)


async def _ask_all(running: Running, requests: int) -> bool:
    table = Table("what", "valid", "first that was not", title=f"{running.model}, {requests} requests each")
    kinds: dict[str, Mapping[str, Any]] = {"forced call": FORCED_CALL, "strict schema": STRICT_SCHEMA}
    all_valid = True
    slots = asyncio.Semaphore(CONCURRENT)
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key=running.api_key, max_retries=0) as client:

        async def ask(number: int, more: Mapping[str, Any]) -> str | None:
            async with slots:
                return await _fault_of(client, running.model, CITIES[number % len(CITIES)], more)

        for kind, more in kinds.items():
            faults = await asyncio.gather(*(ask(number, more) for number in range(requests)))
            wrong = [fault for fault in faults if fault is not None]
            table.add_row(kind, f"{requests - len(wrong)} of {requests}", wrong[0] if wrong else "")
            all_valid = all_valid and not wrong
    Console().print(table)
    return all_valid


async def _fault_of(client: openai.AsyncOpenAI, model: str, city: str, more: Mapping[str, Any]) -> str | None:
    """Return what is wrong with one answer, or None."""
    try:
        reply = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"I travel to {city}. How will the weather be?"}],
            max_tokens=MAX_TOKENS,
            **more,
        )
    except openai.OpenAIError as error:
        return str(error)[:200]
    message = reply.choices[0].message.model_dump()
    text = message["content"]
    if "tools" in more:
        calls = message["tool_calls"] or []
        if [call["function"]["name"] for call in calls] != ["forecast"]:
            return f"{len(calls)} calls"
        text = calls[0]["function"]["arguments"]
    try:
        document = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return f"no JSON ({reply.choices[0].finish_reason})"
    return None if jsonschema_rs.validator_for(SCHEMA).is_valid(document) else "not what the schema says"


if __name__ == "__main__":
    valid = asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
    sys.exit(0 if valid else 1)
