"""Bodies as bytes: bounded in size, time and structure; strict JSON."""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from horde.oai.body import BodyReader, ClientLeftError, parse_json_object
from horde.oai.errors import ChatFrontError
from tests.support.json_values import JSON_VALUES

MAX_BYTES = 1000

type Receive = Callable[[], Awaitable[Message]]


def sending(parts: Iterable[bytes], *, then: Message | None = None) -> Receive:
    """Return a channel that hands over the parts of a body, the last one as its end or before a further message."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append(then or {"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        return messages.pop(0)

    return receive


class Reader:
    """A body reader and the sizes it reported."""

    def __init__(self, **limits: Any) -> None:
        self.sizes: list[int] = []
        values = {"max_bytes": MAX_BYTES, "max_bytes_reading": 3 * MAX_BYTES, "timeout_seconds": 5.0} | limits
        self.bodies = BodyReader(**values, on_received=self.sizes.append)

    async def read(self, *parts: bytes, **headers: str) -> bytes:
        return await self.bodies.read(sending(parts), named(headers))

    async def refused(self, *parts: bytes, **headers: str) -> ChatFrontError:
        with pytest.raises(ChatFrontError) as caught:
            await self.read(*parts, **headers)
        return caught.value


def named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


# Size and time


@pytest.mark.rule("ADM-6")
async def test_a_body_in_parts_is_read_whole_and_measured() -> None:
    reader = Reader()
    assert await reader.read(b"ab", b"", b"c") == b"abc"
    assert await reader.read() == b""
    assert reader.sizes == [3, 0]


@pytest.mark.rule("ADM-4", "ADM-6", "ERR-18")
async def test_one_byte_over_the_limit_is_too_large_and_not_measured() -> None:
    reader = Reader()
    assert len(await reader.read(b"x" * MAX_BYTES)) == MAX_BYTES
    error = await reader.refused(b"x" * MAX_BYTES, b"x", b"y" * 10_000)
    assert (error.status, error.code) == (413, "RequestTooLarge")
    assert error.response_headers() == {"connection": "close"}
    assert reader.sizes == [MAX_BYTES]


@pytest.mark.rule("ADM-4")
@pytest.mark.parametrize("declared", [str(MAX_BYTES + 1), "9" * 30])
def test_a_declared_size_over_the_limit_is_refused_before_a_byte_is_read(declared: str) -> None:
    with pytest.raises(ChatFrontError, match="over the limit of 1000 bytes"):
        Reader().bodies.check_declared_size({"content-length": declared})


@pytest.mark.parametrize("declared", [str(MAX_BYTES), "0", "", "-5", "many"])
def test_any_other_declared_size_is_left_to_the_reading(declared: str) -> None:
    Reader().bodies.check_declared_size({"content-length": declared})
    Reader().bodies.check_declared_size({})


@pytest.mark.rule("ADM-5", "ERR-17")
async def test_a_body_that_stops_coming_is_a_timeout_and_gives_its_share_back() -> None:
    reader = Reader(timeout_seconds=0.01)
    stopped = asyncio.Event()
    parts = sending([b"{"])
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        if taken > 1:
            await stopped.wait()
        return await parts()

    with pytest.raises(ChatFrontError) as caught:
        await reader.bodies.read(receive, {})
    assert (caught.value.status, caught.value.code) == (408, "RequestBodyTimeout")
    assert caught.value.response_headers() == {"connection": "close"}
    assert reader.sizes == []
    assert len(await reader.read(b"x" * MAX_BYTES)) == MAX_BYTES


async def test_a_client_that_leaves_while_sending_is_no_error_of_its_request() -> None:
    reader = Reader()
    with pytest.raises(ClientLeftError):
        await reader.bodies.read(sending([b"{"], then={"type": "http.disconnect"}), {})
    assert reader.sizes == []


@pytest.mark.rule("ERR-26")
async def test_all_bodies_being_read_share_a_bound_and_give_it_back() -> None:
    reader = Reader(max_bytes_reading=2 * MAX_BYTES)
    finish = asyncio.Event()

    async def held() -> bytes:
        sent = sending([b"x" * MAX_BYTES])
        first = True

        async def receive() -> Message:
            nonlocal first
            if not first:
                await finish.wait()
            first = False
            return await sent()

        return await reader.bodies.read(receive, {})

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(held(), name=f"test - body {number}") for number in range(2)]
        await asyncio.sleep(0)
        error = await reader.refused(b"x")
        assert (error.status, error.code, error.retry_after) == (503, "FrontAtCapacity", 5)
        finish.set()
    assert [len(task.result()) for task in waiting] == [MAX_BYTES, MAX_BYTES]
    assert await reader.read(b"x") == b"x"


# Encodings


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " gzip "])
async def test_a_gzip_body_is_unpacked_and_measured_as_unpacked(encoding: str) -> None:
    reader = Reader()
    packed = gzip.compress(b'{"a":1}')
    assert await reader.read(packed[:5], packed[5:], content_encoding=encoding) == b'{"a":1}'
    assert reader.sizes == [7]


@pytest.mark.rule("ADM-4")
async def test_a_small_body_that_unpacks_to_a_huge_one_is_too_large() -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)[:MAX_BYTES]
    assert (await Reader().refused(bomb, content_encoding="gzip")).code == "RequestTooLarge"
    just_over = gzip.compress(b"\0" * (MAX_BYTES + 1))
    assert (await Reader().refused(just_over, content_encoding="gzip")).code == "RequestTooLarge"
    assert len(await Reader().read(gzip.compress(b"\0" * MAX_BYTES), content_encoding="gzip")) == MAX_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"a":1}',
        gzip.compress(b"{}")[:-1],
        gzip.compress(b"{}")[:12],
        gzip.compress(b"{}") + b"x",
        gzip.compress(b"{}") * 2,
        zlib.compress(b"{}"),
        gzip.compress(b"{}")[:-5] + b"\0" * 5,
    ],
    ids=["empty", "plain", "cut", "cut early", "trailing", "two members", "zlib", "wrong checksum"],
)
async def test_what_is_not_one_whole_gzip_stream_is_a_bad_request(body: bytes) -> None:
    error = await Reader().refused(body, content_encoding="gzip")
    assert (error.status, error.code, error.param) == (400, "BadRequest", None)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
async def test_another_encoding_is_not_understood_and_says_which_is(encoding: str) -> None:
    error = await Reader().refused(b"{}", content_encoding=encoding)
    assert error.status == 415
    assert error.response_headers() == {"connection": "close", "accept-encoding": "gzip"}


@pytest.mark.parametrize("encoding", ["identity", ""])
async def test_no_encoding_may_be_said(encoding: str) -> None:
    assert await Reader().read(b"{}", content_encoding=encoding) == b"{}"


@given(st.binary(max_size=200))
def test_no_bytes_as_a_gzip_body_do_anything_but_unpack_or_be_refused(body: bytes) -> None:
    try:
        asyncio.run(Reader().read(body, content_encoding="gzip"))
    except ChatFrontError as error:
        assert error.status in {400, 413}  # noqa: PT017 - either outcome is right


# JSON


def refused_json(data: bytes) -> ChatFrontError:
    with pytest.raises(ChatFrontError) as caught:
        parse_json_object(data)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "BadRequest", None)
    orjson.dumps(caught.value.envelope())
    return caught.value


@pytest.mark.rule("REQ-1")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":1}}',
        b'{"a":1}{"b":2}',
        b"hello",
        b"\xff\xfe{\x00}\x00",
        b'{"a":\xff}',
    ],
)
def test_what_is_not_json_is_a_bad_request(data: bytes) -> None:
    assert "could not be parsed as JSON" in refused_json(data).message


@pytest.mark.rule("REQ-2")
@pytest.mark.parametrize(
    "number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e400", b"1e", b"01", b"0x1", b".5"]
)
@pytest.mark.parametrize("place", [b'{"temperature":%s}', b'{"tools":[{"function":{"parameters":{"maximum":%s}}}]}'])
def test_what_is_no_finite_number_is_refused_wherever_it_stands(place: bytes, number: bytes) -> None:
    refused_json(place % number)


@pytest.mark.parametrize(
    "text", [rb'{"a":"\ud83d"}', rb'{"\udfff":1}', rb'{"a":"\udc00\ud800"}', b'{"a":"\xed\xa0\xbd"}']
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(text: bytes) -> None:
    refused_json(text)


@pytest.mark.parametrize("data", [b"[]", b"null", b"true", b"7", b'"{}"', b"[{}]"])
def test_json_that_is_no_object_is_a_bad_request(data: bytes) -> None:
    assert refused_json(data).message == "The request body has to be a JSON object."


def test_a_byte_order_mark_is_passed_over_once() -> None:
    assert parse_json_object(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    refused_json(b"\xef\xbb\xbf\xef\xbb\xbf{}")


def test_of_a_key_that_stands_twice_the_last_one_counts() -> None:
    assert parse_json_object(b'{"a":1,"a":{"b":2},"a":3}') == {"a": 3}


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [65, 100, 1023, 5000, 100_000])
def test_more_than_64_levels_are_refused(levels: int) -> None:
    parse_json_object(nested(64))
    refused_json(nested(levels))
    refused_json(b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}")


def test_a_body_of_tens_of_thousands_of_values_is_refused() -> None:
    many = 2**16
    assert len(parse_json_object(orjson.dumps({"a": [0] * (many - 1)}))["a"]) == many - 1
    refused_json(orjson.dumps({"a": [0] * many}))
    refused_json(orjson.dumps({"a": [{}] * (many // 2), "b": [[0]] * (many // 2)}))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON_VALUES, max_size=5))
def test_an_object_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert parse_json_object(orjson.dumps(value)) == value


@given(st.binary(max_size=100))
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    try:
        parse_json_object(data)
    except ChatFrontError as error:
        assert error.code == "BadRequest"  # noqa: PT017 - either outcome is right
        orjson.dumps(error.envelope())


def test_a_body_of_millions_of_values_is_refused_before_it_is_parsed() -> None:
    data = b'{"messages": [' + b"1," * 2**21 + b"1]}"
    assert "holds more than 65536 values" in refused_json(data).message
