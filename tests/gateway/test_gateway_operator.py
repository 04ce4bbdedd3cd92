"""What people see and may change: pages, explanations, metrics, control, and who is let near them."""

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest
import yaml
from conftest import PATIENCE_S, Door
from prometheus_client.parser import text_string_to_metric_families

from artifact.control.policy import Policy
from artifact.gateway.logs import JsonLines
from hw_runs.processes import free_port

TOKEN = {"x-basin-admin-token": "s3cret"}
OPERATIONS = Path(str(files("artifact.gateway") / "operations"))
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"


async def get(s, path: str, **kwargs) -> tuple[int, object]:
    async with s.client.get(s.url + path, **kwargs) as response:
        return response.status, await response.json()


async def test_sessions_and_explanations(stand) -> None:
    s = await stand(policy=Door(room=1))
    await s.status("in")
    parked = asyncio.create_task(s.status("out"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    status, state = await get(s, "/sessions?limit=1")
    assert status == 200
    assert (state["resident"], state["parked"], state["calls"]) == (1, 1, {"waiting": 1, "live": 0})
    assert [(x["id"], x["state"]) for x in state["sessions"]] == [("out", "parked")]  # who waits comes first
    assert (await get(s, "/explain?session=out"))[1]["why"] == "at the door; admitted with the next decision"
    assert (await get(s, "/explain?session=in"))[1]["state"] == "resident"
    assert (await get(s, "/explain?session=nobody"))[0] == 404
    parked.cancel()


async def test_the_metrics_page_is_valid_and_says_what_happened(stand) -> None:
    s = await stand(policy=Door(room=1))
    await s.status("a")
    task = asyncio.create_task(s.status("b"))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    async with s.client.get(s.url + "/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    task.cancel()
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["basin_sessions", ("state", "resident")] == 1
    assert values["basin_sessions", ("state", "parked")] == 1
    assert values["basin_decisions_total", ("action", "admit")] == 1
    assert values["basin_calls_total", ("outcome", "done")] == 1
    assert values["basin_output_tokens_total",] == 5
    if shutil.which("promtool"):
        lint = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        assert lint.returncode == 0, lint.stdout + lint.stderr


async def test_admin_needs_its_token_and_switches_policy_and_options(stand) -> None:
    s = await stand(admin_token="s3cret")
    made: list[tuple[str, dict]] = []

    def make(name: str, options: dict, latest: object) -> Policy:
        if name == "nonsense":
            raise ValueError("no policy 'nonsense'; there are a, b")
        made.append((name, options))
        return Door(room=options.get("room", 1))

    s.gateway._make_policy = make
    await s.status("inside")

    async def put(body: object, headers: dict[str, str]) -> tuple[int, dict]:
        async with s.client.put(s.url + "/admin/policy", json=body, headers=headers) as response:
            return response.status, await response.json()

    for headers in ({}, {"x-basin-admin-token": "s3cre"}, {"authorization": "Bearer no"}):
        assert (await put({"policy": "b"}, headers))[0] == 401
    assert (await put({"policy": "b", "options": {"room": 3}}, TOKEN))[1] == {"policy": "b", "options": {"room": 3}}
    assert s.gateway.desk.policy.facts == [("adopt", "inside")]
    await put({"options": {"x": 1}}, {"authorization": "Bearer s3cret"})
    assert made[-1] == ("b", {"room": 3, "x": 1})  # options on top of those in force
    status, error = await put({"policy": "nonsense"}, TOKEN)
    assert status == 400 and "there are a, b" in error["error"]["message"]
    assert (await put([1], TOKEN))[0] == 400
    assert (await get(s, "/admin/policy", headers=TOKEN))[1]["policy"] == "b"
    assert (await get(s, "/admin/other", headers=TOKEN))[0] == 404


async def test_without_a_token_there_is_no_admin_endpoint(stand) -> None:
    s = await stand()
    assert (await get(s, "/admin/policy"))[0] == 403


@pytest.mark.parametrize("path", ["/sessions", "/explain?session=a", "/ui", "/admin/policy"])
async def test_operators_pages_are_for_this_machine_unless_opened(stand, path: str) -> None:
    s = await stand(admin_token="s3cret")
    remote = {"x-forwarded-for": "203.0.113.9"}
    async with s.client.get(s.url + path, headers={**remote, **TOKEN}) as response:
        assert response.status == 403
    opened = await stand(admin_token="s3cret", admin_remote=True)
    async with opened.client.get(opened.url + path, headers=remote) as response:
        assert response.status == 401
    async with opened.client.get(opened.url + path, headers={**remote, **TOKEN}) as response:
        assert response.status in (200, 404)


async def test_adopted_sessions_are_inside_and_go_on_with_their_next_call(stand) -> None:
    s = await stand(admin_token="s3cret", policy=Door(room=1))
    await s.status("known")
    listing = {
        "sessions": [{"id": "old", "context_tokens": 5000, "state": "resident"}, {"id": "known", "context_tokens": 1}]
    }
    async with s.client.post(s.url + "/admin/adopt", json=listing, headers=TOKEN) as response:
        assert await response.json() == {"adopted": 1}
    assert s.door.facts[-1] == ("adopt", "old")
    assert await s.status("old") == 200  # although there is room for one only
    assert s.gateway.desk.table.get("old").context_tokens < 5000
    async with s.client.post(s.url + "/admin/adopt", json={"sessions": [{"id": "x"}]}, headers=TOKEN) as response:
        assert response.status == 400


def test_logs_are_json_lines_and_odd_text_stays_inside_them() -> None:
    record = logging.makeLogRecord({"name": "basin.gateway", "levelname": "WARNING", "msg": "cut %s", "args": ("off",)})
    record.session = 'a\n{"forged": 1}'
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line) == json.loads(line) | {
        "message": "cut off",
        "session": 'a\n{"forged": 1}',
        "level": "warning",
    }


async def test_nothing_secret_is_logged_or_exported(stand, caplog) -> None:
    caplog.set_level(logging.DEBUG, "basin.gateway")
    s = await stand(admin_token="s3cret", upstream="http://127.0.0.1:9")
    headers = {"authorization": "Bearer sk-private", "x-session-id": "a", **TOKEN}
    body = {"messages": [{"role": "user", "content": "my private prompt"}]}
    async with s.client.post(s.url + "/v1/chat/completions", json=body, headers=headers) as response:
        shown = await response.text()
    shown += caplog.text + s.gateway.metrics.page().decode() + json.dumps((await get(s, "/sessions"))[1])
    shown += repr(s.gateway.config)
    for secret in ("sk-private", "my private prompt", "s3cret"):
        assert secret not in shown


# Files for Prometheus and Grafana ------------------------------------------------------------------------------
def dashboard_expressions() -> list[str]:
    panels = json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


async def test_rules_and_dashboard_ask_only_for_metrics_that_exist(stand) -> None:
    s = await stand(cliff_over_capacity=1.7, admin_token="t")
    text = s.gateway.metrics.page().decode()
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} | {
        # exported once an engine has been read or a policy has such a notion
        "basin_working_set_tokens", "basin_cliff_tokens", "basin_reference_budget_tokens", "basin_budget_tokens",
        "basin_cache_capacity_tokens", "basin_hit_rate", "basin_prefill_queue_calls", "basin_decode_waiting_calls",
        "basin_decode_running_calls", "basin_signal_age_seconds",
    }  # fmt: skip
    rules = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())
    asked = dashboard_expressions() + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in asked:
        for word in re.findall(r"basin_\w+", expression):
            assert word.removesuffix("_bucket") in exported, f"{word} in {expression}"


promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (Debian package prometheus)")


@promtool
def test_promtool_accepts_the_rules_and_the_dashboards_expressions(tmp_path) -> None:
    expressions = [e.replace("$instance", ".*") for e in dashboard_expressions()]
    rules = [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions)]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for path in (OPERATIONS / "alerts.yml", panels):
        checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@promtool
def test_the_trap_raises_its_alert_and_a_healthy_engine_none(tmp_path) -> None:
    def series(name: str, value: str) -> dict[str, str]:
        return {"series": f'{name}{{instance="g",job="basin"}}', "values": f"{value}x20"}

    def case(hit_rate: float, working_set: int, alerts: list[dict]) -> dict:
        return {
            "interval": "1m",
            "input_series": [
                series("basin_hit_rate", str(hit_rate)),
                series("basin_working_set_tokens", str(working_set)),
                series("basin_cliff_tokens", "1000000"),
            ],
            "alert_rule_test": [{"eval_time": "15m", "alertname": "BasinTrapped", "exp_alerts": alerts}],
        }

    rules = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())["groups"][0]["rules"]
    template = next(rule for rule in rules if rule["alert"] == "BasinTrapped")["annotations"]["description"]
    description = template.replace("{{ $value | humanizePercentage }}", "20%")
    trapped = {
        "exp_labels": {"severity": "critical", "instance": "g", "job": "basin"},
        "exp_annotations": {
            "summary": "Working set beyond the cliff and prefix reuse lost",
            "description": description,
        },
    }
    tests = {
        "rule_files": [str(OPERATIONS / "alerts.yml")],
        "tests": [case(0.2, 1_500_000, [trapped]), case(0.95, 500_000, [])],
    }
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump(tests))
    run = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


# The page and the command --------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is absent (Debian package chromium)")
async def test_the_live_page_shows_the_state_in_a_browser_and_runs_nothing_from_ids(stand, tmp_path) -> None:
    s = await stand(policy=Door(room=1))
    await s.status("resident-one")
    parked = asyncio.create_task(s.status(HOSTILE))
    await s.until(lambda: s.gateway.desk.waiting_calls == 1)
    browser = await asyncio.create_subprocess_exec(
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=6000", "--dump-dom", s.url + "/ui",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await asyncio.wait_for(browser.communicate(), 90)
    page = out.decode()
    parked.cancel()
    assert "policy none" in page, errors.decode()[-2000:]
    assert "resident 1" in page and "parked 1" in page
    assert "resident-one" in page
    assert "&lt;img src=x" in page and "<img" not in page and "pwned</title>" not in page
    assert page.count("<path") == 12 and 'd="M' in page


async def test_the_command_serves_and_stops_gracefully(stand) -> None:
    s = await stand()
    port = free_port()
    command = "import typer, artifact.gateway.cli as c; typer.run(c.gateway)"
    arguments = ["--upstream", s.gateway.config.upstream, "--port", str(port), "--policy", "session-cap"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, *arguments, stderr=asyncio.subprocess.PIPE, env={**os.environ}
    )
    s.url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            assert await s.status("a") == 200
            break
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.1)
    assert (await get(s, "/sessions"))[1]["policy"] == "session-cap"
    process.terminate()
    _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode in (0, -15), log.decode()
    for line in log.decode().splitlines():
        json.loads(line)  # every line of the log is JSON, the server's own too
