"""Control messages between prefill and decode over the sockets that SGLang's NIXL manager already has."""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger(__name__)

TAG = b"BASIN"


class FilteredSocket:
    """A receiving socket that keeps the messages which `handle` takes (returns True for) from its reader."""

    def __init__(self, socket: Any, handle: Callable[[list[bytes]], bool]) -> None:
        self._socket, self._handle = socket, handle

    def recv_multipart(self, *args: Any, **kwargs: Any) -> list[bytes]:
        while True:
            frames: list[bytes] = self._socket.recv_multipart(*args, **kwargs)
            if not self._handle(frames):
                return frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def pack(kind: str, sender: str, fields: dict[str, Any], blobs: Sequence[bytes] = ()) -> list[bytes]:
    return [TAG, json.dumps({"kind": kind, "from": sender, **fields}).encode(), *blobs]


def unpack(frames: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Fields and blobs of one of our messages; None for anybody else's or a malformed one."""
    if len(frames) < 2 or frames[0] != TAG:
        return None
    try:
        fields = json.loads(frames[1])
    except ValueError:
        logger.warning("basin: dropped a malformed control message of %d bytes", len(frames[1]))
        return None
    return fields, list(frames[2:])


class Link:
    """Sends to peers by agent name; what arrives goes to the handler given to `open`, on the socket's own thread.

    The socket listens before the engine's queues exist, so earlier messages are kept until then.
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.endpoints: dict[str, tuple[str, int]] = {}
        self._deliver: Callable[[dict[str, Any], list[bytes]], None] | None = None
        self._early: list[tuple[dict[str, Any], list[bytes]]] = []
        self._turn = threading.Lock()

    def open(self, deliver: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        with self._turn:
            for message in self._early:
                deliver(*message)
            self._early.clear()
            self._deliver = deliver

    @property
    def name(self) -> str:
        return str(self.manager.agent.name)

    def receive(self, frames: list[bytes]) -> bool:
        message = unpack(frames)
        if message is None:
            return bool(frames) and frames[0] == TAG
        try:
            with self._turn:
                if self._deliver is None:
                    self._early.append(message)
                else:
                    self._deliver(*message)
        except Exception:
            logger.exception("basin: control message %s failed", message[0].get("kind"))
        return True

    def send(self, peer: str, kind: str, blobs: Sequence[bytes] = (), **fields: Any) -> bool:
        """Queue a message; False when the peer is unknown."""
        if peer not in self.endpoints:
            return False
        from sglang.srt.utils.network import NetworkAddress

        address = NetworkAddress(*self.endpoints[peer])
        self.manager._send_multipart_locked(
            address.to_tcp(), pack(kind, self.name, fields, blobs), is_ipv6=address.is_ipv6
        )
        return True
