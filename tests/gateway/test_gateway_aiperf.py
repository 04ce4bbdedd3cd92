"""AIPerf, unmodified, as the load before the gateway and the stub engine: its conversations are the gateway's sessions.

`make test-gateway-aiperf` installs it in an environment of its own.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import Door
from engine_load import PATIENCE_S
from fake_upstream import serving

from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, GatewayConfig, Timeouts
from artifact.gateway.session import Session
from hw_runs.stub_engine import StubEngine
from hw_runs.stub_engine_model import SimulatedEngine
from sim.scenario import Deployment

pytestmark = pytest.mark.engine

AIPERF = Path(os.environ.get("BASIN_AIPERF", Path(__file__).parents[2] / ".venv-aiperf" / "bin" / "aiperf"))
CONVERSATIONS, TURNS, ROOM = 4, 3, 2
LETTERS = """
import string, sys
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
letters = Tokenizer(models.BPE({c: i for i, c in enumerate(["?", *string.printable])}, [], unk_token="?"))
letters.decoder = decoders.Fuse()
PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?").save_pretrained(sys.argv[1])
"""
"""A tokenizer for the load generator, which would fetch one: a token a letter, as the stub counts them."""


def profile(url: str, tokenizer: Path, results: Path) -> list[str]:
    words = f"""
        profile --model stub --url {url} --endpoint-type chat --streaming --tokenizer {tokenizer}
        --conversation-num {CONVERSATIONS} --conversation-turn-mean {TURNS} --conversation-turn-stddev 0
        --conversation-turn-delay-mean 50 --concurrency {CONVERSATIONS} --synthetic-input-tokens-mean 200 --osl 8
        --random-seed 1 --ui none --workers-max 1 --artifact-dir {results}
    """
    return [str(AIPERF), *words.split()]


async def test_aiperf_drives_the_gateway_and_its_conversations_are_sessions(tmp_path: Path) -> None:
    if not AIPERF.exists():
        pytest.skip(f"no AIPerf: {AIPERF} is absent; `make test-gateway-aiperf` installs it")
    tokenizer, results = tmp_path / "letters", tmp_path / "results"
    subprocess.run([AIPERF.with_name("python"), "-c", LETTERS, tokenizer], check=True)
    stub = StubEngine(SimulatedEngine(Deployment(calibration="h100"), 0), speed=20.0, bytes_per_token=1)
    ended: list[Session] = []
    most_inside = 0
    async with serving(stub) as upstream:
        engines = (Engine(url=upstream + "/prefill", role="prefill"), Engine(url=upstream + "/decode", role="decode"))
        # AIPerf does not say that a conversation is over: the gateway takes it from the silence
        config = GatewayConfig(upstream=upstream, engines=engines, timeouts=Timeouts(idle_s=5.0), scrape_s=0.5)
        gateway = Gateway(config, lambda *made_of: Door(room=ROOM), ended.append)
        async with serving(gateway, "on") as url, asyncio.timeout(PATIENCE_S):
            run = await asyncio.create_subprocess_exec(
                *profile(url, tokenizer, results), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            reading = asyncio.create_task(run.communicate())
            while not reading.done():
                most_inside = max(most_inside, sum(session.inside for session in gateway.desk.table))
                await asyncio.sleep(0.01)
            output = reading.result()[0].decode()
            assert run.returncode == 0, output[-3000:]
            sessions = [*ended, *gateway.desk.table]
            hit = gateway.desk.books.cached_tokens
    records = [json.loads(line) for line in (results / "profile_export.jsonl").read_text().splitlines()]
    assert len(records) == CONVERSATIONS * TURNS and not any(record.get("error") for record in records)
    assert [session.turns for session in sessions] == [TURNS] * CONVERSATIONS
    assert {session.id for session in sessions} == {record["metadata"]["x_correlation_id"] for record in records}
    assert most_inside == ROOM  # the others waited at the door, and AIPerf with them
    assert hit > 0  # turns found what the ones before them had left
