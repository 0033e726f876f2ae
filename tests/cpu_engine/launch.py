"""The command line and environment variables that make a release serve on CPU."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_engine.environments import Environment
from cpu_engine.releases import since

KERNELS = Path(__file__).resolve().parent / "kernels"

# The CPU engine speculates by itself from this release on, with the kernels of AMX.
_CPU_SPECULATION = "0.5.16"


def launch_command(
    environment: Environment,
    target: Path,
    draft: Path | None = None,
    *,
    port: int,
    tp_size: int = 1,
    args: Sequence[str] = (),
) -> list[str]:
    """The whole command; ``args`` come last and so override what is set here."""
    return [
        str(environment.python),
        "-m",
        "sglang.launch_server",
        *launch_args(environment.release, target, draft, port=port, tp_size=tp_size),
        *args,
    ]


def launch_args(
    release: str, target: Path, draft: Path | None = None, *, port: int, tp_size: int = 1
) -> list[str]:
    """Arguments of ``sglang.launch_server``: a chain of three drafts where ``draft`` is given."""
    words = f"""
        --model-path {target} --host 127.0.0.1 --port {port}
        --device cpu --tp-size {tp_size}
        --trust-remote-code --dtype float32 --skip-server-warmup --grammar-backend none
        --max-total-tokens 16384 --max-running-requests 8 --chunked-prefill-size 2048
    """
    if since(release, _CPU_SPECULATION):
        # Named by phase they outlive the fallback to torch_native, which cannot speculate.
        words += " --prefill-attention-backend intel_amx --decode-attention-backend intel_amx"
    else:
        words += " --attention-backend triton --disable-cuda-graph --disable-overlap-schedule"
    if draft is not None:
        words += f"""
            --speculative-algorithm EAGLE3 --speculative-draft-model-path {draft}
            --speculative-num-steps 3 --speculative-eagle-topk 1
            --speculative-num-draft-tokens 4
        """
    return words.split()


def launch_environ(
    environment: Environment, environ: Mapping[str, str] = {}, *, tp_size: int = 1
) -> dict[str, str]:
    """Variables for the server process: this process's own and the engine's, then ``environ``.

    A PYTHONPATH in ``environ`` goes behind the engine's folder.
    """
    engine = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(KERNELS),
        # A core for each rank; without AMX nothing is bound, but the count must be right.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(tp_size)),
        # Ranks talk through gloo: a library that is not there keeps PyNccl out of it.
        "SGLANG_NCCL_SO_PATH": "none",
        # Compiling for every new shape takes seconds each; a tiny model has no use for it.
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(environment.root / "huggingface"),
    }
    if not since(environment.release, _CPU_SPECULATION):
        engine["TRITON_INTERPRET"] = "1"
    # Without cached bytecode every start compiles SGLang, torch and transformers anew.
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    merged = {**own, **engine, **environ}
    if "PYTHONPATH" in environ:
        merged["PYTHONPATH"] = f"{KERNELS}{os.pathsep}{environ['PYTHONPATH']}"
    return merged
