"""What can go wrong with a dump or be found in it, and the exception that carries it."""

from __future__ import annotations

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

UNREADABLE = rule(
    "KE811",
    "dump-unreadable",
    Severity.ERROR,
    "There is no dump at the location, or the operating system will not let it be read: it is "
    "missing, is no ordinary file, or the folder is empty.",
    example="sglang-kimi-eagle identify ./no-such-file --trace ./trace",
)
LEAVES_FOLDER = rule(
    "KE812",
    "dump-link-leaves-folder",
    Severity.ERROR,
    "A file of the dump's folder is a link to somewhere else. Only the links of a Hugging Face "
    "cache (`snapshots/*/NAME -> ../../blobs/*`) are followed.",
    example="ln -s /etc/passwd dump/data_0.ckpt",
)
PICKLE = rule(
    "KE813",
    "dump-pickle-refused",
    Severity.ERROR,
    "A file written by `torch.save` is a pickle, which can run anyone's code when it is opened. "
    "Only archives that hold nothing but tensors, numbers, texts, lists and dicts are opened, with "
    "`weights_only=True`.",
    example="torch.save({'hidden_state': numpy_array}, 'data_0.ckpt')",
)
DAMAGED = rule(
    "KE814",
    "dump-damaged",
    Severity.ERROR,
    "The file is none of the formats that are read, or was cut or damaged.",
    example="A download of `data_0.ckpt` that stopped in the middle",
)
TOO_LARGE = rule(
    "KE815",
    "dump-too-large",
    Severity.ERROR,
    "Something in the file is far larger than in any dump: what a `.gz` unpacks to, the list of an "
    "archive's entries, or its description of the tensors. It is not read.",
    example="A `data_0.ckpt.gz` of 10 MB that unpacks to 10 GB of zeros",
)
SHAPES = rule(
    "KE816",
    "dump-shapes",
    Severity.ERROR,
    "The tensors of a sample are not hidden states and tokens that belong together: no states at "
    "all, whole numbers in place of states, a rank that no known dump has, or more states than "
    "tokens.",
    example="input_ids of 64 tokens beside hidden_states of 65 rows.",
)
WIDTH = rule(
    "KE817",
    "dump-width",
    Severity.ERROR,
    "No tensor of the dump is as wide as the traced target's hidden size, or a multiple of it: it "
    "is the dump of another model.",
    example="States of width 4096 beside a trace of Kimi-K2.5, whose width is 7168.",
)
NOT_FINITE = rule(
    "KE818",
    "dump-not-finite",
    Severity.WARNING,
    "A tenth or more of the compared rows of a tensor hold NaN or infinity, or nothing but zeros. "
    "Such rows are left out here; a training would not leave them out.",
    example="A dump cast to float16, whose largest activations became infinite.",
)
TOKENS_DIFFER = rule(
    "KE819",
    "dump-tokens-differ",
    Severity.ERROR,
    "No sample of the dump begins with the tokens of a traced prompt: the trace is of other texts, "
    "or the dump was made with another tokenizer or chat template. States of different tokens "
    "cannot be compared.",
    example="A dump of chats beside a trace of the built-in calibration prompts.",
)
TOO_FEW_ROWS = rule(
    "KE820",
    "dump-too-few-rows",
    Severity.ERROR,
    "Too few rows of the dump have a row in the trace for a verdict.",
    example="A trace of eight tokens.",
)
NO_TOKENS = rule(
    "KE821",
    "dump-without-tokens",
    Severity.NOTE,
    "The dump has no token ids, so its rows were found in the trace by the states themselves. "
    "Where that was not possible, the dump may be of another text or of another model.",
    example="torch.save([h3, h31, h59, last], 'sample.pt')",
)
NOT_IDENTIFIED = rule(
    "KE822",
    "dump-state-not-identified",
    Severity.WARNING,
    "No traced state is near enough to this tensor. It is something else: a state that was not "
    "traced, a part of a layer, a rank's share of a sum, or the state of other weights.",
    example="A dump of `hidden_states` without the `residual` that SGLang keeps beside it",
)
AMBIGUOUS = rule(
    "KE823",
    "dump-state-ambiguous",
    Severity.WARNING,
    "Two states fit this tensor about as well, or a neighbour of the one that fits was not "
    "traced. Naming the nearest could be one layer off, which is the very mistake to be found.",
    example="A dump in 8-bit numbers of a target whose neighbouring states differ by 5 %.",
)
NOTHING_FITS = rule(
    "KE824",
    "dump-of-another-model",
    Severity.ERROR,
    "Nothing in the dump is near any traced state, although the tokens are the same: it was made "
    "with another model, or other weights of the same one.",
    example="A dump of Kimi-K2-Instruct beside a trace of Kimi-K2.5.",
)
NOISY = rule(
    "KE825",
    "dump-noisy",
    Severity.NOTE,
    "A state was identified, but it differs by more than rounding and other kernels explain. The "
    "dump was made with other numbers than the server's: quantised weights on one side, an 8-bit "
    "dump, or a sibling of the model. A drafter trained on it sees a little other states when "
    "it is served.",
    example="A dump of the bfloat16 model, and a trace of a server with --quantization fp8.",
)
NOT_SERVABLE = rule(
    "KE826",
    "dump-states-not-servable",
    Severity.WARNING,
    "The drafter's states are known, but SGLang cannot feed them as they are: it concatenates in "
    "ascending layer order, each state once, and captures neither the last layer's output nor what "
    "a norm makes of a state.",
    example="aux_hidden_states of h[2], h[30], h[58], h[61].",
)
PARTLY_READ = rule(
    "KE827",
    "dump-partly-read",
    Severity.WARNING,
    "Some files of the dump could not be used. The verdict is about the others.",
    example="A folder of a thousand samples, one of which was cut.",
)
SERVER = rule(
    "KE828",
    "identify-server-failed",
    Severity.ERROR,
    "The server did not answer, refused the dump's tokens, or wrote no trace of them.",
    example="--server http://127.0.0.1:30000 of a server without SGLANG_KIMI_EAGLE_TRACE",
)
WIRED_OTHERWISE = rule(
    "KE829",
    "dump-wired-otherwise",
    Severity.NOTE,
    "The traced server feeds its drafter other states than the dump holds. If that drafter was "
    "trained on this dump, it drafts from states that it never saw.",
    example="A dump of h[3], h[31], h[59], and a server that captures h[2], h[30], h[58].",
)


class DumpRefused(Exception):
    """A dump, or a file of it, that cannot be used; ``findings`` say why."""

    def __init__(self, *findings: Diagnostic) -> None:
        super().__init__(findings[0].message)
        self.findings = findings
