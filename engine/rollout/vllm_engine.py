"""vLLM's own API server as a rollout engine: a guarded process, asked over a unix socket.

Token ids in and out, so no tokenizer is loaded and no text is ever encoded again. What is decided here and
why:

* ``--generation-config vllm`` and ``ignore_eos``: nothing in the model's folder (top-k, top-p, other end
  tokens) may change what is sampled; the stop tokens of the request alone end a turn.
* ``--seed`` differs between engines and between starts of one engine. With vLLM's default of 0 two engines
  would draw the same random numbers, and a restarted one its first ones again. Requests carry no seed: on
  CPU that kills vLLM.
* TORCHDYNAMO_DISABLE on CPU: vLLM compiles its log-probability ranking even with ``--enforce-eager``, which
  makes the first request take 15 s (measured: 0.5 s without, at the same throughput later).
* New weights: pause (running turns end first), mark the version as unfinished, update from a folder or a
  process group, set the version, reset the prefix cache, resume. Whatever fails in between leaves the mark,
  and with it an engine whose answers are refused; a failed update also may kill vLLM's worker. The pool
  restarts such an engine.
* Nothing is put to sleep to make room for a trainer (platform F091, F093): engines and learner have memory of
  their own.
* An id outside the vocabulary kills a server without tokenizer: prompts are rendered here, ids never come from
  outside.
* PYTHONPATH: workers import ``engine.weights.vllm_transfer`` by its name, from wherever this engine was.

Leaves out restarting (``pool.py``) and tensor parallelism over devices.
"""

import asyncio
import hashlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import engine
from engine.learner.base import TransferGroup, WeightSpec
from engine.rollout.answers import from_json, log_probabilities, prometheus, token_ids, version_number
from engine.rollout.base import (
    EngineCapacity,
    EngineUnavailable,
    FinishReason,
    GenerateRequest,
    Generation,
    WeightReceiver,
    check_fits,
)
from engine.rollout.guarded import GuardedProcess
from engine.rollout.server_client import QUICK_S, ServerClient

SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket on Linux."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}

IMPORTABLE = Path(engine.__file__).parents[1]
"""The folder that holds our packages."""

UNFINISHED = "unfinished"
"""The weight version that a server reports in an update, and after one that broke off."""

_LONGEST_NAME_IN_FOLDER = 48  # vLLM's own sockets there are named by a UUID
_METRICS = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_usage": "kv_cache_usage_perc",
    "preemptions": "num_preemptions_total",
    "generated_tokens": "generation_tokens_total",
    "prefix_queries": "prefix_cache_queries_total",
    "prefix_hits": "prefix_cache_hits_total",
}


