"""What a front makes of HTTP that no library sends: bytes on real sockets, served as its program serves."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from horde.http_protocol import ConnectionLimits
from tests.support.front import chat_body
from tests.support.raw_http import Address, RawClient, chat_request, raw_client, served_front
from tests.support.scripted_horde import Answer, ScriptedHorde, scripted_horde, status
from tests.support.waiting import wait_until

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: front\r\n\r\n"


@pytest.fixture
async def horde() -> AsyncIterator[ScriptedHorde]:
    async with scripted_horde() as server:
        yield server


@pytest.fixture
async def front(horde: ScriptedHorde) -> AsyncIterator[Address]:
    async with served_front(horde) as address:
        yield address


@pytest.fixture
async def client(front: Address) -> AsyncIterator[RawClient]:
    async with raw_client(front) as connection:
        yield connection


# Sizes


@pytest.mark.rule("ERR-1")
async def test_headers_over_their_limit_are_431_in_the_envelope(client: RawClient) -> None:
    await client.send(b"GET /healthz HTTP/1.1\r\nHost: front\r\nX-Long: " + b"a" * 40_000 + b"\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (431, "close")
    assert answer.error == {
        "message": "The request's headers are over the limit of 32768 bytes.",
        "type": "invalid_request_error",
        "param": None,
        "code": "RequestHeadersTooLarge",
        "metadata": {},
    }
    assert answer.headers["access-control-allow-origin"] == "*", "a page may read it as every other answer"
    assert answer.headers["x-request-id"]
    assert await client.is_closed()


async def test_a_header_that_never_ends_is_cut_at_the_limit(client: RawClient) -> None:
    await client.send(b"GET /healthz HTTP/1.1\r\nHost: front\r\nX-Long: ", *[b"a" * 4096] * 12)
    answer = await client.answer()
    assert answer.status == 431
    assert answer.error["code"] == "RequestHeadersTooLarge"


async def test_many_small_headers_count_together(client: RawClient) -> None:
    await client.send(b"GET /healthz HTTP/1.1\r\n", *[b"X-Header: some value\r\n" * 256] * 8)
    assert (await client.answer()).status == 431


async def test_empty_lines_ahead_of_a_request_count_too(client: RawClient) -> None:
    await client.send(*[b"\r\n" * 4096] * 6)
    assert (await client.answer()).status == 431


async def test_headers_within_the_limit_are_read_in_however_many_parts(client: RawClient) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: front\r\nX-Long: " + b"a" * 30_000 + b"\r\n\r\n"
    await client.send(*(request[at : at + 1500] for at in range(0, len(request), 1500)))
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("ends", [True, False])
async def test_a_url_over_its_limit_is_414_in_the_envelope(client: RawClient, *, ends: bool) -> None:
    await client.send(b"GET /", *[b"a" * 5000] * 8, b" HTTP/1.1\r\n\r\n" if ends else b"")
    answer = await client.answer()
    assert answer.status == 414
    assert answer.error["code"] == "RequestUrlTooLong"
    assert await client.is_closed()


@pytest.mark.rule("ADM-4", "ERR-18")
async def test_a_client_that_goes_on_sending_a_refused_body_still_reads_why(horde: ScriptedHorde) -> None:
    async with served_front(horde, max_body_bytes=1024) as front, raw_client(front) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: front\r\nContent-Length: 4194304\r\n\r\n"
        await client.send(head, *[b"x" * 65536] * 32)
        answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert answer.error["code"] == "RequestTooLarge"


# Time


async def test_headers_that_come_too_slowly_are_408_in_the_envelope(horde: ScriptedHorde) -> None:
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: fr")
        answer = await client.answer()
        assert await client.is_closed()
    assert answer.status == 408
    assert answer.error["message"] == "The request's headers were not received within 0.5 seconds."
    assert answer.error["code"] == "RequestHeadersTimeout"


async def test_a_byte_now_and_then_does_not_buy_more_time(horde: ScriptedHorde) -> None:
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        answer = asyncio.create_task(client.answer())
        await client.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        while not answer.done():
            await client.send(b"a")
            await asyncio.wait({answer}, timeout=0.05)
        assert answer.result().status == 408


async def test_the_head_of_a_later_request_has_the_same_time(horde: ScriptedHorde) -> None:
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        await client.send(HEALTHZ)
        assert (await client.answer()).status == 200
        await client.send(HEALTHZ[:10])
        assert (await client.answer()).status == 408


async def test_a_connection_that_sends_nothing_is_closed_without_a_word(horde: ScriptedHorde) -> None:
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        assert await client.is_closed()


async def test_an_idle_connection_is_closed_after_its_time(horde: ScriptedHorde) -> None:
    async with served_front(horde, options={"keepalive_seconds": 0}) as front, raw_client(front) as client:
        await client.send(HEALTHZ)
        assert (await client.answer()).status == 200
        assert await client.is_closed()


async def test_waiting_for_an_answer_does_not_count_as_slow(horde: ScriptedHorde) -> None:
    held = asyncio.Event()
    horde.statuses = [Answer(body=status("replied"), held=held)]
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        await client.send(chat_request(chat_body()))
        await wait_until(lambda: horde.of("GET", "/status/"), description="the request to wait")
        async with raw_client(front) as later:
            assert await later.is_closed(), "the time of a connection made later is over"
        held.set()
        assert (await client.answer()).status == 200


# Forms of a request


MALFORMED = {
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no such method": b"NONSENSE / HTTP/1.1\r\nHost: front\r\n\r\n",
    "a tunnel": b"CONNECT front:443 HTTP/1.1\r\nHost: front\r\n\r\n",
    "a tunnel to a route": b"CONNECT /healthz HTTP/1.1\r\nHost: front\r\n\r\n",
    "no such version": b"GET /healthz HTTP/1.2\r\nHost: front\r\n\r\n",
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "both and an upgrade": b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
    b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "one length twice": b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a signed length": b"POST / HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
    "a list of lengths": b"POST / HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n{}",
    "chunked twice": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a space before a colon": b"POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "CR alone in a header": b"GET /healthz HTTP/1.1\r\nX-Cr: a\rX-Hidden: b\r\n\r\n",
    "a NUL in the target": b"GET /healthz\x00 HTTP/1.1\r\nHost: front\r\n\r\n",
    "a port that is none": b"GET http://front:port/healthz HTTP/1.1\r\n\r\n",
    "a chunk without a size": b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nX-Folded: a\r\n b\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nnonsense\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nX-Nul: a\x00b\r\n\r\n",
    "lines that end in LF alone": b"GET /healthz HTTP/1.1\nHost: front\n\n",
    "a raw UTF-8 path": "GET /v1/models/caf\u00e9 HTTP/1.1\r\nHost: front\r\n\r\n".encode(),
}


@pytest.mark.rule("ERR-1", "ERR-7")
@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_request_is_400_in_the_envelope(
    client: RawClient, horde: ScriptedHorde, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.send(MALFORMED[name])
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert answer.error["message"] == "The request could not be read as HTTP/1.1."
    assert answer.error["code"] == "BadRequest"
    assert await client.is_closed()
    assert horde.bodies == []
    assert caplog.records == [], "what strangers send is not the operator's trouble"


@pytest.mark.parametrize("target", ["/healthz", "http://front/healthz", "HTTP://front:80/healthz?a=b"])
async def test_a_target_may_be_a_whole_url(client: RawClient, target: str) -> None:
    await client.send(f"GET {target} HTTP/1.1\r\nHost: front\r\n\r\n".encode())
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')


@pytest.mark.parametrize(
    "target", ["/%00%0d%0aSet-Cookie:%20a", "/%ff%fe%c3%28", "/%ed%a0%80", "/%f", "/..%2f..%2fetc", "//a//"]
)
async def test_a_target_of_any_escapes_is_no_more_than_unknown(
    client: RawClient, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.send(f"GET {target} HTTP/1.1\r\nHost: front\r\n\r\n".encode(), HEALTHZ)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert "set-cookie" not in answer.headers
    assert (await client.answer()).body == b'{"status":"ok"}'
    assert caplog.records == []


@pytest.mark.parametrize("target", ["http://front", "http://front?a=b"])
async def test_a_whole_url_without_a_path_is_the_root(client: RawClient, target: str) -> None:
    await client.send(f"GET {target} HTTP/1.1\r\nHost: front\r\n\r\n".encode())
    assert (await client.answer()).error["message"].startswith("Unknown request URL: GET /.")


async def test_head_is_answered_without_a_body(client: RawClient) -> None:
    await client.send(b"HEAD /healthz HTTP/1.1\r\nHost: front\r\n\r\n", HEALTHZ)
    head = await client.head()
    assert (head.status, head.headers["content-length"]) == (200, "15")
    assert (await client.answer()).body == b'{"status":"ok"}'


@pytest.mark.parametrize("target", ["*", "/v1/chat/completions", "/nowhere"])
async def test_options_are_answered_everywhere(client: RawClient, target: str) -> None:
    await client.send(f"OPTIONS {target} HTTP/1.1\r\nHost: front\r\nOrigin: http://page\r\n\r\n".encode())
    head = await client.head()
    assert (head.status, head.headers["access-control-allow-origin"]) == (204, "*")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "PURGE", "M-SEARCH", "QUERY"])
async def test_another_method_than_a_routes_is_405_in_the_envelope(client: RawClient, method: str) -> None:
    await client.send(f"{method} /v1/chat/completions HTTP/1.1\r\nHost: front\r\n\r\n".encode())
    answer = await client.answer()
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.error["code"] == "method_not_supported"


# Bodies and versions


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: front\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("trailer", [b"", b"X-Checksum: 1\r\n"])
async def test_a_body_may_come_in_chunks(client: RawClient, horde: ScriptedHorde, trailer: bytes) -> None:
    data = orjson.dumps(chat_body())
    chunks = [b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in (data[:7], data[7:])]
    await client.send(CHUNKED, *chunks, b"0\r\n" + trailer + b"\r\n", HEALTHZ)
    assert (await client.answer()).status == 200
    assert (await client.answer()).body == b'{"status":"ok"}'
    assert len(horde.bodies) == 1


@pytest.mark.parametrize(
    "flood",
    [b"0\r\n" + b"X-Trailer: some value\r\n" * 2000, b"0\r\nX-Trailer: " + b"a" * 40_000, b"1;note=" + b"a" * 40_000],
    ids=["trailers", "a trailer", "a note"],
)
async def test_what_comes_between_and_behind_the_chunks_is_bounded_as_headers_are(
    client: RawClient, horde: ScriptedHorde, flood: bytes
) -> None:
    await client.send(CHUNKED, b"2\r\n{}\r\n", *(flood[at : at + 4096] for at in range(0, len(flood), 4096)))
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (431, "RequestHeadersTooLarge")
    assert await client.is_closed()
    assert horde.bodies == []


async def test_a_trailer_is_no_header(client: RawClient, horde: ScriptedHorde) -> None:
    data = orjson.dumps(chat_body())
    await client.send(CHUNKED + b"%x\r\n%s\r\n0\r\nAuthorization: nonsense\r\n\r\n" % (len(data), data))
    assert (await client.answer()).status == 200, "with this header it would be 401"
    assert len(horde.bodies) == 1


async def test_a_client_that_asks_first_is_told_to_send_its_body(client: RawClient, horde: ScriptedHorde) -> None:
    head, _, data = chat_request(chat_body(), "Expect: 100-continue").partition(b"\r\n\r\n")
    await client.send(head + b"\r\n\r\n")
    assert (await client.head()).status == 100
    await client.send(data)
    assert (await client.answer()).status == 200
    assert len(horde.bodies) == 1


async def test_a_client_that_asks_first_and_is_refused_is_not_told_to_send(client: RawClient) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: nonsense\r\nContent-Length: 9\r\n"
    await client.send(head + b"Expect: 100-continue\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert await client.is_closed(), "what came next could be the body or another request"


async def test_the_rest_of_a_refused_body_is_not_taken_for_a_request(client: RawClient) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: nonsense\r\nContent-Length: %d\r\n\r\n"
    await client.send(head % len(HEALTHZ))
    assert (await client.answer()).status == 401
    await client.send(HEALTHZ, b"HEAD /healthz HTTP/1.1\r\nHost: front\r\n\r\n")
    assert (await client.head()).headers["content-length"] == "15"
    client.leave()


async def test_a_fault_in_the_rest_of_a_refused_body_is_not_answered_again(client: RawClient) -> None:
    head, line, _ = CHUNKED.partition(b"Transfer-")
    await client.send(head + b"Authorization: nonsense\r\n" + line + b"Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    assert (await client.answer()).status == 401
    await client.send(b"nonsense\r\n")
    assert await client.is_closed(), "a second answer would be taken for that of the next request"


async def test_the_rest_of_a_refused_body_has_a_time_limit(horde: ScriptedHorde) -> None:
    limits = ConnectionLimits(head_seconds=0.5)
    async with served_front(horde, options={"limits": limits}) as front, raw_client(front) as client:
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: nonsense\r\nContent-Length: 9\r\n\r\n{"
        )
        assert (await client.answer()).status == 401
        assert await client.is_closed()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("stream", [False, True])
async def test_another_version_gets_its_answer_as_it_is_until_the_connection_ends(
    client: RawClient, version: str, *, stream: bool
) -> None:
    await client.send(chat_request(chat_body(stream=stream), "Connection: close", version=version))
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in answer.headers
    assert answer.body.startswith(b"data: {" if stream else b'{"id":"chatcmpl-')
    assert answer.body.endswith(b"data: [DONE]\n\n" if stream else b"}")
    assert await client.is_closed()


@pytest.mark.parametrize("version", ["0.9", "1.0", "2.0"])
async def test_a_stream_that_only_its_connections_end_ends_is_not_kept_alive(client: RawClient, version: str) -> None:
    await client.send(chat_request(chat_body(stream=True), "Connection: keep-alive", version=version))
    answer = await client.answer()
    assert answer.headers["connection"] == "close"
    assert answer.body.endswith(b"data: [DONE]\n\n")


# Offers of another protocol


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")


@pytest.mark.parametrize("apart", [False, True])
async def test_an_offer_of_http_2_is_passed_over_and_the_body_kept(
    client: RawClient, horde: ScriptedHorde, *, apart: bool
) -> None:
    request = chat_request(chat_body(), *UPGRADE)
    at = request.index(b"\r\n\r\n") + 4
    await client.send(*(request[:at], request[at : at + 9], request[at + 9 :]) if apart else (request,))
    assert (await client.answer()).status == 200
    assert horde.bodies[0]["messages"] == chat_body()["messages"]
    await client.send(HEALTHZ)
    assert (await client.answer()).body == b'{"status":"ok"}'


async def test_an_offer_of_a_websocket_is_passed_over(client: RawClient) -> None:
    await client.send(HEALTHZ[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert (await client.answer()).body == b'{"status":"ok"}'
