"""A TCP proxy on loopback that can be slow, cut, half-open or deaf."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tests.support.ports import LOOPBACK

T = TypeVar("T")
Way = Literal["up", "down", "both"]  #: up: towards the server; down: towards the client

CHUNK_BYTES = 65536
STALL_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the line now; the default is a healthy one.

    ``latency_s``: delay of every chunk, each way. ``rate_bytes_s``: bytes a second.
    ``blackhole``: swallow bytes of that way, connections stay open (half-open; what was
    swallowed never comes). ``stall``: hold bytes of that way until healed (then they come).
    ``refuse``: reset new connections. ``cut_after_bytes``: reset a connection after so many
    bytes from the server, counted from the connection's start.
    """

    latency_s: float = 0.0
    rate_bytes_s: float = 0.0
    blackhole: Way | None = None
    stall: Way | None = None
    refuse: bool = False
    cut_after_bytes: int | None = None


HEALTHY = Faults()


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter


class FaultProxy:
    """Listens on a free port of loopback and passes everything on to ``target``.

    ``set`` replaces the faults (open connections feel them too), ``heal`` takes them away,
    ``reset_all`` sends RST on every open connection. With ``tls`` its own side speaks TLS, whatever
    the target does. Runs in its own thread; use as a
    context manager, or ``start`` and ``close``.
    """

    def __init__(self, target: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._tls = tls
        self.port = 0
        self.faults = HEALTHY
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fault-proxy", daemon=True
        )

    def start(self) -> FaultProxy:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, LOOPBACK, 0, ssl=self._tls))
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.set(refuse=True)  # who connects in the last moment begins nothing
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> FaultProxy:
        return self if self._thread.is_alive() else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def url(self, db: int = 0, scheme: str = "redis") -> str:
        return f"{scheme}://{LOOPBACK}:{self.port}/{db}"

    def set(
        self,
        *,
        latency_s: float = 0.0,
        rate_bytes_s: float = 0.0,
        blackhole: Way | None = None,
        stall: Way | None = None,
        refuse: bool = False,
        cut_after_bytes: int | None = None,
    ) -> None:
        """Replace the faults by these; what is not named is healthy."""
        self.faults = Faults(latency_s, rate_bytes_s, blackhole, stall, refuse, cut_after_bytes)

    def heal(self) -> None:
        self.faults = HEALTHY

    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._pairs)

    def reset_all(self) -> None:
        """RST every open connection, on both of its sides."""

        async def reset() -> None:
            for pair in list(self._pairs):
                _reset(pair.client)
                _reset(pair.server)

        self._call(reset())

    def cut(self) -> None:
        """The network is gone: reset what is open and refuse what is new, until ``heal``."""
        self.set(refuse=True)
        self.reset_all()

    def _call(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(10)

    async def _shut_down(self) -> None:
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            _reset(pair.client)
            _reset(pair.server)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.faults.refuse:
            _reset(writer)
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, up_writer)
        self._pairs.add(pair)
        pumps = [
            asyncio.ensure_future(self._pump(reader, up_writer, "up")),
            asyncio.ensure_future(self._pump(up_reader, writer, "down")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy is being closed; asyncio's server logs a handler that is cancelled
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pairs.discard(pair)
            for side in (writer, up_writer):
                side.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._delay(len(data), way)
                if self.faults.blackhole in (way, "both"):
                    continue
                passed += len(data)
                limit = self.faults.cut_after_bytes
                if way == "down" and limit is not None and passed > limit:
                    break
                writer.write(data)
                await writer.drain()
            else:
                return
        _reset(writer)

    async def _delay(self, size: int, way: Way) -> None:
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s)
        if self.faults.rate_bytes_s:
            await asyncio.sleep(size / self.faults.rate_bytes_s)
        while self.faults.stall in (way, "both"):
            await asyncio.sleep(STALL_POLL_S)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() != -1:
        # linger of zero: close() sends RST instead of FIN
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