class VllmEngine:
    """One vLLM server. ``runtime_folder`` gets its log; its sockets lie in a private folder.

    It is its own ``WeightReceiver``.
    """

    takes_weights = True
    tells_logprobs = True
    ranks = 1

    def __init__(
        self,
        name: str,
        *,
        model_folder: Path,
        runtime_folder: Path,
        kv_cache_mb: int,
        max_model_tokens: int,
        max_running: int = 256,
        start_timeout_s: float = 300.0,
        request_timeout_s: float = 600.0,
        dtype: Literal["float32", "bfloat16"] = "float32",
        seed: int = 0,
    ) -> None:
        self.name = name
        self.log_file = runtime_folder.absolute() / f"{name}.log"
        self._model_folder = model_folder.absolute()
        self._kv_cache_mb = kv_cache_mb
        self._max_model_tokens = max_model_tokens
        self._max_running = max_running
        self._start_timeout_s = start_timeout_s
        self._dtype = dtype
        self._seed = seed
        self._starts = 0
        self._group: TransferGroup | None = None
        self._private = private_folder(f"{self.log_file}")
        self._socket = self._private / "api.sock"
        self._process: GuardedProcess | None = None
        self._client = ServerClient(
            name,
            "http://engine",
            socket=str(self._socket),
            request_timeout_s=request_timeout_s,
            where=f" (log: {self.log_file})",
        )

    def command(self) -> list[str]:
        """The server's command line for the present start."""
        seed = random.Random(f"{self._seed}:{self.name}:{self._starts}").getrandbits(31)
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self._model_folder), "--served-model-name", "policy", "--skip-tokenizer-init"),
            *("--dtype", self._dtype, "--enforce-eager", "--generation-config", "vllm", "--seed", str(seed)),
            *("--max-model-len", str(self._max_model_tokens), "--max-num-seqs", str(self._max_running)),
            *("--kv-cache-memory-bytes", str(self._kv_cache_mb << 20)),
            *("--logprobs-mode", "processed_logprobs", "--uds", str(self._socket), "--enable-scale-out"),
            *("--worker-extension-cls", "engine.weights.vllm_transfer.WorkerExtension"),
            *("--weight-transfer-config", '{"backend": "starloom"}'),
        ]

    def _environment(self) -> dict[str, str]:
        private = str(self._private)
        path = os.pathsep.join(filter(None, [str(IMPORTABLE), os.environ.get("PYTHONPATH")]))
        return {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "TMPDIR": private, "VLLM_RPC_BASE_PATH": private}

    async def start(self) -> None:
        """Be healthy and warm, serving the model folder's weights as version 0."""
        await self.close()
        self._starts += 1
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        make_private(self._private)
        self._process = GuardedProcess(
            self.command(),
            environment=self._environment(),
            log_file=self.log_file,
            scratch=self._private,
        )
        await self._process.start()
        self._client.open()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._client.until_healthy("/health", pause=self._pause)
                await self._set_version("0")
                await self.generate(GenerateRequest([0], max_tokens=1, temperature=0, stop_token_ids=()))
        except TimeoutError:
            words = f"not ready after {self._start_timeout_s:g} s: {self._process.last_words()}"
            await self.close()
            raise EngineUnavailable(f"engine {self.name}: {words}") from None
        except BaseException:
            await self.close()
            raise

    async def _pause(self, seconds: float) -> None:
        """Wait for a server that is starting. Raises when it has ended."""
        if self._process is None or await self._process.ended_within(seconds):
            words = self._process.last_words() if self._process else "closed meanwhile"
            raise EngineUnavailable(f"engine {self.name} died at its start: {words}")

    async def close(self) -> None:
        """End the server and everything that it started. May be called twice."""
        self._group = None
        process, self._process = self._process, None
        await self._client.close()
        if process:
            await process.close()

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn. Cancelling it ends it in the server too. ``ValueError`` if it overruns the context."""
        check_fits(request, self._max_model_tokens)
        body = {
            "token_ids": list(request.prompt_ids),
            "sampling_params": {
                "temperature": request.temperature,
                "max_tokens": request.max_tokens,
                "logprobs": 0,
                "stop_token_ids": list(request.stop_token_ids),
                "ignore_eos": True,
                "detokenize": False,
            },
        }
        return await self._client.turn("/inference/v1/generate", body, read_generation)

    async def load_weights(self, folder: Path, version: int) -> None:
        """Running turns end with the old weights; requests that come meanwhile wait and get the new ones."""
        await self._hold()
        await self._client.ask("POST", "/collective_rpc", json=_reload(folder))
        await self._serve(version)

    async def weight_version(self) -> int | None:
        return await self._client.read("GET", "/weight_info", read_version, timeout_s=QUICK_S)

    # --- weights from a process group ---

    def receiver(self) -> WeightReceiver:
        return self

    @property
    def group(self) -> TransferGroup | None:
        return self._group

    async def join(self, group: TransferGroup, first_rank: int) -> None:
        """In place of a group that it joined before."""
        self._group = None
        await self._client.ask(
            "POST", "/init_weight_transfer_engine", json={"init_info": {**asdict(group), "first_rank": first_rank}}
        )
        self._group = group

    async def begin_update(self) -> None:
        """After it the workers hold no complete weights until ``finish_update``."""
        await self._hold()
        await self._client.ask("POST", "/start_weight_update")

    async def receive(self, specs: Sequence[WeightSpec]) -> None:
        update = {
            "names": [spec.name for spec in specs],
            "dtypes": [spec.dtype for spec in specs],
            "shapes": [list(spec.shape) for spec in specs],
        }
        await self._client.ask("POST", "/update_weights", json={"update_info": update})

    async def finish_update(self, version: int) -> None:
        await self._client.ask("POST", "/finish_weight_update")
        await self._serve(version)

    async def _hold(self) -> None:
        """Let running turns end, hold later ones back, and say that what is here is no version."""
        await self._client.ask("POST", "/pause?mode=wait")
        await self._set_version(UNFINISHED)

    async def _serve(self, version: int) -> None:
        """Let the requests that wait go on, with nothing left of the weights before."""
        await self._set_version(str(version))
        await self._client.ask("POST", "/reset_prefix_cache")
        await self._client.ask("POST", "/resume")

    async def capacity(self) -> EngineCapacity:
        blocks, tokens = await self._client.read("GET", "/metrics", read_cache, timeout_s=QUICK_S)
        return EngineCapacity(blocks, tokens, self._max_model_tokens)

    async def metrics(self) -> dict[str, float]:
        return await self._client.read("GET", "/metrics", read_metrics, timeout_s=QUICK_S)

    async def _set_version(self, version: str) -> None:
        await self._client.ask("POST", "/update_weight_version", json={"new_version": version})


def _reload(folder: Path) -> dict[str, Any]:
    """The call in every worker; the server's own working directory is another one than ours."""
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}


