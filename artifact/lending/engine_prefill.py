"""Prefill's side of lending: know the units, fetch one where it covers more than the local match, and recompute where
its pages do not arrive (paper A §6.2)."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

from artifact.kernels import flags as flag_kernels
from artifact.lending.engine_link import FilteredSocket, Link
from artifact.lending.engine_linker import LayerWaits, LentLinker, LentMatches
from artifact.lending.fetches import Fetch, FetchTable
from artifact.lending.hooks import Hook, after, before
from artifact.lending.index import Lent, UnitIndex
from artifact.lending.runtime import RUNTIME, hint_of

logger = logging.getLogger(__name__)

SLOTS, MAX_GROUPS = 256, 256
MONITOR_S = 0.02
REPORT_S = 0.5


class Borrower:
    """Owned by the scheduler thread, except `deliver` (socket thread) and the monitor thread."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.scheduler, self.tree = queue, queue.scheduler, queue.scheduler.tree_cache
        self.manager, self.allocator = queue.kv_manager, queue.scheduler.token_to_kv_pool_allocator
        self.groups = -(-self.scheduler.model_config.num_hidden_layers // RUNTIME.settings.layers_per_group)
        if self.groups > MAX_GROUPS:
            raise ValueError(f"{self.groups} layer groups exceed {MAX_GROUPS}: raise layers_per_group in BASIN_SGLANG")
        self.index, self.table = (
            UnitIndex(),
            FetchTable(SLOTS, RUNTIME.settings.fetch_timeout_s, RUNTIME.settings.quarantine_s),
        )
        self.flags: torch.Tensor = self.manager.basin_flags
        # FAILED must reach a waiter while its stream spins: never queue behind that stream.
        self._aside = torch.cuda.Stream() if self.flags.is_cuda else None
        host = self.tree.cache_controller
        host_waits = host.layer_done_counter if host is not None else None
        self.waits = LayerWaits(self.flags, RUNTIME.settings.layers_per_group, host_waits)
        self.failed: set[str] = set()
        self._chosen: dict[str, Lent] = {}
        self._fetch_of: dict[str, Fetch] = {}
        self._local: dict[str, tuple[Any, int]] = {}
        self._reported: dict[str, bool] = {}
        self._report_due = 0.0
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="basin-ask")
        self._attach()
        threading.Thread(target=self._monitor, daemon=True, name="basin-monitor").start()
        self.link: Link = self.manager.basin_link
        self.link.open(self.deliver)

    def _attach(self) -> None:
        self.tree.linker = LentMatches(self.tree, LentLinker(self), self)
        self.scheduler.enable_unified_cache_external_linker = True
        self.allocator.get_kvcache().register_layer_transfer_counter(self.waits)
        self.scheduler.tp_worker.register_hicache_layer_transfer_counter(self.waits)
        if self.tree.supports_mamba():
            self.tree.req_to_token_pool.register_layer_transfer_counter(self.waits)

    # Matching and fetching ------------------------------------------------------------------------------------
    def covering(self, req: Any, key: Any, local: int) -> Lent | None:
        hint = hint_of(req)
        if hint.session is None or not RUNTIME.settings.lending or req.rid in self.failed:
            return None
        lent = self.index.better(hint.session, req.rid, req.origin_input_ids, local, RUNTIME.settings.min_gain_tokens)
        if lent is None or lent.tokens > len(key):
            return None
        self._chosen[req.rid] = lent
        return lent

    def plan(self, rid: str, transfers: list[Any]) -> Fetch | None:
        """Begin the fetch that the match promised; None, and the engine recomputes, when its unit is gone by now."""
        lent = self._chosen.pop(rid, None)
        if lent is None or self.index.latest.get(lent.session) is not lent:
            return None
        by_pool = {t.name: t.device_indices for t in transfers}
        kv, state = by_pool[PoolName.KV], by_pool.get(PoolName.MAMBA)
        fetch = self.table.begin(rid, lent, lent.tokens - len(kv), time.monotonic(), kv=kv, state=state)
        if fetch is not None:
            self._fetch_of[rid] = fetch
        return fetch

    def ask(self, fetch: Fetch) -> None:
        self.flags[fetch.slot].zero_()  # the row's last user may have left FAILED
        if self.flags.is_cuda:
            # An earlier forward may still be writing the pages that were freed for this fetch.
            ready = torch.cuda.Event()
            ready.record()
            self._sender.submit(self._ask, fetch, ready)
        else:
            self._ask(fetch)

    def _ask(self, fetch: Fetch, ready: Any = None) -> None:
        if ready is not None:
            ready.synchronize()
        page = self.tree.page_size
        rows = (fetch.kv[::page] // page).cpu().numpy().astype("int64")
        state = None
        if fetch.state is not None:
            state = int(self.tree.req_to_token_pool.translate_mamba_indices(fetch.state)[0])
        RUNTIME.count("fetches")
        sent = self.link.send(
            fetch.lent.peer,
            "fetch",
            [rows.tobytes()],
            fetch=fetch.id,
            unit=fetch.lent.unit,
            first_page=fetch.first_token // page,
            state=state,
            flags=self.flags.data_ptr() + 4 * self.flags.stride(0) * fetch.slot,
            epoch=fetch.epoch,
            groups=self.groups,
        )
        if not sent:
            self._end(fetch.id, "unknown peer", 0)

    def dropped(self, fetch: Fetch) -> None:
        """The request went away before its fetch was asked for."""
        self._fetch_of.pop(fetch.rid, None)
        self.table.stopped(fetch.id, "aborted", 0, time.monotonic())

    def forget_choice(self, rid: str) -> None:
        self._chosen.pop(rid, None)

    def collected(self, fetch: Fetch) -> None:
        """A forward that waited for this fetch is over."""
        if fetch.cause is None:
            RUNTIME.count("fetched_tokens", fetch.tokens)
            RUNTIME.count("fetched_bytes", fetch.bytes)
            RUNTIME.count("fetch_seconds", (fetch.ended_s or fetch.began_s) - fetch.began_s)
            self._fetch_of.pop(fetch.rid, None)
        else:
            RUNTIME.count("fallbacks", cause=fetch.cause)
            logger.warning("basin: fetch %d for %s given up: %s", fetch.id, fetch.rid, fetch.cause)

    # Falling back to recomputation ----------------------------------------------------------------------------
    def recompute(self, reqs: list[Any]) -> None:
        """Right after a forward that ran on incomplete pages: its output is discarded and the request queued again."""
        for req in reqs:
            fetch = self._fetch_of.pop(req.rid)
            self.failed.add(req.rid)
            if not self.table.withdrawn(fetch):
                self._exchange_memory(req, fetch)
            # The engine's own retry path releases, keeps nothing in the cache, and starts over from the handshake.
            req.pending_bootstrap = req._basin_rerun = True
            self.manager.req_to_decode_prefix_len[req.bootstrap_room] = req.disagg_decode_prefix_len
            if self.scheduler.chunked_req is req:
                self.scheduler.chunked_req = None

    def _exchange_memory(self, req: Any, fetch: Fetch) -> None:
        """Decode may still write to the fetch's pages: give the request others to release, keep those in quarantine."""
        from sglang.srt.mem_cache.common import evict_from_tree_cache

        states = self.tree.req_to_token_pool.mamba_allocator if fetch.state is not None else None
        evict_from_tree_cache(self.tree, len(fetch.kv))
        fresh = self.allocator.alloc(len(fetch.kv))
        state = states.alloc(1) if states is not None and fresh is not None else None
        if fresh is None or (states is not None and state is None):
            if fresh is not None:
                self.allocator.free(fresh)
            # Nothing to exchange: the only safe way is to hold this thread until decode stops or counts as dead.
            while fetch not in self._settle(own=fetch):
                time.sleep(MONITOR_S)
            return
        where = slice(fetch.first_token, fetch.first_token + len(fetch.kv))
        self.tree.req_to_token_pool.write((req.kv.req_pool_idx, where), fresh.to(torch.int32))
        if state is not None:
            req.kv.mamba_pool_idx = state[0]

    def _settle(self, own: Fetch | None = None) -> list[Fetch]:
        """Free the memory of abandoned fetches that nobody writes to any more, but for one that a request owns."""
        settled = self.table.settled(time.monotonic())
        for fetch in settled:
            if fetch is not own:
                self.allocator.free(fetch.kv)
                if fetch.state is not None:
                    self.tree.req_to_token_pool.mamba_allocator.free(fetch.state)
        return settled

    def step(self) -> None:
        """Once a scheduler iteration."""
        if self.table.busy:
            self._settle()
            RUNTIME.gauge("quarantined_tokens", self.table.quarantined_tokens)
        if time.monotonic() >= self._report_due:
            self._report_due = time.monotonic() + REPORT_S
            self._report()

    # What prefill still holds ---------------------------------------------------------------------------------
    def released(self, req: Any, checkpointed: bool) -> None:
        if req.finished():
            self.failed.discard(req.rid)
        session = hint_of(req).session
        if session is not None and checkpointed and req.kv.cache_protected_len:
            self._local[session] = (req.last_node, req.kv.cache_protected_len)

    def _report(self) -> None:
        """Tell decode which units prefill holds too: those go first when memory is short."""
        known = self.index.latest
        self._local = {s: at for s, at in self._local.items() if s in known or self._alive(at[0])}
        for session, lent in list(known.items()):
            node, tokens = self._local.get(session, (None, 0))
            held = tokens >= lent.tokens and self._alive(node)
            if self._reported.get(session, True) != held:
                self._reported[session] = held
                self.link.send(lent.peer, "held", unit=lent.unit, held=held)

    def _alive(self, node: Any) -> bool:
        try:
            return node is not None and not self.tree.tree_core.is_full_device_evicted(node)
        except Exception:
            return False  # the node is gone from the tree

    # Threads --------------------------------------------------------------------------------------------------
    def deliver(self, message: dict[str, Any], blobs: list[bytes]) -> None:
        kind, peer = message["kind"], message["from"]
        if kind == "lent":
            lent = Lent(peer, message["unit"], message["session"], message["tokens"], blobs[0])
            self._reported.pop(lent.session, None)
            stale = self.index.announce(lent)
            if stale is not None:
                self.link.send(stale.peer, "release", unit=stale.unit)
        elif kind == "gone":
            self.index.forget(peer, message["unit"])
        elif kind == "stopped":
            self._end(message["fetch"], message["cause"], message["bytes"])

    def _end(self, fetch_id: int, cause: str | None, written: int) -> None:
        """Decode stopped. A failure is flagged before the row can go to another fetch."""
        fetch = self.table.flying(fetch_id)
        if fetch is not None and cause is not None:
            self._flag_failed(fetch)
        self.table.stopped(fetch_id, cause, written, time.monotonic())

    def _flag_failed(self, fetch: Fetch) -> None:
        with torch.cuda.stream(self._aside) if self._aside is not None else nullcontext():
            self.flags[fetch.slot].fill_(flag_kernels.FAILED)

    def _monitor(self) -> None:
        """Give up fetches past their deadline: a dead decode instance, or one too slow. Must outlive any error, since
        a forward waits for what it does."""
        while True:
            time.sleep(MONITOR_S)
            now = RUNTIME.settings
            self.table.timeout_s, self.table.quarantine_s = now.fetch_timeout_s, now.quarantine_s
            for fetch in self.table.overdue(time.monotonic()) if self.table.busy else ():
                try:
                    self._flag_failed(fetch)
                    self.index.forget(fetch.lent.peer, fetch.lent.unit)
                    self.link.send(fetch.lent.peer, "cancel", fetch=fetch.id)
                except Exception:
                    logger.exception("basin: giving up fetch %d", fetch.id)
                finally:
                    fetch.done.set()


def _created(queue: Any, *args: Any, **kwargs: Any) -> None:
    RUNTIME.borrower = Borrower(queue)


def _register_flags(manager: Any) -> None:
    from sglang.srt.disaggregation.utils import DisaggregationMode

    if manager.disaggregation_mode == DisaggregationMode.PREFILL:
        gpu = manager.kv_args.gpu_id
        device = f"cuda:{gpu}" if torch.cuda.is_available() else "cpu"
        manager.basin_flags = torch.zeros(SLOTS, MAX_GROUPS, dtype=torch.int32, device=device)
        where = (manager.basin_flags.data_ptr(), manager.basin_flags.nbytes, gpu, "")
        manager.agent.register_memory([where], "VRAM")


def _listen(manager: Any) -> None:
    manager.basin_link = Link(manager)
    manager.server_socket = FilteredSocket(manager.server_socket, manager.basin_link.receive)


def _met(manager: Any, peer: Any) -> None:
    """A decode instance registered: send it our own registration, so that it can write back."""
    if hasattr(manager, "basin_flags") and peer.agent_name not in manager.basin_link.endpoints:
        manager.basin_link.endpoints[peer.agent_name] = (peer.endpoint, peer.dst_port)
        manager.basin_link.send(peer.agent_name, "peer", manager.build_receiver_registration_message()[1:])


def _step(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if RUNTIME.borrower is not None:
        RUNTIME.borrower.step()


def _finish_loads(original: Callable[..., list[Any]], tree: Any, reqs: list[Any]) -> list[Any]:
    """The engine aborts requests whose external load failed; ours are computed again instead."""
    borrower = RUNTIME.borrower
    if borrower is None or tree.linker is None:
        return original(tree, reqs)
    failed = set(tree.linker.finish_loads())
    borrower.recompute([req for req in reqs if req.rid in failed])
    return []


def _retry(original: Callable[..., bool], req: Any) -> bool:
    return getattr(req, "_basin_rerun", False) or original(req)


def _requeue(original: Callable[..., None], scheduler: Any, req: Any) -> None:
    """Nothing of a forward that ran on incomplete pages may reach the cache."""
    if not getattr(req, "_basin_rerun", False):
        original(scheduler, req)
        return
    req._basin_rerun = False
    kept, req.skip_radix_cache_insert = req.skip_radix_cache_insert, True
    try:
        original(scheduler, req)
    finally:
        req.skip_radix_cache_insert = kept


def _released(tree: Any, req: Any, *, checkpointed: bool) -> None:
    if RUNTIME.borrower is not None:
        RUNTIME.borrower.released(req, checkpointed)


def _idle(original: Callable[..., bool], scheduler: Any, for_health_check: bool = False, **kwargs: Any) -> bool:
    """Quarantined pages belong to nobody the engine knows: its leak check must wait for them."""
    idle = original(scheduler, for_health_check, **kwargs)
    return idle and (for_health_check or RUNTIME.borrower is None or not RUNTIME.borrower.table.busy)


def hooks() -> list[Hook]:
    nixl = "sglang.srt.disaggregation.nixl.conn.NixlKVManager"
    prefill = "sglang.srt.disaggregation.prefill"
    mixin = f"{prefill}.SchedulerDisaggregationPrefillMixin"
    tree = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    return [
        Hook(f"{nixl}.register_buffer_to_engine", after(_register_flags)),
        Hook(f"{nixl}._start_bootstrap_thread", before(_listen)),
        Hook(f"{nixl}._add_remote_peer", after(_met)),
        Hook(f"{prefill}.PrefillBootstrapQueue.__init__", after(_created)),
        Hook(f"{prefill}.should_force_retry", _retry),
        Hook(f"{mixin}.get_next_disagg_prefill_batch_to_run", before(_step)),
        Hook(f"{mixin}.optimistic_release_and_requeue", _requeue),
        Hook(f"{tree}.finish_external_linker_loads", _finish_loads),
        Hook(f"{tree}.on_release", after(_released)),
        Hook("sglang.srt.managers.scheduler.Scheduler.is_fully_idle", _idle),
    ]


def check(server_args: Any) -> None:
    """Raises `ValueError` for deployments that lending does not cover, naming the flag."""
    for wrong, what in (
        (server_args.disaggregation_mode == "null", "needs prefill-decode disaggregation (--disaggregation-mode)"),
        (server_args.disaggregation_transfer_backend != "nixl", "needs --disaggregation-transfer-backend nixl"),
        (server_args.tp_size != 1 or server_args.pp_size != 1, "covers --tp-size 1 and --pp-size 1 only"),
        (
            server_args.hicache_storage_backend is not None,
            "goes with HiCache in host memory only: its prefetches from --hicache-storage-backend are not covered",
        ),
        (server_args.enable_unified_cache_external_linker, "takes the place of --enable-unified-cache-external-linker"),
    ):
        if wrong:
            raise ValueError(f"the feature 'lend' of BASIN_SGLANG {what}")
