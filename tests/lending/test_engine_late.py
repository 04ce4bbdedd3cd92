"""Reservation at prefill completion with write-through HiCache on prefill, lending above it, and little decode memory:
what completes, and that every other way out of a request gives back all it held."""

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError

import pytest

pytestmark = pytest.mark.engine

MANY = (tuple(range(400, 424)), 3, 150)
PRESSED = (tuple(range(450, 460)), 1, 190)
LONG_TOKENS = 100
HOSTED = ((470,), 3, 300)
TIMEOUT_S = 12
# The direct copies by layer are what runs without a GPU; the host holds half as much again as the device.
HICACHE = (
    *("--enable-hierarchical-cache", "--hicache-write-policy", "write_through", "--hicache-ratio", "1.5"),
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
)
GONE = {"decode": "sglang:kv_used_tokens", "prefill": "sglang:kv_used_tokens"}


@pytest.fixture(scope="module")
def pd(engines):
    timeouts = {f"SGLANG_DISAGGREGATION_{kind}_TIMEOUT": str(TIMEOUT_S) for kind in ("BOOTSTRAP", "WAITING")}
    environment = engines.features("order", "late", "lend", phi=0.6) | timeouts
    with engines.deploy("llama", ["prefill", "decode"], engines.pools(1200, 2200, *HICACHE), environment) as pair:
        yield pair


def test_units_go_before_running_requests(pd, engines, references):
    (expected,) = references("llama", [MANY])
    began = time.monotonic()
    played = engines.play_all(pd, MANY[0], 8, *MANY[1:], lend=True)
    assert [p.outputs for p in played] == expected
    print(f"{len(played) * MANY[1]} calls in {time.monotonic() - began:.0f} s")
    assert pd.total("prefill", "basin_late_reservations_total") >= len(played) * MANY[1]
    assert pd.total("decode", "basin_adopted_units_total") > 0
    assert pd.total("decode", "basin_reclaimed_units_total") > 0
    assert pd.total("decode", "basin_retractions_while_lent_total") == 0


def test_a_turn_loads_what_the_host_still_has_and_fetches_what_it_lost(pd, engines, references):
    (expected,) = references("llama", [HOSTED])
    context, outputs, gained = [], [], []
    others = iter(range(480, 500))
    counters = ("sglang:load_back_tokens_total", "basin_fetched_tokens_total")
    for new, evicting in zip(engines.conversation(HOSTED[0][0], *HOSTED[1:], (20, 60)), (0, 3, 9), strict=True):
        for _ in range(evicting):  # 450 tokens each: three fill the device, nine the host as well
            engines.play(pd, next(others), 1, 450, tokens=1)
        before = [pd.total("prefill", name) for name in counters]
        context += new
        answer = pd.generate(context, 8, basin={"session": "hosted", "retain": True})
        outputs.append(answer["output_ids"])
        context += answer["output_ids"]
        gained.append([pd.total("prefill", name) - was for name, was in zip(counters, before, strict=True)])
    assert outputs == expected[0]
    (_, (loaded, fetched), (loaded_later, fetched_later)) = gained
    assert loaded >= 300 and fetched == 0, gained
    assert loaded_later == 0 and fetched_later >= 300, gained
    assert pd.total("prefill", "sglang:hicache_backup_tokens_total") > 0


def test_retracted_requests_complete_and_their_reservations_return(pd, engines, references):
    """Ten requests of 290 tokens in the end, in a memory of 2200, of which only 16 each are reserved ahead."""
    (expected,) = references("llama", [PRESSED], LONG_TOKENS)
    played = engines.play_all(pd, PRESSED[0], 10, *PRESSED[1:], tokens=LONG_TOKENS)
    assert [p.outputs for p in played] == expected
    assert pd.total("decode", "sglang:num_retracted_requests_total") > 0
    assert pd.total("decode", "basin_retractions_while_lent_total") == 0
    pd.switch(lending=0)
    assert pd.empties(decode="basin_lent_tokens") and pd.empties(**GONE)


