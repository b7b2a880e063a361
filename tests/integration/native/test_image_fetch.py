"""What fetching a picture reaches and what it does not, over real sockets (IMG-4, IMG-5)."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from horde.native.images.fetch import STEP_SECONDS, FetchError, ImageFetcher
from horde.native.images.pictures import MAX_IMAGE_BYTES
from tests.support.picture_server import PictureServer, encode_picture

HERE = ip_network("127.0.0.1/32")
_UNREACHED = "^could not be fetched from a public address in time$"


@dataclass(slots=True)
class Inside:
    """A service inside the network, which nothing may connect to.

    Attributes:
        port: Its port, on every loopback address.
        connections: How many were made.
    """

    port: int = 0
    connections: int = 0


@dataclass(slots=True)
class Names(AbstractResolver):
    """Answers for names in turn, and writes down what it was asked for.

    Attributes:
        answers: The addresses of each answer; the last one is given again and again.
        asked: The names.
        never: Whether it never answers.
    """

    answers: list[list[str]]
    asked: list[str] = field(default_factory=list)
    never: bool = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the next answer."""
        self.asked.append(host)
        if self.never:
            await asyncio.Event().wait()
        addresses = self.answers[min(len(self.asked), len(self.answers)) - 1]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    """A service on 127.0.0.2 and ::1 that counts its connections."""
    service = Inside()

    async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        service.connections += 1
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.2", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with server:
        yield service


@contextlib.asynccontextmanager
async def fetching(
    *, names: Names | None = None, seconds: float = 5.0, parallel: int = 32
) -> AsyncIterator[ImageFetcher]:
    """Fetch with 127.0.0.1 taken for public."""
    async with ImageFetcher([HERE], parallel=parallel, step_seconds=seconds, resolver=names) as fetcher:
        yield fetcher


async def _refused(fetcher: ImageFetcher, url: str, match: str = _UNREACHED) -> None:
    with pytest.raises(FetchError, match=match):
        await fetcher.fetch(url)


async def test_a_picture_is_returned_as_it_was_sent(pictures: PictureServer) -> None:
    data = encode_picture((5, 5))
    async with fetching() as fetcher:
        assert await fetcher.fetch(pictures.lay("/a.png", data)) == data
    assert pictures.headers["accept-encoding"] == "identity"
    assert not {"cookie", "authorization", "referer", "traceparent"} & set(pictures.headers)


@pytest.mark.rule("IMG-4")
async def test_three_redirects_are_followed_and_a_fourth_is_not(pictures: PictureServer) -> None:
    pictures.lay("/0", b"picture")
    for number in range(1, 6):
        pictures.lay(f"/{number}", status=302, location=f"/{number - 1}", set_cookie="seen=1")
    async with fetching() as fetcher:
        assert await fetcher.fetch(pictures.base_url + "/3") == b"picture"
        assert "cookie" not in pictures.headers
        pictures.asked.clear()
        await _refused(fetcher, pictures.base_url + "/5", "^is behind more than 3 redirects$")
    assert pictures.asked == {"/5": 1, "/4": 1, "/3": 1, "/2": 1}


@pytest.mark.rule("IMG-5")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.2",
        "2130706434",
        "0x7f000002",
        "0x7f.2",
        "127.2",
        "0177.0.0.2",
        "[::ffff:127.0.0.2]",
        "[::127.0.0.2]",
        "[::1]",
        "[::]",
        ".".join("0000"),
        "0",
        "localhost",
        "LOCALHOST.",
        "user@127.0.0.2",
        "127.0.0.2%2f",
        "\uff11\uff12\uff17.0.0.2",
    ],
)
async def test_no_spelling_of_an_address_inside_is_connected_to(inside: Inside, host: str) -> None:
    async with ImageFetcher() as fetcher:
        await _refused(fetcher, f"http://{host}:{inside.port}/a.png")
        await _refused(fetcher, f"https://{host}:{inside.port}/a.png")
    assert inside.connections == 0


@pytest.mark.rule("IMG-5")
async def test_the_target_of_a_redirect_meets_the_same_rule(pictures: PictureServer, inside: Inside) -> None:
    url = pictures.lay("/away", status=307, location=f"http://127.0.0.2:{inside.port}/a.png")
    async with fetching() as fetcher:
        await _refused(fetcher, url)
    assert (pictures.asked["/away"], inside.connections) == (1, 0)


@pytest.mark.rule("IMG-5")
@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:image/png;base64,AAAA", "gopher://127.0.0.1/"]
)
async def test_only_the_web_is_fetched_from_also_after_a_redirect(pictures: PictureServer, location: str) -> None:
    async with fetching() as fetcher:
        await _refused(fetcher, location, "^has an address that is not fetched$")
        await _refused(
            fetcher, pictures.lay("/away", status=302, location=location), "^has an address that is not fetched$"
        )


@pytest.mark.rule("IMG-5")
async def test_a_name_is_judged_by_the_address_that_is_connected_to(inside: Inside) -> None:
    names = Names([["127.0.0.2"]])
    async with fetching(names=names) as fetcher:
        await _refused(fetcher, f"http://pictures.example:{inside.port}/a.png")
    assert (names.asked, inside.connections) == (["pictures.example"], 0)


