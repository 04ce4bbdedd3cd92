"""Installing hooks, refusing other engines, and the control messages: with stand-ins for the engine's modules."""

import sys
import types

import pytest

from artifact.lending import hooks, plugin
from artifact.lending.engine_link import TAG, FilteredSocket, Link, pack, unpack
from artifact.lending.engine_transfer import entries, runs
from artifact.lending.settings import VARIABLE

import numpy as np  # isort: skip


def test_without_the_variable_nothing_is_registered(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(plugin, "_hooks", lambda: pytest.fail("hooks were built"))
    plugin.register()


def test_a_wrong_setting_stops_the_engine_with_its_name(monkeypatch):
    monkeypatch.setenv(VARIABLE, "order,lent")
    with pytest.raises(SystemExit, match="'lent'"):
        plugin.register()


@pytest.fixture
def engine(monkeypatch):
    """A module that stands for SGLang, with one function."""
    module = types.ModuleType("stand_in")
    module.f = lambda x: x
    monkeypatch.setitem(sys.modules, "stand_in", module)
    return module


@pytest.mark.parametrize("installed", ["0.5.22", plugin.SGLANG_VERSION])
def test_another_version_is_refused_naming_what_moved(monkeypatch, engine, installed):
    monkeypatch.setattr(plugin, "version", lambda name: installed)
    asked = [hooks.Hook("stand_in.f", hooks.before(print)), hooks.Hook("stand_in.g", hooks.before(print))]
    with pytest.raises(ValueError, match=rf"installed is {installed}; hooks that moved: stand_in\.g;"):
        plugin._require_version(asked)


def test_the_right_version_is_accepted(monkeypatch, engine):
    monkeypatch.setattr(plugin, "version", lambda name: plugin.SGLANG_VERSION)
    plugin._require_version([hooks.Hook("stand_in.f", hooks.before(print))])


def test_a_hook_that_did_not_apply_stops_the_engine():
    with pytest.raises(SystemExit, match=r"a\.b"):
        plugin.report({"a.b": print, "a.c": print}, {"a.c"})


def test_hooks_on_one_target_nest_and_all_run():
    seen = []
    asked = [
        hooks.Hook("t", hooks.before(lambda x: seen.append(f"first {x}"))),
        hooks.Hook("t", lambda original, x: original(x) + 1),
        hooks.Hook("t", hooks.after(lambda x: seen.append(f"last {x}"))),
        hooks.Hook("u", hooks.before(print)),
    ]
    arounds = hooks.merged(asked)
    assert set(arounds) == {"t", "u"}
    assert arounds["t"](lambda x: 10 * x, 4) == 41 and seen == ["first 4", "last 4"]


class Socket:
    closed = False

    def __init__(self, *messages):
        self.messages = list(messages)

    def recv_multipart(self):
        return self.messages.pop(0)


class Manager:
    agent = types.SimpleNamespace(name="p0")

    def __init__(self):
        self.sent = []


def test_our_messages_do_not_reach_the_engine_and_early_ones_wait():
    link, got = Link(Manager()), []
    mine = pack("lent", "d0", {"unit": 3}, [b"\x00digest"])
    socket = FilteredSocket(Socket(mine, [b"GUARD", b"x"], mine, [TAG, b"{broken"], [b"ABORT"]), link.receive)
    assert socket.recv_multipart() == [b"GUARD", b"x"]
    link.open(lambda fields, blobs: got.append((fields, blobs)))
    assert got == [({"kind": "lent", "from": "d0", "unit": 3}, [b"\x00digest"])]
    assert socket.recv_multipart() == [b"ABORT"] and len(got) == 2
    assert socket.closed is False, "everything else goes to the socket itself"


def test_a_failing_handler_does_not_end_the_engine_thread():
    link = Link(Manager())
    link.open(lambda fields, blobs: 1 / 0)
    assert link.receive(pack("lent", "d0", {})) is True


def test_foreign_messages_are_not_ours():
    assert unpack([b"KV_STATUS", b"{}"]) is None and unpack([TAG]) is None
    assert Link(Manager()).receive([b"KV_STATUS", b"1"]) is False
    assert Link(Manager()).send("stranger", "gone") is False


# What is written where ----------------------------------------------------------------------------------------
def test_runs_are_contiguous_on_both_sides():
    source, target = np.array([4, 5, 6, 9, 10]), np.array([1, 2, 7, 8, 9])
    assert runs(source, target) == [(4, 1, 2), (6, 7, 1), (9, 8, 2)]
    assert runs(np.array([]), np.array([])) == []


def test_keys_and_values_of_a_layer_go_together_and_state_follows_its_own_ids():
    ours = types.SimpleNamespace(
        kv_data_ptrs=[10, 20, 30, 40],
        kv_item_lens=[8] * 4,
        kv_layer_ids=[],
        state_data_ptrs=[[50, 60]],
        state_item_lens=[[16, 16]],
        state_layer_ids=[[1, 1]],
    )
    theirs = types.SimpleNamespace(dst_kv_ptrs=[11, 21, 31, 41], dst_state_data_ptrs=[[51, 61]])
    found = entries(ours, theirs, layers=2)
    assert [(e.layer, e.source, e.target, e.is_state) for e in found] == [
        (0, 10, 11, False),
        (1, 20, 21, False),
        (0, 30, 31, False),
        (1, 40, 41, False),
        (1, 50, 51, True),
        (1, 60, 61, True),
    ]
    theirs.dst_kv_ptrs = [11, 21]
    with pytest.raises(ValueError, match="4 and 2"):
        entries(ours, theirs, layers=2)


def test_checks_name_the_flag_that_is_missing_or_in_the_way():
    pytest.importorskip("sglang", reason="the checks stand beside the hooks, which import the engine")
    from artifact.lending import engine_decode, engine_order, engine_prefill

    args = types.SimpleNamespace(
        enable_priority_scheduling=False,
        disaggregation_mode="decode",
        disaggregation_transfer_backend="nixl",
        disaggregation_decode_enable_radix_cache=True,
        tp_size=1,
        pp_size=1,
        hicache_storage_backend=None,
        enable_unified_cache_external_linker=False,
    )
    for module in (engine_decode, engine_order, engine_prefill):
        module.check(args)
    for module, change, flag in (
        (engine_decode, {"disaggregation_decode_enable_radix_cache": False}, "--disaggregation-decode-enable-radix"),
        (engine_order, {"enable_priority_scheduling": True}, "--enable-priority-scheduling"),
        (engine_prefill, {"tp_size": 2}, "--tp-size 1"),
        (engine_prefill, {"disaggregation_mode": "null"}, "--disaggregation-mode"),
        (engine_prefill, {"hicache_storage_backend": "file"}, "--hicache-storage-backend"),
        (engine_prefill, {"enable_unified_cache_external_linker": True}, "--enable-unified-cache-external-linker"),
    ):
        with pytest.raises(ValueError, match=flag):
            module.check(types.SimpleNamespace(**{**vars(args), **change}))