def test_memory_that_runs_out_is_taken_from_the_least_important(pd, finish_order):
    """Each call that comes is more important than those before it: the first to come is retracted and ends last."""

    def finished(first_token):
        before = retracted()
        calls = finish_order(lambda i, p: pd.generate([first_token + i] * 190, 120, priority=p), range(10, 0, -1))[0]
        return calls, retracted() - before

    def retracted():
        return pd.total("decode", "sglang:num_retracted_requests_total")

    ordered, taken = finished(860)
    moved = pd.total("decode", "basin_reordered_queues_total", 'queue="decode_retracted"')
    pd.switch(ordering=0)
    plain, taken_plain = finished(880)
    pd.switch(ordering=1)
    print(f"{ordered} with {taken:.0f} retractions, queue reordered {moved:.0f} times; {plain} with {taken_plain:.0f}")
    assert taken > 1 and taken_plain > 1 and moved > 0
    assert ordered[-1] == 0 and ordered.index(9) < 5, ordered
    assert plain.index(0) < 5, plain


@pytest.fixture
def crowded(pd, engines):
    """Decode's memory taken by running calls for some seconds; gives a prompt that must wait for memory there."""
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(pd.generate, [700 + i] * 600, 500, rid=f"runs-{i}") for i in range(3)]
        assert engines.eventually(lambda: pd.total("decode", "sglang:num_running_reqs") == 3, 30)
        yield [800] * 600
        for i in range(3):
            abort(engines, pd.engines, f"runs-{i}")
        for call in running:
            call.exception(timeout=60)


def abort(engines, where, rid):
    for engine in where:
        engines.post(f"{engine.url}/abort_request", {"rid": rid})


def outcome(call):
    """ "failed", or why the answer ended."""
    try:
        return call.result(timeout=TIMEOUT_S + 90)["meta_info"]["finish_reason"]["type"]
    except (HTTPError, OSError):
        return "failed"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_abort_while_waiting_for_decode_memory_releases_everything(pd, engines, crowded, role):
    """A router aborts on both; here the other side must find out by itself."""
    rid, done = f"waits-{role}", pd.total("prefill", "basin_late_reservations_total")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(pd.generate, crowded, 4, rid=rid)
        assert engines.eventually(lambda: pd.total("prefill", "basin_late_reservations_total") == done + 1, 30)
        assert not call.done(), "its prefill is over, so it waits for decode memory"
        abort(engines, [e for e in pd.engines if e.role == role], rid)
        assert outcome(call) in ("failed", "abort")


def test_an_abort_before_prefill_releases_everything(pd, engines):
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(pd.generate, [820 + i] * 900, 4, rid=f"queued-{i}") for i in range(6)]
        for i in range(3, 6):
            abort(engines, pd.engines, f"queued-{i}")
        ends = [outcome(call) for call in calls]
    assert ends[:3] == ["length"] * 3 and set(ends[3:]) <= {"length", "failed", "abort"}


def test_either_side_gives_up_a_partner_that_never_comes(pd, engines):
    """Prefill without a decode instance holds its pages no longer than the time-out, and decode waits no longer."""
    body = {
        "input_ids": [840] * 500,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": pd.prefills[0].bootstrap_port,
    }
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(engines.post, f"{engine.url}/generate", {**body, "bootstrap_room": room})
            for room, engine in enumerate(pd.engines, 7001)
        ]
        assert [outcome(call) for call in calls] == ["failed", "failed"]


def test_in_the_end_nothing_is_held_and_the_pair_still_serves(pd, engines, references):
    assert pd.empties(**GONE)
    (expected,) = references("llama", [(PRESSED[0][:1], 1, 190)])
    assert [p.outputs for p in engines.play_all(pd, PRESSED[0][:1], 1, 1, 190)] == expected
    assert pd.empties(**GONE)
    assert not any("leak" in e.text() for e in pd.engines)
