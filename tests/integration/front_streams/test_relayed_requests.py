"""Relayed requests of the whole front: entries written to a real Valkey, statuses by a scripted Horde."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from redis.asyncio import Redis

from horde.chat_contract import CHAT_SIGNALS_CHANNEL, chat_stream_key
from horde.oai.mapping import build_system_fingerprint
from tests.support.front import Front, chat_body, running_front
from tests.support.scripted_horde import MODEL, Answer, generation, status
from tests.support.streaming_transport import Exchange
from tests.support.waiting import wait_until

GEN = "11111111-1111-4111-8111-111111111111"
WORKER = "22222222-2222-4222-8222-222222222222"


class Relayed:
    """A front with a stream store, and one streamed request of it."""

    def __init__(self, front: Front, redis: Redis) -> None:
        self.front = front
        self.redis = redis

    @property
    def request_id(self) -> str:
        """The Horde's id of the request."""
        return next(iter(self.front.horde.ids.values()))

    async def start(self, **body: Any) -> Exchange:
        """Start a streamed request whose job is being generated."""
        self.front.horde.statuses = [Answer(body=status("processing"))]
        exchange = self.front.client.chat(chat_body(stream=True, **body))
        assert await exchange.status() == 200
        return exchange

    async def post(self, seq: int, text: str = "", *, gen: str = GEN, **more: str) -> None:
        """Write what a worker posted."""
        fields = {"gen": gen, "seq": str(seq), "text": text, "worker": WORKER, "model": MODEL, **more}
        await self._write({name: value for name, value in fields.items() if value})

    async def end_attempt(self, gen: str = GEN) -> None:
        """Write an ended marker."""
        await self._write({"gen": gen, "ended": "lease_expired"})

    async def _write(self, fields: dict[str, str]) -> None:
        key = chat_stream_key(self.request_id)
        await self.redis.xadd(key, fields)  # type: ignore[arg-type] # its stubs want more than str
        await self.redis.expire(key, 60)

    async def finish(self, state: dict[str, Any]) -> None:
        """Let the status show how the request ended, and signal it."""
        self.front.horde.statuses = [Answer(body=state)]
        await self.redis.publish(CHAT_SIGNALS_CHANNEL, orjson.dumps({"id": self.request_id, "event": "finished"}))


@asynccontextmanager
async def relayed(redis_url: str, **settings: Any) -> AsyncIterator[Relayed]:
    """A front whose polls are rare, so that signals and deltas are what wakes it."""
    chosen = {"poll_seconds": 2.0, "pace_streams": False, "redis_url": redis_url, **settings}
    redis = Redis.from_url(redis_url)
    async with running_front(**chosen) as front:
        listener = front.state.listener
        await wait_until(lambda: listener is not None and listener.alive, description="the subscription")
        yield Relayed(front, redis)
    await redis.aclose()


async def read_until(events: AsyncIterator[str], text: str) -> list[str]:
    """Read events up to the one that holds a text."""
    read: list[str] = []
    async with asyncio.timeout(30):
        async for event in events:
            read.append(event)
            if text in event:
                return read
    raise AssertionError(f"the stream ended before {text!r}: {read}")


def payloads(events: list[str]) -> list[Any]:
    texts = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    return [text if text == "[DONE]" else orjson.loads(text) for text in texts]


def deltas(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if isinstance(chunk, dict) and chunk["choices"]]