@pytest.mark.rule("IMG-5")
async def test_a_name_that_changes_its_address_is_asked_for_once_and_the_new_address_is_never_reached(
    pictures: PictureServer, inside: Inside
) -> None:
    names = Names([["127.0.0.1"], ["127.0.0.2"]])
    data = encode_picture()
    pictures.lay("/a.png", data)
    port = pictures.base_url.rpartition(":")[2]
    async with fetching(names=names) as fetcher:
        assert await fetcher.fetch(f"http://rebinding.example:{port}/a.png") == data
        assert names.asked == ["rebinding.example"]
        await _refused(fetcher, f"http://rebinding.example:{inside.port}/a.png")
    assert len(names.asked) == 2
    assert inside.connections == 0


@pytest.mark.rule("IMG-5")
async def test_of_several_addresses_of_a_name_those_inside_are_passed_over(pictures: PictureServer) -> None:
    names = Names([["127.0.0.2", "::1", "10.0.0.1", "127.0.0.1"]])
    data = encode_picture()
    pictures.lay("/a.png", data)
    async with fetching(names=names) as fetcher:
        assert await fetcher.fetch(pictures.base_url.replace("127.0.0.1", "several.example") + "/a.png") == data


async def test_no_proxy_of_the_environment_is_used(
    pictures: PictureServer, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.2:{inside.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with fetching() as fetcher:
        assert await fetcher.fetch(pictures.lay("/a.png", b"picture")) == b"picture"
    assert inside.connections == 0


async def test_an_endless_body_is_read_to_its_limit_and_left(pictures: PictureServer) -> None:
    pictures.endless.add("/endless")
    async with fetching() as fetcher:
        await _refused(fetcher, pictures.base_url + "/endless", f"^has more than {MAX_IMAGE_BYTES} bytes$")
    assert pictures.sent < 64


async def test_a_body_that_declares_too_much_is_not_read(pictures: PictureServer) -> None:
    body = b"x" * (MAX_IMAGE_BYTES + 1)
    url = pictures.lay("/large", body, content_length=str(len(body)))
    async with fetching() as fetcher:
        await _refused(fetcher, url, f"^has more than {MAX_IMAGE_BYTES} bytes$")
        assert len(await fetcher.fetch(pictures.lay("/fits", body[1:]))) == MAX_IMAGE_BYTES


@pytest.mark.parametrize("status", [204, 206, 300, 304, 401, 404, 500])
async def test_any_other_answer_than_a_whole_body_is_refused(pictures: PictureServer, status: int) -> None:
    url = pictures.lay("/a.png", b"" if status in {204, 304} else b"text", status)
    async with fetching() as fetcher:
        await _refused(fetcher, url, f"^is answered with the status {status}$")


async def test_an_encoding_that_was_not_asked_for_is_refused_instead_of_inflated(pictures: PictureServer) -> None:
    url = pictures.lay("/a.png", b"\x1f\x8b\x08", content_encoding="gzip")
    async with fetching() as fetcher:
        await _refused(fetcher, url, "^is sent with a content encoding that was not asked for$")


@pytest.mark.rule("IMG-4")
async def test_a_server_that_says_nothing_is_given_up(pictures: PictureServer) -> None:
    assert STEP_SECONDS == 2.0
    pictures.held.clear()
    async with fetching(seconds=0.1) as fetcher:
        await _refused(fetcher, pictures.lay("/a.png"))
    assert pictures.asked == {"/a.png": 1}


@pytest.mark.rule("IMG-4")
async def test_a_name_server_that_says_nothing_is_given_up() -> None:
    names = Names([], never=True)
    async with fetching(names=names, seconds=0.1) as fetcher:
        await _refused(fetcher, "http://silent.example/a.png")
    assert names.asked == ["silent.example"]


async def test_an_address_that_nobody_listens_on_is_told_like_one_inside(inside: Inside) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with fetching() as fetcher:
            await _refused(fetcher, f"http://127.0.0.1:{unused.getsockname()[1]}/")
            await _refused(fetcher, f"http://127.0.0.2:{inside.port}/")


@pytest.mark.parametrize(
    "url", ["http://", "http:///a.png", "http://[::1", "http://exa mple/", "http://a:99999/", "http://a" + "a" * 9000]
)
async def test_what_is_no_address_is_refused(url: str) -> None:
    async with fetching() as fetcher:
        await _refused(fetcher, url, "^could not be fetched|^has an address that is not fetched$")


async def test_a_process_fetches_so_many_pictures_at_a_time(pictures: PictureServer) -> None:
    urls = [pictures.lay(f"/{number}.png") for number in range(6)]
    async with fetching(parallel=2) as fetcher, asyncio.TaskGroup() as group:
        for url in urls:
            group.create_task(fetcher.fetch(url), name="test - fetch")
    assert sum(pictures.asked.values()) == 6
    assert pictures.most_running <= 2
