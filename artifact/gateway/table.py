"""The sessions a gateway knows, bounded in number, and which of them have been quiet for too long."""

from collections import OrderedDict
from collections.abc import Iterator

from artifact.gateway.config import Limits, Timeouts
from artifact.gateway.session import Session
from artifact.gateway.wire import Refused

_PLACES = 10_000


class SessionTable:
    """Sessions by id. A resting session waits in one of two queues, each in the order in which it expires."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self.limits, self.timeouts = limits, timeouts
        self._sessions: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()
        self._cut_off: OrderedDict[str, Session] = OrderedDict()
        self._places: OrderedDict[str, tuple[float, float]] = OrderedDict()  # id: (arrival, when it left the queue)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: str | None) -> Session | None:
        return self._sessions.get(session_id) if session_id is not None else None

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session

    def remove(self, session: Session) -> None:
        self.wake(session)
        del self._sessions[session.id]

    def rest(self, session: Session, now: float) -> None:
        """Nothing of the session is under way; it expires unless it wakes."""
        session.resting_since_s = now
        (self._cut_off if session.cut_off else self._idle)[session.id] = session

    def wake(self, session: Session) -> None:
        self._idle.pop(session.id, None)
        self._cut_off.pop(session.id, None)

    def expired(self, now: float) -> list[Session]:
        return [
            session
            for queue, limit_s in ((self._idle, self.timeouts.idle_s), (self._cut_off, self.timeouts.abandon_s))
            for session in _until(queue, now - limit_s)
        ]

    def one_too_many(self) -> Session | None:
        """The longest resting session if there is no room for another; None when there is room.

        Raises `Refused` (503) when the table is full of sessions with calls under way.
        """
        if len(self._sessions) < self.limits.sessions:
            return None
        for queue in (self._cut_off, self._idle):
            if queue:
                return next(iter(queue.values()))
        raise Refused(503, "too_many_sessions", "the gateway's session table is full", 30.0)

    def keep_place(self, session: Session, now: float) -> None:
        """Remember when a session arrived whose client has left before it got anything."""
        self._places[session.id] = (session.facts.arrival_s, now)
        if len(self._places) > _PLACES:
            self._places.popitem(last=False)

    def place(self, session_id: str, now: float) -> float:
        """When a session that comes now is taken to have arrived: its first time, if it left only a moment ago."""
        arrived_s, left_s = self._places.pop(session_id, (now, now))
        return arrived_s if left_s + self.timeouts.rejoin_s >= now else now


def _until(queue: OrderedDict[str, Session], time_s: float) -> Iterator[Session]:
    for session in queue.values():
        if session.resting_since_s > time_s:
            return
        yield session
