"""The door of `/metrics`: one page for those who may have it, a plain refusal for everybody else, and nobody holds it up."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from end_to_end.prometheus import certificate

from holdfast.domain.job import MetricsAt
from holdfast.errors import UserError
from holdfast.wire import scrape
from holdfast.wire.scrape import Door, keep_open

TOKEN = "correct-horse-battery"
GET = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n"


def page(openmetrics: bool) -> Iterator[str]:
    yield "openmetrics\n" if openmetrics else "text\n"
    yield "# EOF\n"


def big_page(openmetrics: bool) -> Iterator[str]:
    for _ in range(2000):
        yield "x" * 10_000 + "\n"


async def asked(request: str, at: MetricsAt | None = None, context: ssl.SSLContext | None = None) -> str:
    """The whole answer to one request."""
    server, url = await Door(at or MetricsAt(), page).open(0)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]), ssl=context)
        writer.write(request.encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer.decode()


def status_of(request: str, at: MetricsAt | None = None) -> int:
    return int(asyncio.run(asked(request, at)).split()[1])


def test_the_page_comes_in_chunks_and_in_the_format_that_is_asked_for() -> None:
    answer = asyncio.run(asked(f"{GET}\r\n"))
    assert answer.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nTransfer-Encoding: chunked\r\n")
    assert answer.endswith("\r\n\r\n5\r\ntext\n\r\n6\r\n# EOF\n\r\n0\r\n\r\n")
    assert "openmetrics\n" in asyncio.run(asked(f"{GET}Accept: application/openmetrics-text\r\n\r\n"))


def test_an_old_client_gets_it_without_chunks() -> None:
    answer = asyncio.run(asked("GET /metrics?x=1 HTTP/1.0\r\nHost: localhost\r\n\r\n"))
    assert answer.endswith("\r\n\r\ntext\n# EOF\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9464", "localhost:1", "LOCALHOST", "[::1]:9464", "10.1.2.3"])
def test_an_address_and_our_own_names_are_answered(host: str) -> None:
    assert status_of(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n") == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]"])
def test_the_name_of_another_site_is_refused(host: str) -> None:
    assert status_of(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n") == 421


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405), ("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 404), ("GET /metrics/.. HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /metrics HTTP/1.1\r\n\r\n", 421), ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n", 403), ("GET /metrics\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\n", 400), ("GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n", 400), ("\r\n\r\n", 400), ("\x00\xff\r\n\r\n", 400),
        (f"{GET}X: {'y' * 70_000}\r\n\r\n", 431),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_a_sentence(request_text: str, status: int) -> None:
    answer = asyncio.run(asked(request_text))
    assert int(answer.split()[1]) == status
    body = answer.partition("\r\n\r\n")[2]
    assert body.endswith("\n")
    assert len(body) > 10


def test_a_token_is_asked_for_and_compared(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    at = MetricsAt(token_file=str(tmp_path / "token"))
    assert status_of(f"{GET}\r\n", at) == 401
    assert status_of(f"{GET}Authorization: Bearer {TOKEN}x\r\n\r\n", at) == 401
    assert status_of(f"{GET}Authorization: Basic {TOKEN}\r\n\r\n", at) == 401
    assert status_of(f"{GET}Authorization: Bearer \xff\r\n\r\n", at) == 401
    assert status_of(f"{GET}Authorization: Bearer {TOKEN}\r\n\r\n", at) == 200
    assert TOKEN not in asyncio.run(asked(f"{GET}\r\n", at))


@pytest.mark.parametrize("text", ["", "short", "has a space in it, so it cannot be", "ünïcödé-letters-here-and-there"])
def test_a_token_that_is_no_good_is_told_before_anything_is_opened(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(UserError, match="expected a word of at least 16 letters"):
        Door(MetricsAt(token_file=str(tmp_path / "token")), page)


def test_tls_is_spoken_where_there_is_a_certificate(tmp_path: Path) -> None:
    at = certificate(tmp_path)
    context = ssl.create_default_context(cafile=at.cert_file)
    assert asyncio.run(asked(f"{GET}\r\n", at, context)).startswith("HTTP/1.1 200")


def test_who_does_not_finish_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "HEADERS_WITHIN_S", 0.2)
    assert asyncio.run(asked("GET /metrics HTTP/1.1\r\nHost: loc")).startswith("HTTP/1.1 408")


def test_who_does_not_read_waits_alone_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "SENT_WITHIN_S", 0.5)
    monkeypatch.setattr(scrape, "HEADERS_WITHIN_S", 0.5)

    async def scene() -> None:
        server, url = await Door(MetricsAt(), big_page).open(0)
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with server:
            slow_reader, slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            slow.write(f"{GET}\r\n".encode())
            ticks = 0
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 1.5:
                await asyncio.sleep(0.01)
                ticks += 1
            assert ticks > 50, "the loop had its turns all the while"
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(slow_reader.readexactly(2000 * 10_001), 10)
            slow.close()

    asyncio.run(scene())


def test_more_connections_than_there_is_room_for_are_told_so() -> None:
    async def scene() -> None:
        server, url = await Door(MetricsAt(), page).open(0)
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with server:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(scrape.CONNECTIONS_MAX)]
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
            for _, one in (*held, (reader, writer)):
                one.close()
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{GET}\r\n".encode())
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(scene())


def test_a_port_that_is_taken_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "_TRY_AGAIN_S", 0.05)

    async def scene() -> list[str]:
        said: list[str] = []
        taken, url = await Door(MetricsAt(), page).open(0)
        port = int(url.rpartition(":")[2].partition("/")[0])
        opening = asyncio.create_task(keep_open(MetricsAt(), port, page, say=said.append))
        await asyncio.sleep(0.3)
        taken.close()
        await taken.wait_closed()
        while len(said) < 2:
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return said

    first, second = asyncio.run(asyncio.wait_for(scene(), 20))
    assert "The job goes on, and it is tried again" in first
    assert second.startswith("metrics at http://127.0.0.1:")


def test_a_free_port_is_the_same_one_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "metrics.url"

    async def scene() -> str:
        opening = asyncio.create_task(keep_open(MetricsAt(), 0, page, say=lambda text: None, url_file=file))
        await asyncio.sleep(0.2)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return file.read_text()

    assert asyncio.run(scene()) == asyncio.run(scene())
