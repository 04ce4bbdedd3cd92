"""Decode's side of lending: retain finished prompts as units, give memory back, write units out (paper A §6.2).

A unit is the prompt's path in decode's own prefix cache, held by the cache's lock; its recurrent state is the copy
that the cache takes at the prompt's end before the first decode step.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from artifact.control.lending import DecodeMemory
from artifact.lending.engine_link import FilteredSocket, Link
from artifact.lending.engine_transfer import Order, Writer
from artifact.lending.hooks import Hook, after, before
from artifact.lending.index import prefix_digest
from artifact.lending.runtime import RUNTIME, hint_of
from artifact.lending.units import Unit, UnitTable

logger = logging.getLogger(__name__)

URGENT_WAIT_S = 0.2


class Lender:
    """Owned by the scheduler thread, except `deliver` (socket thread) and `_serve` (writer thread)."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.scheduler, self.tree = queue, queue.scheduler, queue.tree_cache
        self.manager, self.allocator = queue.kv_manager, queue.token_to_kv_pool_allocator
        self.table = UnitTable()
        self.link: Link = self.manager.basin_link
        self._guard = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: dict[str, Unit] = {}
        self._blocked: set[str] = set()
        self._serving: set[tuple[str, int]] = set()
        self._cancelled: set[tuple[str, int]] = set()
        self._devices: dict[str, int] = {}
        self._writer = Writer(self.manager, self.scheduler.model_config.num_hidden_layers)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="basin-writer")
        self.link.open(self.deliver)

    # Retaining ------------------------------------------------------------------------------------------------
    def prompt_arrived(self, req: Any) -> None:
        """Before the first decode step: hold the prompt's end; what happens to it is decided when the call is done."""
        hint = hint_of(req)
        if not (RUNTIME.settings.lending and hint.retain and hint.session) or req.retracted_stain:
            return
        tokens = req.kv.cache_protected_len
        if not tokens or req.rid in self._pending:
            return
        state, has_states = None, self.tree.supports_mamba()
        if has_states:
            state = self._state_slot(req.last_node)
            if state is None:
                RUNTIME.count("refused_units", cause="no recurrent state at the prompt's end")
                return
        page = self.tree.page_size
        rows = self.tree.path_device_indices(req.last_node)[:tokens:page] // page
        self._pending[req.rid] = Unit(
            id=next(self._ids),
            session=hint.session,
            tokens=tokens,
            digest=prefix_digest(req.origin_input_ids, tokens),
            pages=rows.cpu().numpy(),
            state=state,
            lock=self.tree.lock(req.last_node),
        )

    def _state_slot(self, node: Any) -> int | None:
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        value = self.tree.tree_core.get_component_device_value(node, ComponentType.MAMBA)
        if value is None:
            return None
        return int(self.queue.req_to_token_pool.translate_mamba_indices(value)[0])

    def released(self, req: Any) -> None:
        """A request gave its memory back: done, retracted or aborted."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        unit = self._pending.pop(req.rid, None)
        if unit is None:
            return
        done = req.finished() and not isinstance(req.finished_reason, FINISH_ABORT)
        if not done or not RUNTIME.settings.lending:
            self.tree.unlock(unit.lock)
            return
        memory = self.memory(unit.tokens)
        replaced = self.table.adoption(unit.session, unit.tokens, memory, RUNTIME.settings.rules)
        if replaced is None or self._states_are_short():
            RUNTIME.count("refused_units", cause=_refusal(memory, replaced is not None))
            self.tree.unlock(unit.lock)
            return
        for other in replaced:
            self._give_back(other, "superseded" if other.session == unit.session else "cap")
        unit.used_s = time.monotonic()
        with self._guard:
            self.table.units[unit.id] = unit
        RUNTIME.count("adopted_units")
        RUNTIME.count("adopted_tokens", unit.tokens)
        self._show()
        for peer in list(self.link.endpoints):
            self._announce(peer, unit)

    def _states_are_short(self) -> bool:
        if not self.tree.supports_mamba():
            return False
        pool = self.queue.req_to_token_pool.mamba_allocator
        free = pool.schedulable_available_size() + self.tree.mamba_evictable_size()
        return bool(free < RUNTIME.settings.headroom * pool.size)

    def _announce(self, peer: str, unit: Unit) -> None:
        self.link.send(peer, "lent", [unit.digest], unit=unit.id, session=unit.session, tokens=unit.tokens)

    # Giving back ----------------------------------------------------------------------------------------------
    def memory(self, finished_tokens: int = 0) -> DecodeMemory:
        """A reading in which a finished prompt, held until its adoption is decided, counts as free.

        A request waits for decode memory once its prefill lets it ask for it; until then it claims nothing here.
        """
        waiting = [d.req for d in self.queue.queue if d.waiting_for_input] + list(self.queue.retracted_queue)
        growth = self.queue.num_reserved_decode_tokens
        capacity, lent = self.queue.max_total_num_tokens, self.table.lent_tokens
        free = self.allocator.available_size() + self.tree.full_evictable_size()
        return DecodeMemory(
            capacity_tokens=capacity,
            active_tokens=capacity - free - lent - finished_tokens + growth * self.queue._active_req_count(),
            queued_tokens=sum(len(r.origin_input_ids) + len(r.output_ids) + growth for r in waiting),
            lent_tokens=lent,
        )

    def step(self) -> None:
        """Once a scheduler iteration, before memory is handed out."""
        for unit in [u for u in self.table.units.values() if u.doomed and not u.readers]:
            self._release(unit)
        if not self.table.units:
            return
        if not RUNTIME.settings.lending:
            for unit in self.table.reclaim_order():
                self._give_back(unit, "switched off")
            return
        for unit in self.table.short(self.memory(), RUNTIME.settings.rules):
            self._give_back(unit, "headroom")
        # The engine's own admission test may ask for more than our estimate: whoever still waits gets one unit a turn.
        waiting = {d.req.rid for d in self.queue.queue if d.waiting_for_input}
        waiting |= {r.rid for r in self.queue.retracted_queue}
        if waiting & self._blocked:
            self.give_back_one("waiting request")
        self._blocked = waiting

    def give_back_one(self, cause: str) -> bool:
        """Free the next unit in order at once, stopping fetches that read it; False when there is none to free."""
        for unit in self.table.reclaim_order():
            self._give_back(unit, cause)
            deadline = time.monotonic() + URGENT_WAIT_S
            while unit.readers and time.monotonic() < deadline:
                time.sleep(1e-3)
            if unit.id not in self.table.units:
                return True
            if not unit.readers:
                self._release(unit)
                return True
        return False

    def _give_back(self, unit: Unit, cause: str) -> None:
        if unit.doomed:
            return
        unit.doomed = True
        RUNTIME.count("reclaimed_units", cause=cause)
        RUNTIME.count("reclaimed_tokens", unit.tokens, cause=cause)
        for peer in list(self.link.endpoints):
            self.link.send(peer, "gone", unit=unit.id)
        if not unit.readers:
            self._release(unit)

    def _release(self, unit: Unit) -> None:
        with self._guard:
            if unit.readers:
                return
            self.table.units.pop(unit.id, None)
        self.tree.unlock(unit.lock)
        self._show()

    def forget_all(self) -> None:
        """The cache is being emptied: its locks are void."""
        with self._guard:
            units, self.table.units = list(self.table.units.values()), {}
        self._pending.clear()
        for unit in units:
            for peer in list(self.link.endpoints):
                self.link.send(peer, "gone", unit=unit.id)
        self._show()

    def _show(self) -> None:
        RUNTIME.gauge("lent_tokens", self.table.lent_tokens)
        RUNTIME.gauge("lent_units", len(self.table.units))

    # Serving fetches ------------------------------------------------------------------------------------------
    def deliver(self, message: dict[str, Any], blobs: list[bytes]) -> None:
        peer, kind = message["from"], message["kind"]
        if kind == "peer":
            self._meet(peer, blobs)
        elif kind == "fetch":
            self._serving.add((peer, message["fetch"]))
            self._thread.submit(self._serve, peer, message, blobs)
        elif kind == "cancel" and (peer, message["fetch"]) in self._serving:
            self._cancelled.add((peer, message["fetch"]))
        elif kind == "held":
            with self._guard:
                unit = self.table.units.get(message["unit"])
                if unit is not None:
                    unit.on_prefill = message["held"]
        elif kind == "release":
            with self._guard:
                unit = self.table.units.get(message["unit"])
                if unit is not None:
                    unit.used_s, unit.on_prefill = 0.0, True  # first to go; the scheduler thread frees

    def _meet(self, name: str, blobs: list[bytes]) -> None:
        from sglang.srt.disaggregation.nixl.conn import KVArgsRegisterInfo

        peer = KVArgsRegisterInfo.from_zmq(blobs)
        self._writer.meet(name, peer)
        self._devices[name] = peer.gpu_id
        self.link.endpoints[name] = (peer.endpoint, peer.dst_port)
        for unit in list(self.table.units.values()):
            self._announce(name, unit)
        logger.info("basin: lending to prefill %s", name)

    def _serve(self, peer: str, message: dict[str, Any], blobs: list[bytes]) -> None:
        fetch = message["fetch"]
        unit = self._lend(message["unit"])
        cause: str | None = "gone"
        written = 0
        if unit is not None:
            try:
                cause, written = self._write(peer, unit, message, blobs[0])
            finally:
                with self._guard:
                    unit.readers -= 1
        self._serving.discard((peer, fetch))
        self._cancelled.discard((peer, fetch))
        self.link.send(peer, "stopped", fetch=fetch, cause=cause, bytes=written)

    def _lend(self, number: int) -> Unit | None:
        """The unit, with its pages guarded for one reader; None when it is gone or wanted back."""
        with self._guard:
            unit = self.table.units.get(number)
            if unit is None or unit.doomed:
                return None
            unit.readers += 1
            unit.used_s = time.monotonic()
            return unit

    def _write(self, peer: str, unit: Unit, message: dict[str, Any], rows: bytes) -> tuple[str | None, int]:
        """Why it stopped early (None: it did not), and the bytes written."""
        order = Order(
            fetch=message["fetch"],
            pages_from=np.asarray(unit.pages)[message["first_page"] :],
            pages_to=np.frombuffer(rows, dtype=np.int64),
            state_from=unit.state,
            state_to=message["state"],
            flags=message["flags"],
            epoch=message["epoch"],
            groups=message["groups"],
        )
        try:
            written = self._writer.write(
                peer, self._devices[peer], order, lambda: unit.doomed or (peer, order.fetch) in self._cancelled
            )
        except InterruptedError:
            return ("wanted back" if unit.doomed else "cancelled"), 0
        except Exception:
            logger.exception("basin: fetch %d for %s failed", order.fetch, peer)
            return "write failed", 0
        return None, written


def _refusal(memory: DecodeMemory, pages_fit: bool) -> str:
    if pages_fit:
        return "no headroom of recurrent states"
    return "requests wait for decode memory" if memory.queued_tokens else "no headroom, or larger than the cap"


def _created(queue: Any, *args: Any, **kwargs: Any) -> None:
    RUNTIME.lender = Lender(queue)


def _prebuilt(batch: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.lender is not None:
        for req in batch.reqs:
            RUNTIME.lender.prompt_arrived(req)


def _released(tree: Any, req: Any, **kwargs: Any) -> None:
    if RUNTIME.lender is not None:
        RUNTIME.lender.released(req)


def _step(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.lender is not None:
        RUNTIME.lender.step()


def _fits(original: Callable[..., bool], batch: Any, *args: Any, **kwargs: Any) -> bool:
    """Units go before any running request is retracted."""
    fits = original(batch, *args, **kwargs)
    while not fits and RUNTIME.lender is not None and RUNTIME.lender.give_back_one("decode growth"):
        fits = original(batch, *args, **kwargs)
    return fits


def _retracting(batch: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.lender is not None and RUNTIME.lender.table.units:
        RUNTIME.count("retractions_while_lent")


def _reset(tree: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.lender is not None:
        RUNTIME.lender.forget_all()


def _listen(manager: Any) -> None:
    manager.basin_link = Link(manager)
    manager.server_socket = FilteredSocket(manager.server_socket, manager.basin_link.receive)


def hooks() -> list[Hook]:
    decode = "sglang.srt.disaggregation.decode"
    batch = "sglang.srt.managers.schedule_batch.ScheduleBatch"
    tree = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    return [
        Hook("sglang.srt.disaggregation.nixl.conn.NixlKVManager._start_decode_listener_thread", before(_listen)),
        Hook(f"{decode}.DecodePreallocQueue.__init__", after(_created)),
        Hook(f"{decode}.SchedulerDisaggregationDecodeMixin.process_decode_queue", before(_step)),
        Hook(f"{batch}.process_prebuilt", after(_prebuilt)),
        Hook(f"{batch}.check_decode_mem", _fits),
        Hook(f"{batch}.retract_decode", before(_retracting)),
        Hook(f"{tree}.on_release", after(_released)),
        Hook(f"{tree}.reset", before(_reset)),
    ]


def check(server_args: Any) -> None:
    """Raises `ValueError` where units would have no place to be kept."""
    if server_args.disaggregation_mode == "decode" and not server_args.disaggregation_decode_enable_radix_cache:
        raise ValueError("lending keeps units in decode's prefix cache: add --disaggregation-decode-enable-radix-cache")
