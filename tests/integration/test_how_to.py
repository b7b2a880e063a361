"""The pages for API users, run: every example and check of how-to and tutorial, in order, over the real parts."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from horde_sdk.generation_parameters.text.chat_policy import ChatGuarantee
from horde_sdk.worker.chat_declaration import ChatImageTransport

from tests.integration.conftest import Chain
from tests.support.native_server import MODEL, declaration, pop_body, seeing

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOW_TO = DOCS / "how-to" / "chat_completions.md"
TUTORIAL = DOCS / "tutorial" / "first_reply.md"
BLOCK = re.compile(r"^```python(?P<label>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN_MODEL = "test/plain"
UNSERVED_MODEL = "test/unserved"


def blocks(page: Path, label: str = "") -> list[str]:
    """Return a page's programs with a label, padded so that an error names the page's line."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, match.start("code")) + match["code"]
        for match in BLOCK.finditer(text)
        if match["label"].strip() == label
    ]


def reply_to(payload: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the message and finish reason of a worker that does what it is asked."""
    message: dict[str, Any] = {"role": "assistant", "content": "Blue."}
    if payload.get("reasoning_effort", "none") != "none":
        message["reasoning_content"] = "The sky has one."
    if payload.get("tools") and payload["messages"][-1]["role"] != "tool":
        function = {"name": payload["tools"][0]["function"]["name"], "arguments": '{"city": "Paris"}'}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        return {**message, "content": None, "tool_calls": calls}, "tool_calls"
    if payload.get("response_format"):
        properties = payload["response_format"]["json_schema"]["schema"]["properties"]
        document = {name: "blue" if part["type"] == "string" else 4 for name, part in properties.items()}
        message["content"] = orjson.dumps(document).decode()
    return message, "stop"


async def serve_jobs(chain: Chain, **pop: Any) -> None:
    """Work as one worker until cancelled."""
    while True:
        answer = await chain.worker.call("POST", "/v2/generate/text/pop", pop_body(wait_seconds=20, **pop))
        if answer.body["id"] is None:
            continue
        message, finish = reply_to(answer.body["payload"])
        reply = {
            "id": answer.body["id"],
            "model_id": answer.body["model"],
            "message": message,
            "finish_reason": finish,
        }
        taken = await chain.worker.call("POST", "/v2/generate/text/submit", reply)
        assert taken.status == 200, taken


@asynccontextmanager
async def pool_of_workers(chain: Chain) -> AsyncIterator[None]:
    """A model that can do everything, one whose tool choice is not enforced, and one whose worker is gone."""
    await chain.worker.come_online(name="gone", declared=declaration(UNSERVED_MODEL))
    await chain.native.make_time_pass(600)
    plain = declaration(PLAIN_MODEL, without=ChatGuarantee.TOOL_CHOICE_ENFORCED)
    able = seeing(ChatImageTransport.URL)
    pops: list[dict[str, Any]] = [{"name": "able", "declared": able}, {"name": "plain", "declared": plain}]
    for pop in pops:
        await chain.worker.come_online(**pop)
    workers = [asyncio.create_task(serve_jobs(chain, **pop), name=f"test - {pop['name']}") for pop in pops]
    try:
        yield
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def run(code: str, names: dict[str, Any], page: Path = HOW_TO) -> None:
    """Run one program of a page, as a reader would."""
    await asyncio.to_thread(exec, compile(code, page, "exec"), names)


@pytest.mark.rule("DOC-7", "CNF-9", "CTX-5", "CTX-9", "REQ-17", "SET-15")
async def test_every_example_and_check_of_the_page_works(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAI_BASE_URL", chain.base_url)
    monkeypatch.setenv("HORDE_API_KEY", chain.api_key)
    names: dict[str, Any] = {}
    async with pool_of_workers(chain):
        for code in blocks(HOW_TO):
            await run(code.replace("<unserved model>", UNSERVED_MODEL), names)
        assert names["model"] == MODEL
        assert names["plain"] == [PLAIN_MODEL]
    names["client"].close()


@pytest.mark.rule("DOC-6")
async def test_the_tutorial_works(chain: Chain) -> None:
    names: dict[str, Any] = {}
    *steps, mistake = blocks(TUTORIAL)
    async with pool_of_workers(chain):
        for code in steps:
            given = code.replace("http://127.0.0.1:8000/v1", chain.base_url).replace("<your key>", chain.api_key)
            await run(given, names, TUTORIAL)
        assert names["reply"].choices[0].message.parsed.legs == 4
        with pytest.raises(openai.NotFoundError) as refused:
            await run(mistake, names, TUTORIAL)
        assert refused.value.code == "model_not_found"
    names["client"].close()


@pytest.mark.rule("DOC-3")
def test_every_section_of_the_page_has_a_check() -> None:
    text = HOW_TO.read_text()
    assert "topics: chat requests" in text.split("---")[1]
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    unchecked = [
        section.partition("\n")[0]
        for section in sections
        if not re.search(r"^Check: .*?```python", section, re.DOTALL | re.MULTILINE)
    ]
    assert unchecked == ["Reversal", "Related"]
