"""KE5xx: the server's arguments against the drafter and the release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sglang_kimi_eagle.adapters import KIMI_K25
from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.values import whole
from sglang_kimi_eagle.loaders import NO_DRAFT_BACKENDS
from sglang_kimi_eagle.server_arguments import ServerArguments

ALGORITHM = rule(
    "KE501",
    "wrong-algorithm",
    Severity.ERROR,
    "An EAGLE-3 drafter is launched with `--speculative-algorithm EAGLE`. SGLang then feeds it the "
    "target's last hidden state alone, and says nothing: its acceptance length is exactly 1.0.",
    example="--speculative-algorithm EAGLE --speculative-draft-model-path kimi-k2.5-eagle3",
)
NO_DRAFT = rule(
    "KE502",
    "draft-path-missing",
    Severity.ERROR,
    "EAGLE3 without `--speculative-draft-model-path`. Kimi-K2.5 brings no drafter of its own.",
    example="--speculative-algorithm EAGLE3",
)
SAME = rule(
    "KE503",
    "draft-is-target",
    Severity.ERROR,
    "The drafter's path is that of the target: SGLang would load the target a second time as its "
    "own drafter.",
    example="--model-path K2.5 --speculative-draft-model-path K2.5",
)
BACKEND = rule(
    "KE510",
    "draft-attention-backend",
    Severity.ERROR,
    "The drafter inherits the target's attention backend, and its kind of attention does not work "
    "with it. The launch fails after the target is loaded.",
    example="--attention-backend trtllm_mla with a LlamaForCausalLMEagle3 drafter",
)
TREE = rule(
    "KE511",
    "tree-page-size",
    Severity.ERROR,
    "Drafting trees (topk > 1) over pages of several tokens works with some attention backends "
    "only.",
    example="--speculative-eagle-topk 4 --page-size 64 --attention-backend flashmla",
)
ADJUSTED = rule(
    "KE512",
    "draft-tokens-adjusted",
    Severity.WARNING,
    "With topk 1 the number of draft tokens is always num_steps + 1. SGLang sets it so, with a "
    "line in the log.",
    example="--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8",
)
INCOMPLETE = rule(
    "KE513",
    "speculation-incomplete",
    Severity.ERROR,
    "num_steps, topk and num_draft_tokens are either all given or all left to SGLang. With some of "
    "them it fails with an AssertionError or a TypeError.",
    example="--speculative-num-steps 3",
)
NOT_POSITIVE = rule(
    "KE514",
    "speculation-value",
    Severity.ERROR,
    "num_steps, topk or num_draft_tokens is no positive number.",
    example="--speculative-num-steps 0",
)
TREE_SIZE = rule(
    "KE515",
    "tree-too-small",
    Severity.ERROR,
    "The tree that is drafted has fewer nodes than `num_draft_tokens` asks for: topk + (num_steps "
    "- 1) * topk * topk of them, and the root. SGLang fails with `selected index k out of range` "
    "while it starts, or with the first request.",
    example="--speculative-num-steps 1 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
)
BACKEND_OPEN = rule(
    "KE516",
    "draft-backend-open",
    Severity.NOTE,
    "No attention backend is given. On Blackwell (SM100) SGLang then chooses `trtllm_mla` for "
    "Kimi-K2.5, which a drafter of plain attention inherits and does not work with (KE510): the "
    "launch is refused there. Elsewhere it chooses one that both can use. Said by `doctor` alone: "
    "a launch knows what was chosen.",
    example="`--speculative-algorithm EAGLE3` and a LlamaForCausalLMEagle3 drafter, no backend.",
)
PIPELINE = rule(
    "KE520",
    "pipeline-parallel",
    Severity.ERROR,
    "Under pipeline parallelism only the last rank captures states, and only of its own layers. "
    "Every release refuses the combination, some only after the target's config was fetched.",
    example="--pp-size 2 --speculative-algorithm EAGLE3",
)
TWO_BATCH = rule(
    "KE521",
    "two-batch-overlap",
    Severity.ERROR,
    "Layers that run under two-batch overlap are not captured, so the drafter gets fewer states "
    "than it expects.",
    example="--enable-two-batch-overlap --speculative-algorithm EAGLE3",
)
DP_ATTENTION = rule(
    "KE522",
    "dp-attention",
    Severity.WARNING,
    "SGLang 0.5.9 lacks sglang#21391, which Kimi-K2.5 needs to run with data-parallel attention.",
    example="--enable-dp-attention on SGLang 0.5.9",
)
HIDDEN_STATES = rule(
    "KE523",
    "hidden-states-truncated",
    Severity.WARNING,
    "`return_hidden_states` gives fewer states under speculation than tokens (sglang#26163).",
    example="--enable-return-hidden-states --speculative-algorithm EAGLE3",
)
TOKEN_MAP = rule(
    "KE524",
    "token-map-ignored",
    Severity.WARNING,
    "`--speculative-token-map` is for EAGLE-2 drafters. With EAGLE3 SGLang ignores it: the "
    "drafter's own `d2t` counts.",
    example="--speculative-token-map hot.pt --speculative-algorithm EAGLE3",
)

IMAGES = rule(
    "KE525",
    "draft-images",
    Severity.NOTE,
    "Text is served as it should be, and requests with images are not: this release's draft class "
    "does not take the target's embedding of an image, or the drafter is of another width.",
    example="A request with an image on SGLang 0.5.9.",
)

_MLA_ONLY = ("trtllm_mla", "flashmla", "cutlass_mla", "cutedsl_mla", "tokenspeed_mla")
_MHA_ONLY = ("trtllm_mha",)


def check_algorithm(context: Context) -> Iterator[Diagnostic]:
    """Check the algorithm and the path of the drafter."""
    arguments = context.arguments
    if arguments is None:
        return
    if arguments.algorithm in ("EAGLE", "NEXTN") and context.served:
        yield ALGORITHM.found(
            "An EAGLE-3 drafter is launched as EAGLE.",
            where="--speculative-algorithm",
            seen=f"{arguments.speculative_algorithm}, and {context.architecture}",
            leads_to="It is fed the last hidden state alone: acceptance length 1.0, no warning.",
            mend="Use --speculative-algorithm EAGLE3.",
        )
    if arguments.algorithm == "EAGLE3" and not arguments.draft_model_path:
        yield NO_DRAFT.found(
            "There is no drafter.",
            where="--speculative-draft-model-path",
            seen="not given",
            leads_to="SGLang fails after the target is loaded.",
            mend="Give --speculative-draft-model-path.",
        )
    if arguments.algorithm == "EAGLE3" and _same(arguments):
        yield SAME.found(
            "The drafter is the target.",
            where="--speculative-draft-model-path",
            seen=str(arguments.draft_model_path)[:300],
            leads_to="SGLang loads the target twice and fails.",
            mend="Give the path of an EAGLE-3 drafter.",
        )


def _same(arguments: ServerArguments) -> bool:
    draft, target = arguments.draft_model_path, arguments.model_path
    if not draft:
        return False
    if draft == target:
        # One repository may keep the two on different branches.
        return (arguments.draft_model_revision or "main") == (arguments.revision or "main")
    try:
        return Path(draft).resolve(strict=True) == Path(target).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return False


def check_backend(context: Context) -> Iterator[Diagnostic]:
    """Check the attention backends that the drafter gets."""
    arguments = context.arguments
    if arguments is None or not context.served or not arguments.algorithm:
        return
    wrong = _MLA_ONLY if context.is_llama else _MHA_ONLY
    own = arguments.draft_attention_backend
    given = [own] if own else _inherited(arguments)
    backend = next((name for name in given if name in NO_DRAFT_BACKENDS or name in wrong), None)
    if backend is None:
        return
    kind = "MLA" if context.is_llama else "non-MLA"
    reason = f"is for {kind} models" if backend in wrong else "cannot draft"
    yield BACKEND.found(
        f"The drafter's attention does not work with {backend}.",
        where="--speculative-draft-attention-backend",
        seen=f"{backend}, {'given' if own else 'inherited from the target'}; "
        f"{context.architecture}",
        leads_to=f"{context.running} fails after the target is loaded: {backend} {reason}.",
        mend="Set --speculative-draft-attention-backend to flashinfer, fa3 or triton.",
    )


def _inherited(arguments: ServerArguments) -> list[str | None]:
    """Return the target's backends of prefill and decode; None where SGLang is to choose."""
    return [
        arguments.prefill_attention_backend or arguments.attention_backend,
        arguments.decode_attention_backend or arguments.attention_backend,
    ]


