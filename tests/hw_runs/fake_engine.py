"""A stand-in for vLLM's server in tests of everything around it: its flags, its pages, its streams; no model.

Started as the real one is, by `hw_runs.commands`. A token is a character; a prompt finds in the cache what it has in
common with the longest of the latest prompts.
"""

import argparse
import asyncio
import json
import sys

from aiohttp import web

from hw_runs.stub_engine import common_prefix


class FakeEngine:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.prompts: list[str] = []
        self.queries = self.hits = self.running = self.resets = 0

    async def metrics(self, request: web.Request) -> web.Response:
        blocks, size = self.args.num_gpu_blocks_override, self.args.block_size
        labels = f'block_size="{size}",enable_prefix_caching="True",num_gpu_blocks="{blocks}"'
        labels += f',num_gpu_blocks_override="{blocks}"'
        values = {
            f"vllm:cache_config_info{{{labels}}}": 1,
            "vllm:num_requests_running{}": self.running,
            "vllm:num_requests_waiting{}": 0,
            "vllm:kv_cache_usage_perc{}": 0.1 * self.running,
            "vllm:prefix_cache_queries_total{}": self.queries,
            "vllm:prefix_cache_hits_total{}": self.hits,
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in values.items()))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = "".join(message["content"] for message in body["messages"])
        if self.args.die_streaming and body.get("stream"):
            sys.exit(3)
        cached = max((common_prefix(prompt, known) for known in self.prompts), default=0)
        self.prompts = [*self.prompts[-50:], prompt]
        self.queries, self.hits = self.queries + len(prompt), self.hits + cached
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if not body.get("stream"):
            return web.json_response({"choices": [], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        await asyncio.sleep(self.args.answer_s + 1e-5 * (len(prompt) - cached))
        self.running -= 1
        for event in ({"choices": [{"delta": {"content": "x"}}]}, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def reset(self, request: web.Request) -> web.Response:
        self.prompts = []
        self.resets += 1
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("model", str), ("served-model-name", str), ("host", str), ("port", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=100)
    parser.add_argument("--enable-prefix-caching", action="store_true")
    parser.add_argument("--die-streaming", action="store_true")
    parser.add_argument("--answer-s", type=float, default=0.002)
    parser.add_argument("--never-ready", action="store_true")
    args = parser.parse_args()
    if args.never_ready:
        sys.exit("the model is too large for this machine")
    engine, app = FakeEngine(args), web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.get("/metrics", engine.metrics),
            web.get("/health", engine.health),
            web.post("/v1/chat/completions", engine.chat),
            web.post("/reset_prefix_cache", engine.reset),
        ]
    )
    web.run_app(app, host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
