"""Whose call is it: conventions and their order, ids that cannot be trusted, lineage without ids."""

import asyncio

import pytest
from fake_upstream import respond

from artifact.gateway.identity import CONVENTIONS, DEFAULT_ORDER, Identifier, clean_id
from artifact.gateway.lineage import ChurnDetector, Lineage, message_hashes

UUID = "0b5c9f2e-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-basin-session-id": "s"}, {}, ("s", "basin")),
        ({"x-dynamo-session-id": "s"}, {}, ("s", "dynamo")),
        ({"x-claude-code-session-id": "s"}, {}, ("s", "claude-code")),
        ({"x-litellm-session-id": "s"}, {}, ("s", "litellm-header")),
        ({"agent-session-id": "s"}, {}, ("s", "envoy")),
        ({"x-session-affinity": "s"}, {}, ("s", "affinity")),
        ({"x-session-id": " s "}, {}, ("s", "x-session-id")),
        ({"session-id": "s"}, {}, ("s", "session-id")),
        ({"session_id": "s"}, {}, ("s", "session_id-header")),
        ({"x-smg-routing-key": "s"}, {}, ("s", "smg-routing-key")),
        ({"x-correlation-id": "s"}, {}, ("s", "aiperf")),
        ({}, {"program_id": "s"}, ("s", "program_id")),
        ({}, {"session_id": "s"}, ("s", "session_id")),
        ({}, {"session_params": {"id": "s"}}, ("s", "session_params")),
        ({}, {"routing_key": "s"}, ("s", "routing_key")),
        ({}, {"job_id": 7}, ("7", "job_id")),
        ({}, {"litellm_session_id": "s"}, ("s", "litellm")),
        ({}, {"prompt_cache_key": "s"}, ("s", "prompt_cache_key")),
        ({}, {"rid": "agent7_t3_r1"}, ("agent7", "rid")),
        ({}, {"rid": "agent_7_t12"}, ("agent_7", "rid")),
        ({}, {"rid": "agent7_r2"}, ("agent7", "rid")),
        ({}, {"metadata": {"user_id": f"user_ab_account__session_{UUID}"}}, (UUID, "claude-metadata")),
        ({}, {"metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'}}, ("s", "claude-metadata")),
    ],
)
def test_every_convention_in_the_wild_names_the_session(headers, body, expected) -> None:
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    found = Identifier().identify(raw, body)
    assert (found.id, found.source) == expected


def test_the_documented_order_decides_and_can_be_changed() -> None:
    raw = {b"x-session-id": b"x", b"x-dynamo-session-id": b"d", b"x-dynamo-parent-session-id": b"p"}
    assert Identifier().identify(raw, {"program_id": "b"}).id == "d"
    assert Identifier(("program_id", "dynamo")).identify(raw, {"program_id": "b"}).id == "b"
    assert Identifier().identify(raw, {}).parent == "p"
    with pytest.raises(ValueError, match=r"unknown convention 'nope'.*x-session-id"):
        Identifier(("nope",))


def test_a_person_is_not_a_session_unless_configured() -> None:
    body = {"user": "u", "metadata": {"user_id": "plain"}}
    assert Identifier().identify({}, body).source == "none"
    assert set(CONVENTIONS) - set(DEFAULT_ORDER) == {"user", "metadata.user_id"}
    assert Identifier(("user",)).identify({}, body).id == "u"


@pytest.mark.parametrize(
    "body", [{"rid": "plain"}, {"rid": 3}, {"session_id": None}, {"session_id": {}}, {"job_id": True}]
)
def test_values_that_name_no_session_are_passed_over(body) -> None:
    first, second = Identifier(), Identifier()
    assert first.identify({}, body).source == "none"
    named = second.identify({}, body), second.identify({}, body)
    assert named[0].id != named[1].id


def test_hostile_ids_become_short_and_printable() -> None:
    for raw in ("a" * 300, "a\x00b", "line\nbreak", "\ud800"):
        cleaned = clean_id(raw)
        assert cleaned.startswith("sha256-") and len(cleaned) < 80
    assert clean_id("<script>") == "<script>"  # printable: escaped where it is shown
    assert clean_id("a" * 300) != clean_id("a" * 301)


