"""What people and their tools ask a gateway itself: health, metrics, sessions, explanations, and control.

The operator's pages and the admin endpoint answer peers on the loopback interface; others need `admin_remote` and
the admin token. What changes something always needs the token.
"""

import hmac
import ipaddress
import math
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from pydantic import ValidationError

from artifact.gateway.config import CapacitiesUnknown
from artifact.gateway.identity import clean_id
from artifact.gateway.metrics import cache_capacity
from artifact.gateway.session import AdoptedSession, Session
from artifact.gateway.wire import (
    ADMIN_TOKEN,
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    header_map,
    parse_object,
    read_body,
    send_bytes,
    send_json,
    send_refusal,
)

if TYPE_CHECKING:
    from artifact.gateway.app import Gateway

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
_ADMIN_BODY = 64 << 10
_ADOPT_BODY = 32 << 20
_LISTED = 200
_CSP = b"default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


class Operator:
    """Routes of the gateway's own. `handle` says whether a request was one of them."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self._page = (files("artifact.gateway") / "ui.html").read_bytes()
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/ui"): self._local(self._ui),
            ("GET", "/sessions"): self._local(self._sessions),
            ("GET", "/explain"): self._local(self._explain),
            ("GET", "/admin/policy"): self._admin(self._show_policy),
            ("PUT", "/admin/policy"): self._admin(self._set_policy),
            ("POST", "/admin/adopt"): self._admin(self._adopt),
            ("POST", "/admin/drain"): self._admin(self._drain),
            ("POST", "/programs/release"): self._release_program,
            ("POST", "/close_session"): self._close_session,
        }

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> bool:
        method, path = scope["method"], scope["path"]
        handler = self._routes.get((method, path))
        if handler is None and method == "DELETE" and path.startswith("/sessions/"):
            handler = self._delete_session
        if handler is None and path.startswith("/admin/"):
            unknown = Refused(
                404, "not_found", f"no {method} {path}; there are /admin/policy, /admin/adopt and /admin/drain"
            )
            await send_refusal(send, path, unknown)
            return True
        if handler is None:
            return False
        try:
            await handler(scope, receive, send)
        except ClientGone:
            pass
        except Refused as refused:
            await send_refusal(send, path, refused)
        return True

    # Views ---------------------------------------------------------------------------------------------------
    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"status": "ok"})

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        draining, reachable = self.gateway.desk.draining, self.gateway.upstream.reachable
        ready = reachable and not draining
        reason = "draining" if draining else "ready" if reachable else "upstream_unreachable"
        await send_json(send, {"ready": ready, "reason": reason}, 200 if ready else 503)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, self.gateway.metrics.page(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _ui(self, scope: Scope, receive: Receive, send: Send) -> None:
        security = ((b"content-security-policy", _CSP), (b"x-content-type-options", b"nosniff"))
        await send_bytes(send, 200, self._page, b"text/html; charset=utf-8", security)

    async def _sessions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Summary and up to `limit` sessions, the waiting ones first."""
        asked = _query(scope).get("limit", "50")
        limit = min(int(asked), _LISTED) if asked.isdecimal() else 50
        await send_json(send, {**self.summary(), "sessions": self.listed(limit)})

    async def _explain(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = clean_id(_query(scope).get("session", ""))
        session = self.gateway.desk.table.get(session_id)
        if session is None:
            raise Refused(404, "unknown_session", "no such session; ask /explain?session=ID with an id of /sessions")
        why = self.gateway.desk.ask(self.gateway.desk.policy.explain, session_id)
        await send_json(send, {**self._describe(session), "why": why})

    def summary(self) -> dict[str, Any]:
        """The state that pages, samples and tests read. Infinite and unknown numbers are null."""
        gateway, desk = self.gateway, self.gateway.desk
        state, books, latest = desk.policy.state(), desk.books, gateway.telemetry.latest
        prompt_tokens, cached_tokens = gateway.telemetry.token_totals()
        capacity, factor = cache_capacity(latest), gateway.config.cliff_over_capacity
        return {
            "time_s": desk.now(),
            "policy": self.gateway.policy_name,
            "policy_errors": desk.policy_errors,
            "draining": desk.draining,
            "resident": sum(s.inside and not s.suspended for s in desk.table),
            "parked": sum(not s.inside for s in desk.table),
            "suspended": sum(s.suspended for s in desk.table),
            "context_tokens": sum(s.context_tokens for s in desk.table if s.inside),
            "working_set_tokens": _finite(state.working_set_tokens),
            "reference_budget_tokens": _finite(state.reference_budget_tokens),
            "budget_tokens": _finite(state.budget_tokens),
            "cache_capacity_tokens": capacity,
            "capacity": {
                "prefill_cache_tokens": latest.prefill_cache_capacity_tokens,
                "host_cache_tokens": latest.host_cache_capacity_tokens,
                "decode_kv_tokens": latest.decode_kv_capacity_tokens,
            },
            "cliff_tokens": capacity * factor if capacity and factor else None,
            "admitting": state.admitting,
            "ordering": state.ordering,
            "lending": state.lending,
            "engine_order": self._engine_order(),
            "hit_rate": latest.hit_rate,
            "prefill_queue": latest.prefill_queue,
            "decode_waiting": latest.decode_waiting,
            "decode_running": latest.decode_running,
            "decode_kv_used_tokens": latest.decode_kv_used_tokens,
            "signal_age_s": gateway.telemetry.age_s(),
            "own_accounting": gateway.telemetry.own_accounting,
            "calls": {"waiting": desk.waiting_calls, "live": len(desk.live_calls)},
            "lent_tokens": latest.lent_tokens,
            "prompt_tokens_total": prompt_tokens,
            "cached_tokens_total": cached_tokens,
            "calls_done_total": books.calls_done,
            "decisions": dict(desk.decisions),
        }

    def listed(self, limit: int) -> list[dict[str, Any]]:
        waiting = [s for s in self.gateway.desk.table if s.waiting]
        others = (s for s in self.gateway.desk.table if not s.waiting)
        chosen = waiting[:limit] + [s for s, _ in zip(others, range(limit - len(waiting[:limit])), strict=False)]
        return [self._describe(session) for session in chosen]

    def _describe(self, session: Session) -> dict[str, Any]:
        now = self.gateway.desk.now()
        state = "parked" if not session.inside else "suspended" if session.suspended else "resident"
        return {
            "id": session.id,
            "named_by": session.source,
            "parent": session.parent,
            "state": state,
            "context_tokens": session.context_tokens,
            "turns": session.turns,
            "live_calls": session.live,
            "waiting_s": now - session.waiting[0].opened_s if session.waiting else None,
            "age_s": now - session.facts.arrival_s,
        }

    def _engine_order(self) -> str:
        order = self.gateway.order
        if self.gateway.config.priority.dialect == "none":
            return "off: no engine priority configured; suspension at turn boundaries is the lever"
        if order.off_by_flag:
            return f"no --enable-priority-scheduling on {', '.join(order.off_by_flag)}; suspension is the lever"
        if order.ignored:
            return "ignored by the engine; suspension at turn boundaries is the lever"
        by = "sglang, by the Basin extension" if order.by_extension else order.config.dialect
        return f"{by}, {order.followed} of {order.telling} telling cases followed"

    # Ends of sessions, by their clients ----------------------------------------------------------------------
    async def _delete_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._released(send, unquote(scope["path"].removeprefix("/sessions/")))

    async def _release_program(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = parse_object(await read_body(receive, _ADMIN_BODY)) or {}
        await self._released(send, body.get("program_id", body.get("job_id")))

    async def _close_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """SGLang's own: the engine holds state for such a session too, so it hears of it as well."""
        content = await read_body(receive, _ADMIN_BODY)
        session_id = (parse_object(content) or {}).get("session_id")
        if isinstance(session_id, str):
            self.gateway.desk.release(clean_id(session_id))

        async def again() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        await self.gateway.proxy.pass_through(scope, again, send)

    async def _released(self, send: Send, session_id: object) -> None:
        if not isinstance(session_id, str) or not self.gateway.desk.release(clean_id(session_id)):
            raise Refused(404, "unknown_session", "no such session")
        await send_json(send, {"released": clean_id(session_id)})

    # Control -------------------------------------------------------------------------------------------------
    async def _show_policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"policy": self.gateway.policy_name, "options": self.gateway.policy_options})

    async def _set_policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Body {"policy": name, "options": {…}}; the policy already in charge gets options on top of its own."""
        body = parse_object(await read_body(receive, _ADMIN_BODY))
        options = body.get("options", {}) if body is not None else None
        if body is None or not isinstance(options, dict) or not isinstance(body.get("policy", ""), str):
            raise Refused(400, "bad_request", 'expected {"policy": name, "options": {…}}')
        name = body.get("policy", self.gateway.policy_name)
        merged = {**self.gateway.policy_options, **options} if name == self.gateway.policy_name else options
        try:
            self.gateway.set_policy(name, merged)
        except (ValueError, CapacitiesUnknown) as error:
            raise Refused(400, "bad_policy", str(error)) from error
        await self._show_policy(scope, receive, send)

    async def _adopt(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Body {"sessions": [{"id", "context_tokens", …}]}, as `/sessions` lists them: sessions that are inside
        already, as after a restart. They rest until their next call; known ones are left alone."""
        body = parse_object(await read_body(receive, _ADOPT_BODY)) or {}
        try:
            adopted = [AdoptedSession.model_validate(item) for item in body.get("sessions", ())]
        except ValidationError as error:
            raise Refused(400, "bad_request", f"sessions: {error.errors()[0]['msg']}") from error
        new = sum(self.gateway.desk.adopt(item) for item in adopted)
        await send_json(send, {"adopted": new})

    async def _drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.gateway.desk.drain()
        await send_json(send, {"draining": True, "live_calls": len(self.gateway.desk.live_calls)})

    # Who may -------------------------------------------------------------------------------------------------
    def _local(self, handler: Handler) -> Handler:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if not _on_loopback(scope):
                self._require_token(scope, remote=True)
            await handler(scope, receive, send)

        return guarded

    def _admin(self, handler: Handler) -> Handler:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            self._require_token(scope, remote=not _on_loopback(scope))
            await handler(scope, receive, send)

        return guarded

    def _require_token(self, scope: Scope, remote: bool) -> None:
        token = self.gateway.config.admin_token
        if token is None or (remote and not self.gateway.config.admin_remote):
            raise Refused(403, "admin_disabled", "not available here: no admin token is set, or this peer is remote")
        headers = header_map(scope["headers"])
        given = headers.get(ADMIN_TOKEN) or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given, token.encode()):
            raise Refused(401, "bad_token", "the admin token is missing or wrong")


def _on_loopback(scope: Scope) -> bool:
    """Whether the peer itself is on this machine; a request that a proxy forwarded comes from elsewhere."""
    client = scope.get("client")
    forwarded = any(name in (b"forwarded", b"x-forwarded-for", b"x-real-ip") for name, _ in scope["headers"])
    try:
        return client is not None and not forwarded and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _query(scope: Scope) -> dict[str, str]:
    pairs = parse_qs(scope["query_string"].decode("latin-1"))
    return {name: values[0] for name, values in pairs.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
