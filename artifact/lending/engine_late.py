"""Decode memory reserved at prefill completion (paper A §6.2), over NIXL and with the caches the engine's own check
still refuses.

The engine has the policy (`--disaggregation-decode-allocation-policy prefill_complete`); what it lacks here is that
NIXL's control thread hands bootstrap messages to it, and that its checks let the combination through.
"""

from collections.abc import Callable
from typing import Any

from artifact.lending.engine_link import FilteredSocket
from artifact.lending.hooks import Hook, before
from artifact.lending.runtime import RUNTIME

_COMBINATIONS_ADDED = (
    "transfer backends other than Mooncake",
    "decode radix cache or decode HiCache",
    "prefill HiCache other than L2 write_back",
)


def _validate(original: Callable[..., Any], server_args: Any) -> None:
    """Keep the engine's check but for what this module adds."""
    try:
        original(server_args)
    except ValueError as error:
        head, _, listed = str(error).partition(" yet support ")
        left = [item for item in listed.split(", ") if item not in _COMBINATIONS_ADDED]
        wrong = [
            name
            for name, bad in (
                ("transfer backends other than NIXL", server_args.disaggregation_transfer_backend != "nixl"),
                (
                    "decode HiCache",
                    server_args.disaggregation_mode == "decode" and server_args.enable_hierarchical_cache,
                ),
                ("HiCache storage", server_args.hicache_storage_backend is not None),
            )
            if bad
        ]
        if left or wrong or not listed:
            raise ValueError(f"{head} yet support {', '.join([*left, *wrong])}") from error


def _manager_init(original: Callable[..., Any], manager: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
    """The base manager refuses recurrent state under this policy; state goes with the last chunk, which is later
    still, so it may pass. Nothing else in that constructor reads the list."""
    from sglang.srt.disaggregation.base.conn import StateType

    kept = args.state_types
    args.state_types = [state for state in kept or () if state != StateType.MAMBA]
    try:
        original(manager, args, *rest, **kwargs)
    finally:
        args.state_types = kept


def _listen(manager: Any) -> None:
    if manager.deferred_bootstrap is not None:
        manager.server_socket = FilteredSocket(manager.server_socket, manager._handle_bootstrap_message)


def _complete(sender: Any) -> None:
    if sender.kv_mgr.deferred_bootstrap is not None and sender._prefill_complete_time is None:
        RUNTIME.count("late_reservations")


def hooks() -> list[Hook]:
    conn = "sglang.srt.disaggregation.common.conn"
    return [
        Hook("sglang.srt.arg_groups.pd_disaggregation_hook._validate_prefill_complete", _validate),
        Hook(f"{conn}.CommonKVManager.__init__", _manager_init),
        Hook(f"{conn}.CommonKVSender.mark_prefill_complete", before(_complete)),
        Hook("sglang.srt.disaggregation.nixl.conn.NixlKVManager._start_bootstrap_thread", before(_listen)),
    ]
