"""Crossflow's elastic prefill on decode, on real SGLang 1P1D: same outputs, and decoding goes first by its SLO."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.engine

MIXED = (tuple(range(600, 606)), 3, 150)
LONG = ((610,), 1, 1500)
HERE = {"prefill": None, "basin": {"elastic": True}}


@pytest.fixture(scope="module")
def expected(references):
    return dict(zip(("mixed", "long"), references("llama", [MIXED, LONG]), strict=True))


@pytest.fixture(scope="module")
def pd(engines):
    flags = {
        "prefill": ["--max-total-tokens", "4000"],
        "decode": ["--max-total-tokens", "4000", "--disaggregation-decode-enable-radix-cache"],
    }
    with engines.deploy("llama", ["prefill", "decode"], flags, engines.features("elastic", itl_slo_s=5.0)) as pair:
        yield pair


def count(pd, name):
    return pd.total("decode", f"basin_{name}_total")


def test_turns_prefilled_on_either_side_give_the_same_outputs(pd, engines, expected):
    """Odd turns are computed by decode, even ones by prefill, sessions side by side."""

    def session(seed):
        context, outputs = [], []
        for turn, new in enumerate(engines.conversation(seed, *MIXED[1:], (20, 60))):
            context += new
            answer = pd.generate(context, 8, **(HERE if turn % 2 else {}))
            outputs.append(answer["output_ids"])
            context += answer["output_ids"]
        return outputs

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(session, MIXED[0])) == expected["mixed"]
    assert count(pd, "elastic_requests") == 6 and count(pd, "elastic_tokens") > 0


@pytest.fixture
def decoding(pd, engines):
    """Two calls that decode for some seconds; their futures."""
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(pd.generate, [300 + i] * 50, 600) for i in range(2)]
        assert engines.eventually(lambda: pd.total("decode", "sglang:num_running_reqs") == 2, 30)
        yield calls
        for call in calls:
            call.result(timeout=120)


def elastic(pd, seed, engines):
    (prompt,) = engines.conversation(seed, *LONG[1:], (1, 1))
    return pd.generate(prompt, 8, **HERE)


def test_within_the_slo_chunks_run_between_decode_steps(pd, engines, decoding, expected):
    before = count(pd, "elastic_chunks")
    answer = elastic(pd, LONG[0][0], engines)
    assert not all(call.done() for call in decoding), "it ran beside them"
    assert answer["output_ids"] == expected["long"][0][0]
    assert count(pd, "elastic_chunks") > before


def test_beyond_the_slo_the_lease_is_revoked_until_decoding_is_over(pd, engines, decoding):
    pd.switch_one(pd.decodes[0], itl_slo_s=1e-4)
    before = count(pd, "elastic_chunks"), count(pd, "lease_revocations")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(elastic, pd, 611, engines)
        time.sleep(1.0)
        if not any(running.done() for running in decoding):
            assert count(pd, "elastic_chunks") == before[0] and not call.done()
        assert call.result(timeout=120)["meta_info"]["completion_tokens"] == 8
    assert count(pd, "lease_revocations") > before[1]
    assert all(running.done() for running in decoding), "they went first"
    pd.switch_one(pd.decodes[0], itl_slo_s=5.0)


def test_an_abort_in_the_queue_or_between_chunks_releases_everything(pd, engines, decoding):
    pd.switch_one(pd.decodes[0], itl_slo_s=1e-4)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(pd.generate, [320 + i] * 900, 8, rid=f"elastic-{i}", **HERE) for i in range(2)]
        time.sleep(0.3)
        engines.post(f"{pd.decodes[0].url}/abort_request", {"rid": "elastic-1"})
        assert calls[1].result(timeout=60)["meta_info"]["finish_reason"]["type"] == "abort"
        assert calls[0].result(timeout=120)["meta_info"]["completion_tokens"] == 8
    pd.switch_one(pd.decodes[0], itl_slo_s=5.0)


def test_nothing_is_held_in_the_end(pd):
    assert pd.empties(decode="sglang:kv_used_tokens", prefill="sglang:kv_used_tokens")
    assert not any("leak" in e.text() for e in pd.engines)