def check_open_backend(context: Context) -> Iterator[Diagnostic]:
    """Say what SGLang may choose; for `doctor`, which does not know the GPU of the server."""
    arguments = context.arguments
    if arguments is None or arguments.algorithm != "EAGLE3" or not context.is_llama:
        return
    if context.target is not None and context.target.adapter is not KIMI_K25:
        return
    # SGLang chooses trtllm_mla only when none of the three is given.
    if arguments.draft_attention_backend or any(_inherited(arguments)):
        return
    yield BACKEND_OPEN.found(
        "SGLang chooses the attention backend, by the GPU.",
        where="--speculative-draft-attention-backend",
        seen=f"no backend given; {context.architecture}",
        leads_to="On Blackwell (SM100) it chooses trtllm_mla, and the launch is refused; elsewhere "
        "nothing.",
        mend="For Blackwell add --speculative-draft-attention-backend flashinfer.",
    )


def check_images(context: Context) -> Iterator[Diagnostic]:
    """Say which drafters cannot take the images of a request."""
    arguments, target = context.arguments, context.target
    if arguments is None or arguments.algorithm != "EAGLE3" or not context.served:
        return
    if target is None or target.adapter is not KIMI_K25:
        return
    own, width = whole(context.config, "hidden_size"), context.target_hidden_size
    if own is not None and width is not None and own != width:
        yield IMAGES.found(
            "The drafter cannot take images.",
            where=f"{context.where}, hidden_size",
            seen=f"{own}; the target embeds images at width {width}",
            leads_to="A request with an image fails on the shape, and the server with it.",
            mend="Serve text only, or a drafter of the target's width.",
        )
    elif context.loader.draft_images:
        yield IMAGES.found(
            f"{context.running} does not draft for requests with images.",
            where=context.running,
            seen=context.architecture,
            leads_to=f"With an image, {context.loader.draft_images}.",
            mend="Serve text only, or use a later SGLang.",
        )