def read_generation(text: str) -> Generation:
    """The one choice of an answer of ``/inference/v1/generate``."""
    choice = from_json(text)["choices"][0]
    ids = token_ids(choice["token_ids"] or [])
    content = (choice["logprobs"] or {}).get("content") or []
    logprobs = log_probabilities([entry["logprob"] for entry in content], ids)
    return Generation(ids, logprobs, FinishReason(choice["finish_reason"]), _one_version(choice, ids))


def _one_version(choice: Any, ids: Sequence[int]) -> int:
    versions = {version_number(span["version"]) for span in choice["weight_versions"] or ()}
    if len(versions) > 1 or (ids and not versions):
        raise ValueError(f"sampled with weight versions {sorted(versions)}, expected one")
    return versions.pop() if versions else 0


def read_version(text: str) -> int | None:
    """The version of ``/weight_info``; None if it is no number, as in an update."""
    label = str(from_json(text)["weight_version"])
    return int(label) if label.isdecimal() else None


def read_cache(text: str) -> tuple[int, int]:
    """Of ``/metrics``: blocks of the KV cache and tokens in a block."""
    _, labels = prometheus(text, "vllm")
    config = labels["cache_config_info"]
    return int(config["num_gpu_blocks"]), int(config["block_size"])


def read_metrics(text: str) -> dict[str, float]:
    """Of ``/metrics``, by our names."""
    values, _ = prometheus(text, "vllm")
    return {name: values[theirs] for name, theirs in _METRICS.items() if theirs in values}


def private_folder(owner: str) -> Path:
    """A short folder for the sockets of ``owner``: in the user's runtime folder, else under /tmp."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (runtime, tempfile.gettempdir(), "/tmp"):
        folder = Path(parent) / f"starloom-{os.getuid()}-{digest}"
        short = len(os.fsencode(folder)) + _LONGEST_NAME_IN_FOLDER <= SOCKET_PATH_BYTES
        if short and Path(parent).is_absolute() and os.access(parent, os.W_OK):
            return folder
    raise EngineUnavailable("no writable folder has a path short enough for sockets: set XDG_RUNTIME_DIR")


def make_private(folder: Path) -> None:
    """An empty folder that is ours alone: what an earlier, killed engine left there goes."""
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
        raise EngineUnavailable(f"{folder} belongs to somebody else; remove it or set XDG_RUNTIME_DIR")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
