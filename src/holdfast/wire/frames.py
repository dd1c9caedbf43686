"""Frames: a length, then a msgpack body. One `Channel` per connection; later the same over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.wire.messages import AnyMessage, Message

FRAME_BYTES_MAX = 4 << 20
_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class BadFrame(HoldfastError):
    """The other side sent something that is not one of our messages."""


class Channel:
    """Messages over one stream. Sending never blocks the caller; a peer that does not read is cut off rather than buffered without end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        body = _encoder.encode(message)
        if len(body) > FRAME_BYTES_MAX:
            raise BadFrame(f"a {type(message).__name__} of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}; send less at a time")
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > 8 * FRAME_BYTES_MAX:
            self.close()
            return
        self._writer.write(_LENGTH.pack(len(body)) + body)

    async def flush(self) -> None:
        """Wait until the other side has taken most of what was sent: for those who send more than fits into memory."""
        await self._writer.drain()

    @property
    def backlog_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def __aiter__(self) -> AsyncIterator[AnyMessage]:
        """Messages until the connection ends, in whatever way it does."""
        while True:
            try:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > FRAME_BYTES_MAX:
                    raise BadFrame(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
                body = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            try:
                message = _decoder.decode(body)
            except msgspec.DecodeError as error:
                raise BadFrame(f"a frame of {length} bytes does not fit any message: {error}") from error
            yield message

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, OSError):
            await self._writer.wait_closed()


async def connect(path: Path) -> Channel:
    """Connect to a Unix socket, however long its path: the kernel allows 107 bytes, a directory handle makes it short."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _short(path) as name:
            sock.connect(name)
        return Channel(*await asyncio.open_unix_connection(sock=sock))
    except BaseException:
        sock.close()
        raise


async def serve(path: Path, handle: Callable[[Channel], Awaitable[None]]) -> asyncio.Server:
    """Listen on a Unix socket that only its owner can reach."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)
    with _short(path) as name:
        before = os.umask(0o177)
        try:
            sock.bind(name)
        finally:
            os.umask(before)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            if _peer_uid(writer) in (os.geteuid(), 0):
                await handle(channel)
        finally:
            await channel.closed()

    return await asyncio.start_unix_server(accepted, sock=sock)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    sock: socket.socket = writer.get_extra_info("socket")
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