def chat(*turns: str) -> dict:
    """A conversation under one system prompt; user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return {"messages": [{"role": "system", "content": "shared by all agents"}, *messages]}


def lineage_of(*calls: dict) -> list[str]:
    """Session of each call, as the proxy names them: found, or new."""
    lineage, named = Lineage(), []
    for number, body in enumerate(calls):
        hashes = message_hashes(body)
        found = lineage.find(hashes) or f"new-{number}"
        lineage.learn(hashes, found)
        named.append(found)
    return named


def test_lineage_follows_a_growing_conversation() -> None:
    assert lineage_of(chat("t"), chat("t", "a", "b"), chat("t", "a", "b", "c", "d")) == ["new-0"] * 3


def test_lineage_keeps_apart_agents_that_share_a_system_prompt_and_an_opening() -> None:
    calls = chat("same"), chat("same"), chat("same", "x1", "y1"), chat("same", "x1", "y1", "x2", "y2")
    named = lineage_of(*calls)
    assert named[0] != named[1]
    assert named[3] == named[2]


def test_lineage_survives_a_compaction_that_keeps_recent_messages() -> None:
    before = chat("t", "a", "b", "c", "d")
    after = {"messages": [{"role": "user", "content": "summary"}, *before["messages"][-2:]]}
    assert lineage_of(before, after) == ["new-0", "new-0"]


def test_lineage_reads_responses_and_anthropic_forms_and_is_bounded() -> None:
    blocks = [{"type": "text", "text": "t"}]
    anthropic = {
        "system": "s",
        "messages": [{"role": "user", "content": blocks}, {"role": "assistant", "content": "a"}],
    }
    responses = {"input": [{"role": "user", "content": "q"}, {"type": "function_call_output", "output": "r"}]}
    assert lineage_of(anthropic, anthropic, responses, responses) == ["new-0", "new-0", "new-2", "new-2"]
    lineage = Lineage(capacity=10)
    for i in range(100):
        lineage.learn(message_hashes(chat(str(i))), str(i))
    assert len(lineage._owner) == 10


def test_churn_is_noticed_only_where_one_conversation_changes_its_id() -> None:
    detector = ChurnDetector(window=4)
    conversation = ["task"]
    verdicts = []
    for i in range(8):
        verdicts.append(detector.first_call("x-session-id", f"id-{i}", chat(*conversation)))
        conversation += [f"answer {i}", f"result {i}"]
    assert verdicts[0] is False and verdicts[-1] is True
    steady = ChurnDetector(window=4)
    assert not any(steady.first_call("x-session-id", f"id-{i}", chat(f"t{i}", "a", "b")) for i in range(50))


async def test_a_header_that_changes_with_every_request_leaves_no_sessions_behind(stand) -> None:
    async def answer(request, send):
        await respond(send, b'{"usage": {"prompt_tokens": 10, "completion_tokens": 1}}')

    s = await stand(answer)
    conversation = ["task"]
    for i in range(30):
        body = chat(*conversation)
        async with s.client.post(s.url + "/v1/chat/completions", json=body, headers={"x-session-id": f"r{i}"}):
            pass
        conversation += [f"answer {i}", f"result {i}"]
    await s.until(lambda: "x-session-id" in s.gateway.proxy.identifier.distrusted)
    assert len(s.gateway.desk.table) <= 18  # those before it was noticed; they expire
    assert s.door.facts[-1][0] == "depart"  # since then every call is a session of its own


async def test_anonymous_agents_follow_their_lineage_when_asked_to(stand) -> None:
    s = await stand(lineage=True)

    async def agent(name: str) -> None:
        conversation = [f"task of {name}"]
        for i in range(4):
            async with s.client.post(s.url + "/v1/chat/completions", json=chat(*conversation)):
                pass
            conversation += [f"{name} answers {i}", f"{name} reads {i}"]

    await asyncio.gather(*(agent(name) for name in "abc"))
    arrived = [session for fact, session in s.door.facts if fact == "arrive"]
    assert len(arrived) == 3
    assert len(s.gateway.desk.table) == 3


async def test_ids_of_a_million_clients_cost_bounded_memory(stand) -> None:
    s = await stand(limits={"sessions": 50})
    for i in range(200):
        assert await s.status(f"invented-{i}") == 200
    assert len(s.gateway.desk.table) == 50
    text = s.gateway.metrics.page().decode()
    assert "invented" not in text
