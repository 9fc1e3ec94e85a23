"""A server that answers as vLLM's does, without a model: run as a process by the tests of ``VllmEngine``.

The file ``mode`` beside its log says how to behave; what was asked is written to ``asked`` there. It starts
a helper that ignores SIGTERM and moves to a session of its own, as a worst case of a worker.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from aiohttp import web

HERE = Path.cwd()
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
METRICS = """# HELP vllm:num_requests_running Number
vllm:num_requests_running{engine="0",model_name="policy"} 2.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:num_preemptions_total{engine="0",model_name="policy"} 0.0
vllm:generation_tokens_total{engine="0",model_name="policy"} 5e+01
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="65"} 1.0
"""

version = "default"


def mode() -> str:
    return (HERE / "mode").read_text() if (HERE / "mode").exists() else ""


def note(request: web.Request, body: object) -> None:
    with (HERE / "asked").open("a") as asked:
        asked.write(json.dumps([request.path_qs, body]) + "\n")


async def generate(request: web.Request) -> web.Response:
    body = await request.json()
    note(request, body)
    match mode():
        case "error":
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        case "broken":
            return web.Response(text='{"choices": [', content_type="application/json")
        case "odd":
            return web.json_response({"choices": [{"token_ids": [1, 2], "logprobs": None}]})
        case "hang":
            await asyncio.Event().wait()
        case "die":
            os._exit(9)
    count = min(3, body["sampling_params"]["max_tokens"])
    choice = {
        "token_ids": [5, 6, 7][:count],
        "logprobs": {"content": [{"token_id": 5, "logprob": -0.5}] * count},
        "finish_reason": "abort" if mode() == "abort" else "length",
        "weight_versions": [{"version": version, "start": 0, "end": count}],
    }
    if mode() == "mixed":
        choice["weight_versions"] = [
            {"version": "1", "start": 0, "end": 1},
            {"version": "2", "start": 1, "end": 3},
        ]
    return web.json_response({"choices": [choice]})


async def set_version(request: web.Request) -> web.Response:
    global version
    body = await request.json()
    note(request, body)
    version = body["new_version"]
    return web.json_response({})


async def accept(request: web.Request) -> web.Response:
    note(request, await request.json() if request.can_read_body else None)
    return web.json_response({}, status=500 if mode() == f"refuse {request.path}" else 200)


async def weight_info(request: web.Request) -> web.Response:
    return web.json_response({} if mode() == "odd" else {"weight_version": version})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text=METRICS)


async def health(request: web.Request) -> web.Response:
    return web.Response(status=503 if mode() == "never ready" else 200)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds")
    options, _ = parser.parse_known_args()
    if mode() == "no start":
        print("ValueError: no such model")
        sys.exit(3)
    helper = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
    (HERE / "pids").write_text(f"{os.getpid()} {helper.pid}")
    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    app.router.add_post("/update_weight_version", set_version)
    for path in ("/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"):
        app.router.add_post(path, accept)
    for path in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"):
        app.router.add_post(path, accept)
    app.router.add_get("/weight_info", weight_info)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", health)
    web.run_app(app, path=options.uds, print=None)


if __name__ == "__main__":
    main()