@pytest.mark.rule("DLT-3", "DLT-16", "DLT-18", "DLT-21", "DLT-22", "DLT-25", "DLT-42", "RES-28", "DEV-7")
async def test_posts_go_out_as_they_come_and_an_equal_reply_adds_only_the_finish(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start(stream_options={"include_usage": True})
        assert request.front.horde.bodies[0]["stream"] is True
        events = exchange.events()
        await request.post(1, "Once ")
        first = await read_until(events, "Once ")
        await request.post(2, "more.")
        second = await read_until(events, "more.")
        await request.finish(status("replied", generation("Once more.")))
        chunks = payloads([*first, *second, *[event async for event in events]])
    assert deltas(chunks) == [{"role": "assistant"}, {"content": "Once "}, {"content": "more."}, {}]
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["usage"]["completion_tokens"] == 4
    fingerprint = build_system_fingerprint(WORKER, MODEL)
    assert {chunk["system_fingerprint"] for chunk in chunks[:-1]} == {fingerprint}


@pytest.mark.rule("RES-29")
async def test_entries_without_a_worker_leave_the_fingerprint_null_throughout(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello", worker="", model="")
        first = await read_until(events, "Hello")
        await request.finish(status("replied", generation("Hello there.", model="served")))
        chunks = payloads([*first, *[event async for event in events]])[:-1]
    assert {chunk["system_fingerprint"] for chunk in chunks} == {None}
    assert [chunk["model"] for chunk in chunks] == [MODEL, MODEL, MODEL, "served"]
    assert deltas(chunks)[-2:] == [{"content": " there."}, {}]


@pytest.mark.rule("DLT-6", "DLT-14", "STR-23")
async def test_a_worker_that_posts_nothing_has_its_reply_delivered_whole(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        await request.finish(status("replied"))
        assert deltas(await exchange.chunks()) == [{"role": "assistant"}, {"content": "Hello there."}, {}]


@pytest.mark.rule("DLT-24", "STR-10")
async def test_keepalives_continue_between_deltas(redis_url: str) -> None:
    async with relayed(redis_url, keepalive_seconds=0.02) as request:
        events = (await request.start()).events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        assert (await read_until(events, ": horde"))[-1] == ": horde queue_position=0 wait_time=0"
        await request.post(2, " there")
        await read_until(events, " there")


@pytest.mark.rule("DLT-27", "STR-6")
async def test_a_reply_that_does_not_continue_what_was_sent_ends_in_the_error_event(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        await request.finish(status("replied", generation("Goodbye")))
        chunks = payloads([event async for event in events])
        assert chunks[0]["error"]["code"] == "ChatStreamDiverged"
        assert chunks[1:] == ["[DONE]"]
        assert request.front.horde.cancelled == []


@pytest.mark.rule("DLT-28", "DLT-29", "DLT-31", "CAN-3")
@pytest.mark.parametrize("breach", ["another attempt", "ended marker", "gap"])
async def test_what_breaks_the_attempt_after_text_was_sent_ends_the_stream_and_cancels(
    redis_url: str, breach: str
) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        if breach == "ended marker":
            await request.end_attempt()
        else:
            await request.post(1 if breach == "another attempt" else 3, "x", gen=GEN if breach == "gap" else "other")
        chunks = payloads([event async for event in events])
        assert chunks[0]["error"]["code"] == "ChatStreamDiverged"
        assert chunks[0]["error"]["metadata"] == {"request_id": request.request_id}
        assert chunks[1:] == ["[DONE]"]
        await wait_until(lambda: request.front.horde.cancelled, description="the cancel")


@pytest.mark.rule("DLT-32", "STR-25")
async def test_an_ended_attempt_of_a_faulted_request_reports_the_fault(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        fault = {"rc": "ChatWorkerFault", "message": "The worker failed while generating."}
        request.front.horde.statuses = [Answer(body=status("faulted", fault=fault))]
        await request.end_attempt()
        chunks = payloads([event async for event in events])
        assert chunks[0]["error"]["code"] == "ChatRequestFaulted"
        assert request.front.horde.cancelled == []


@pytest.mark.rule("DLT-17", "DLT-19", "DLT-34")
async def test_reasoning_goes_before_the_text_of_its_post_and_its_rest_before_the_texts(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, reasoning="Let me")
        first = await read_until(events, "Let me")
        await request.finish(status("replied", generation("Four.", reasoning_content="Let me think.")))
        chunks = payloads([*first, *[event async for event in events]])
    assert deltas(chunks) == [
        {"role": "assistant"},
        {"reasoning_content": "Let me"},
        {"reasoning_content": " think."},
        {"content": "Four."},
        {},
    ]


@pytest.mark.rule("DLT-20")
async def test_hidden_reasoning_exposes_nothing_and_text_after_it_is_relayed(redis_url: str) -> None:
    async with relayed(redis_url) as request:
        exchange = await request.start(horde={"include_reasoning": False})
        events = exchange.events()
        await request.post(1, reasoning="Let me think.")
        await request.post(2, "Four.")
        first = await read_until(events, "Four.")
        assert "reasoning" not in "".join(first)
        await request.finish(status("replied", generation("Four.", reasoning_content="Let me think.")))
        assert "reasoning" not in "".join([event async for event in events])


@pytest.mark.rule("MET-18", "MET-29", "MET-30", "MET-31", "DLT-43")
@pytest.mark.parametrize(
    ("final", "outcome"),
    [("Hello", "equal"), ("Hello there.", "prefix"), ("Goodbye", "mismatch"), (None, "ended")],
)
async def test_relayed_streams_are_counted_by_how_they_ended(redis_url: str, final: str | None, outcome: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with relayed(redis_url, meter=provider.get_meter("test")) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        if final is None:
            await request.end_attempt()
        else:
            await request.finish(status("replied", generation(final)))
        assert [event async for event in events][-1] == "data: [DONE]"
        data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    text = data.to_json(indent=None)
    assert f'"horde.outcome": "{outcome}"' in text
    assert "horde.oai.stream.relayed" in text
    assert '"horde.relayed": true' in text


@pytest.mark.rule("DLT-23")
async def test_a_paced_post_comes_in_pieces_that_join_to_it(redis_url: str) -> None:
    async with relayed(redis_url, pace_streams=True) as request:
        exchange = await request.start()
        await request.post(1, "one two three four five six seven eight nine ten")
        events = exchange.events()
        first = await read_until(events, "two")
        await request.finish(status("replied", generation("one two three four five six seven eight nine ten.")))
        chunks = payloads([*first, *[event async for event in events]])
    texts = [delta["content"] for delta in deltas(chunks) if "content" in delta]
    assert "".join(texts) == "one two three four five six seven eight nine ten."
    assert len(texts) > 2


async def test_a_front_whose_redis_is_away_is_degraded_and_still_serves() -> None:
    async with running_front(redis_url="redis://127.0.0.1:1") as front:
        ready = front.client.request("GET", "/readyz")
        assert await ready.status() == 200
        assert await ready.json() == {"status": "degraded", "degraded": ["redis"]}
        chunks = await front.client.chat(chat_body(stream=True)).chunks()
        assert deltas(chunks) == [{"role": "assistant"}, {"content": "Hello there."}, {}]


@pytest.mark.rule("DLT-27", "WAI-7", "STR-6")
async def test_a_reply_found_by_the_deadlines_cancel_that_does_not_continue_the_text_diverges(redis_url: str) -> None:
    async with relayed(redis_url, stream_timeout_seconds=0.5) as request:
        exchange = await request.start()
        events = exchange.events()
        await request.post(1, "Hello")
        await read_until(events, "Hello")
        request.front.horde.cancels = [Answer(body=status("replied", generation("Goodbye")))]
        chunks = payloads([event async for event in events])
    assert [chunk["error"]["code"] for chunk in chunks[:-1]] == ["ChatStreamDiverged"]
    assert chunks[-1] == "[DONE]"


@pytest.mark.rule("DWG-2", "DWG-3")
async def test_a_signal_within_the_recheck_interval_does_not_stand_for_the_recheck(redis_url: str) -> None:
    async with relayed(redis_url, signal_recheck_seconds=0.5) as request:
        request.front.horde.statuses = [Answer(body=status("cancelled"))]
        exchange = request.front.client.chat(chat_body())
        await wait_until(lambda: request.front.horde.of("GET", "/status/"), description="the first read")
        await request.redis.publish(CHAT_SIGNALS_CHANNEL, orjson.dumps({"id": request.request_id, "event": "requeued"}))
        await wait_until(lambda: len(request.front.horde.of("GET", "/status/")) == 2, description="the signal's read")
        request.front.horde.statuses = [Answer(body=status("replied"))]
        assert await exchange.status() == 200


@pytest.mark.rule("DWG-4")
async def test_a_cancelled_signal_needs_no_second_read(redis_url: str) -> None:
    async with relayed(redis_url, signal_recheck_seconds=5) as request:
        request.front.horde.statuses = [Answer(body=status("queued"))]
        exchange = request.front.client.chat(chat_body())
        await wait_until(lambda: request.front.horde.of("GET", "/status/"), description="the first read")
        request.front.horde.statuses = [Answer(body=status("cancelled"))]
        await request.redis.publish(
            CHAT_SIGNALS_CHANNEL, orjson.dumps({"id": request.request_id, "event": "cancelled"})
        )
        assert await exchange.status() == 502
        assert (await exchange.json())["error"]["code"] == "ChatRequestNoGeneration"
