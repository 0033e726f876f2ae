"""``make demo``: a tiny Kimi-K2.5 on stock SGLang, with the plugin and without, on CPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from cpu_engine.environments import Environment, ensure
from cpu_engine.server import Completion, Server, ServerFailed
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET
from tiny_models.prompt_file import Prompt, load_prompts

NEWEST, OLDEST = "0.5.23", "0.5.9"
TOKENS = 64
console = Console(highlight=False)

HOW_TRAINED = """\
How to read the table. The tiny target has 8 layers and was trained so that wiring shows: beside
next-token prediction, its loss pushes the residual streams of neighbouring layers apart. In a
plainly trained model of this size they are nearly alike, and the wrong states would cost little.
The table shows [b]that[/b] the wiring is decided, not [b]how much[/b] it costs on a real model.
Known of real ones: one layer off costs about 0.10 of acceptance length on one Kimi-K2.5 drafter
and most of it on another (sglang#25454); the embedding in place of h[3] left 19 % of tokens
accepted and 54 tok/s, against 88 tok/s without speculation. Tokens per second are those of a CPU
with stand-in kernels: only their order means something."""


@dataclass(frozen=True)
class Run:
    """One line of the table."""

    name: str
    states: str
    completions: list[Completion]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, all prompts together."""
        return sum(len(done.output_ids) for done in self.completions) / self.seconds

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify step over all prompts, bonus token included."""
        verified = sum(done.meta.get("spec_verify_ct") or 0 for done in self.completions)
        tokens = sum(done.meta["completion_tokens"] for done in self.completions)
        return tokens / verified if verified else None


def measure(server: Server, name: str, states: str, prompts: Sequence[Prompt]) -> Run:
    """Complete all prompts greedily, twice, and time the second time."""
    ids = [prompt.ids for prompt in prompts]
    server.generate(ids, TOKENS)
    begin = time.perf_counter()
    completions = server.generate(ids, TOKENS)
    return Run(name, states, completions, time.perf_counter() - begin)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show that something is going on, and how long it took."""
    begin = time.monotonic()
    with console.status(text) if console.is_terminal else _line(f"{text} ..."):
        yield
    console.print(f"  [green]done[/] {text} [dim]({time.monotonic() - begin:.0f} s)[/]")


@contextmanager
def _line(text: str) -> Iterator[None]:
    console.print(f"  {text}")
    yield


@contextmanager
def served(
    environment: Environment,
    folder: Path,
    draft: Path | None,
    what: str,
    environ: Mapping[str, str] = {},
) -> Iterator[Server]:
    """Start ``python -m sglang.launch_server`` and show how far it is."""
    log = folder / f"{environment.root.name}-{len(list(folder.glob('*.log')))}.log"
    server = Server(environment, CHECKPOINTS / TARGET, draft, log=log, environ=environ)
    with waiting(f"SGLang {environment.release} starts: {what}"):
        server.start()
    try:
        for line in server.log_text.splitlines():
            if "sglang-kimi-eagle" in line and "captures" in line:
                console.print(
                    f"  [cyan]{line[line.index('sglang-kimi-eagle') :]}[/]", soft_wrap=True
                )
        yield server
    finally:
        server.stop()


def talk(server: Server, prompts: Sequence[Prompt]) -> None:
    """Chat through the official client: once, streaming, and two requests at once."""
    client = OpenAI(base_url=f"{server.base_url}/v1", api_key="none")

    def ask(prompt: Prompt, *, stream: bool = False) -> str:
        answer = client.chat.completions.create(
            model=TARGET,
            messages=prompt.messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=TOKENS,
            stream=stream,
        )
        if not stream:
            return str(answer.choices[0].message.content)
        parts = []
        console.print("  streaming: ", end="")
        for chunk in answer:
            part = chunk.choices[0].delta.content or "" if chunk.choices else ""
            console.print(part, end="", markup=False)
            parts.append(part)
        console.print()
        return "".join(parts)

    chats = [prompt for prompt in prompts if prompt.messages]
    console.print(f"  [b]user[/]       {chats[0].messages[-1]['content']}")
    first = ask(chats[0])
    console.print(f"  [b]assistant[/]  {first}", markup=True)
    if ask(chats[0], stream=True) != first:
        raise SystemExit("streaming gave another answer than the same request without it")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(ask, chats[:2]))
    if both != [first, ask(chats[1])]:
        raise SystemExit("two requests at once gave other answers than one after the other")
    console.print("  two requests at once: the same answers as one after the other")