def check_speculation(context: Context) -> Iterator[Diagnostic]:
    """Check num_steps, topk and num_draft_tokens."""
    arguments = context.arguments
    if arguments is None or arguments.algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        return
    if arguments.adaptive:
        return
    steps, topk, tokens = arguments.num_steps, arguments.eagle_topk, arguments.num_draft_tokens
    if tokens is None and topk == 1 and steps is not None:
        tokens = steps + 1  # as SGLang does, with a line in its log
    given = {
        "--speculative-num-steps": steps,
        "--speculative-eagle-topk": topk,
        "--speculative-num-draft-tokens": tokens,
    }
    missing = [flag for flag, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        yield INCOMPLETE.found(
            "Some of the three numbers of speculation are missing.",
            where=", ".join(missing),
            seen="not given, while the others are",
            leads_to="SGLang fails while it reads its arguments.",
            mend="Give all three, for example 3, 1 and 4, or none.",
        )
        return
    for flag, value in given.items():
        if value is not None and value < 1:
            yield NOT_POSITIVE.found(
                f"{flag} must be positive.",
                where=flag,
                seen=str(value),
                leads_to="SGLang fails, or drafts nothing.",
                mend="Give, for example, 3 steps, topk 1 and 4 draft tokens.",
            )
            return
    if steps is None or topk is None or tokens is None:
        return
    if topk == 1 and tokens != steps + 1:
        yield ADJUSTED.found(
            "The number of draft tokens is not num_steps + 1.",
            where="--speculative-num-draft-tokens",
            seen=f"{tokens}, with {steps} steps and topk 1",
            leads_to=f"SGLang drafts {steps + 1} tokens.",
            mend=f"Set --speculative-num-draft-tokens {steps + 1}, or another number of steps.",
        )
    nodes = topk + (steps - 1) * topk * topk
    if topk > 1 and tokens - 1 > nodes:
        yield TREE_SIZE.found(
            "The tree has fewer nodes than draft tokens are asked for.",
            where="--speculative-num-draft-tokens",
            seen=f"{tokens}, with {steps} steps and topk {topk}: {nodes} nodes and the root",
            leads_to="SGLang fails: selected index k out of range.",
            mend=f"Set --speculative-num-draft-tokens to {nodes + 1} or less, or more steps.",
        )
    page, backend = arguments.page_size, arguments.attention_backend
    usable = context.loader.tree_page_backends
    if topk > 1 and page is not None and page > 1 and backend and backend not in usable:
        yield TREE.found(
            "topk > 1 does not work with this page size and attention backend.",
            where="--speculative-eagle-topk",
            seen=f"topk {topk}, page size {page}, {backend}",
            leads_to=f"{context.running} refuses to start.",
            mend=f"Set topk 1, or page size 1, or one of {', '.join(usable)}.",
        )


def check_parallelism(context: Context) -> Iterator[Diagnostic]:
    """Check what of the launch keeps the engine from capturing states."""
    arguments = context.arguments
    if arguments is None or arguments.algorithm != "EAGLE3":
        return
    if arguments.pp_size > 1:
        yield PIPELINE.found(
            "EAGLE3 does not work with pipeline parallelism.",
            where="--pp-size",
            seen=str(arguments.pp_size),
            leads_to="SGLang refuses to start.",
            mend="Use --pp-size 1, with tensor parallelism over more GPUs.",
        )
    if arguments.enable_two_batch_overlap:
        yield TWO_BATCH.found(
            "EAGLE3 does not work with two-batch overlap.",
            where="--enable-two-batch-overlap",
            seen="given",
            leads_to="Layers that run overlapped are not captured: fc gets too few states.",
            mend="Leave --enable-two-batch-overlap out.",
        )
    is_kimi = context.target is None or context.target.adapter is KIMI_K25
    if is_kimi and arguments.enable_dp_attention and not context.loader.dp_attention:
        yield DP_ATTENTION.found(
            f"{context.running} does not run Kimi-K2.5 with data-parallel attention.",
            where="--enable-dp-attention",
            seen="given",
            leads_to="Images, and requests on idle ranks, fail or come out wrong (sglang#21391).",
            mend="Leave --enable-dp-attention out, or use SGLang 0.5.10 or later.",
        )
    if arguments.enable_return_hidden_states:
        yield HIDDEN_STATES.found(
            "Hidden states are returned incompletely under speculation.",
            where="--enable-return-hidden-states",
            seen="given",
            leads_to="A request gets fewer hidden states than tokens.",
            mend="Serve requests that need hidden states without speculation.",
        )
    if arguments.token_map:
        yield TOKEN_MAP.found(
            "The token map is ignored.",
            where="--speculative-token-map",
            seen=arguments.token_map[:200],
            leads_to="The drafter's d2t counts.",
            mend="Leave --speculative-token-map out.",
        )