def main() -> None:
    """Run the demonstration; exit with 1 when something is not as it should be."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prompts = load_prompts(CHECKPOINTS)
        console.rule("Environments (built on first use)")
        newest = ensure(NEWEST, plugin=True, progress=console.print)
        oldest = ensure(OLDEST, plugin=True, progress=console.print)
        oldest_stock = ensure(OLDEST, plugin=False, progress=console.print)
        drafter = CHECKPOINTS / LLAMA.folder
        pinned = folder / "pinned"
        command = [sys.executable, "-m", "sglang_kimi_eagle", "pin", str(drafter)]
        command += ["--states", ",".join(map(str, LLAMA.trained_on)), "--output", str(pinned)]
        command += ["--target", str(CHECKPOINTS / TARGET)]

        console.rule(f"SGLang {NEWEST}, the plugin found by SGLang itself")
        with served(newest, folder, None, "no speculation") as server:
            plain = measure(server, "no speculation", "-", prompts)
        with served(newest, folder, drafter, "drafter as published, nothing declared") as server:
            wrong = measure(server, "as stock reads its ids", "h[2], h[4], h[6]", prompts)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        console.print(f"  $ sglang-kimi-eagle {' '.join(command[3:])}", soft_wrap=True)
        with served(newest, folder, pinned, "drafter pinned to its states") as server:
            right = measure(server, "the states it was trained on", "h[3], h[5], h[7]", prompts)
            talk(server, prompts)
        runs = [plain, wrong, right]

        console.rule(f"SGLang {OLDEST}, without the plugin and with it")
        log = folder / "stock.log"
        try:
            with (
                waiting(f"stock SGLang {OLDEST} starts, and fails after loading all weights"),
                Server(oldest_stock, CHECKPOINTS / TARGET, drafter, log=log),
            ):
                raise SystemExit("stock SGLang 0.5.9 was expected to fail")
        except ServerFailed as error:
            (reason,) = {line for line in error.log.splitlines() if "AttributeError:" in line}
            console.print(f"  [red]{reason}[/]", soft_wrap=True)
        with served(oldest, folder, drafter, "the same command, with the plugin") as server:
            runs.append(measure(server, f"SGLang {OLDEST} + plugin", "h[3], h[5], h[7]", prompts))
    ok = show(runs)
    console.print(HOW_TRAINED.replace("\n", " "))
    sys.exit(0 if ok else 1)


def show(runs: Sequence[Run]) -> bool:
    """Print the table; tell whether tokens are equal and the right wiring is the better one."""
    plain, wrong, right, old = runs
    table = Table(title=f"{len(plain.completions)} prompts, {TOKENS} tokens each, 3 draft steps")
    for column in ("run", "states captured", "greedy tokens", "acceptance length", "tok/s"):
        table.add_column(column)
    expected = [done.output_ids for done in plain.completions]
    equal = [[done.output_ids for done in run.completions] == expected for run in runs]
    for run, same in zip(runs, equal, strict=True):
        length = run.acceptance_length
        table.add_row(
            run.name,
            run.states,
            "equal" if same else "[red]differ[/]",
            "-" if length is None else f"{length:.2f}",
            f"{run.tokens_per_second:.0f}",
        )
    console.print(table)
    lengths = [run.acceptance_length or 0.0 for run in (wrong, right, old)]
    return all(equal) and lengths[1] > lengths[0] and lengths[2] > lengths[0]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("Interrupted; the server, if one was started, has ended.")
        sys.exit(130)
