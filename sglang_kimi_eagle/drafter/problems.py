"""What can be wrong with the files of a drafter: the KE1xx rules of the reader."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

NOT_FOUND = rule(
    "KE101",
    "drafter-not-found",
    Severity.ERROR,
    "There is nothing at the location given for the model: neither a folder of that name nor a "
    "snapshot of that id in the Hugging Face cache. Nothing is downloaded here.",
    example="sglang-kimi-eagle doctor ./no-such-folder",
)
CONFIG_MISSING = rule(
    "KE102",
    "config-missing",
    Severity.ERROR,
    "Without `config.json` SGLang cannot tell what kind of model the folder holds.",
    example="A folder with `model.safetensors` alone.",
)
NOT_JSON = rule(
    "KE103",
    "json-unreadable",
    Severity.ERROR,
    "A JSON file of the checkpoint cannot be read without doubt: it is not UTF-8, not JSON, holds "
    "NaN or Infinity, names a key twice (each reader takes another one), or is nested too deeply.",
    example='config.json: {"hidden_size": 7168, "hidden_size": 4096}',
)
TOO_LARGE = rule(
    "KE104",
    "file-too-large",
    Severity.ERROR,
    "A file that describes a checkpoint (config, shard index, safetensors header) is far larger "
    "than that of any drafter. It is not read.",
    example="A `config.json` of 5 MB.",
)
LEAVES_FOLDER = rule(
    "KE105",
    "path-leaves-folder",
    Severity.ERROR,
    "A file of the checkpoint is a link to somewhere else. Only the links of a Hugging Face cache "
    "(`snapshots/*/NAME -> ../../blobs/*`) are followed.",
    example="ln -s /etc/passwd drafter/config.json",
)
UNREADABLE = rule(
    "KE106",
    "file-unreadable",
    Severity.ERROR,
    "A file of the checkpoint is not an ordinary file, or the operating system will not let it be "
    "read.",
    example="chmod 000 drafter/config.json",
)
NO_WEIGHTS = rule(
    "KE107",
    "weights-missing",
    Severity.ERROR,
    "The folder has a config but no weights. SGLang fails with `Cannot find any model weights` "
    "after the target is loaded.",
    example="A folder with `config.json` alone: an interrupted download.",
)
PICKLED_WEIGHTS = rule(
    "KE108",
    "weights-pickled",
    Severity.ERROR,
    "The weights are only there as pickle files, which run code when they are opened. They are not "
    "opened here, so nothing about the drafter can be checked.",
    example="A folder with `config.json` and `pytorch_model.bin`.",
)
INDEX_SHAPE = rule(
    "KE109",
    "index-malformed",
    Severity.ERROR,
    "`model.safetensors.index.json` does not map names of tensors to names of files in this "
    "folder. SGLang loads only the files that the index names.",
    example='model.safetensors.index.json: {"metadata": {}}',
)
SHARD_MISSING = rule(
    "KE110",
    "shard-missing",
    Severity.ERROR,
    "The shard index names a file that is not in the folder. Older releases load what is there and "
    "leave the rest of the weights uninitialised; newer ones stop after the target is loaded.",
    example="`model-00002-of-00004.safetensors` was not downloaded.",
)
SHARD_UNLISTED = rule(
    "KE111",
    "shard-not-in-index",
    Severity.WARNING,
    "A safetensors file lies in the folder but the shard index does not name it. SGLang drops it "
    "without a word.",
    example="`extra.safetensors` beside an index of two other files.",
)
TRUNCATED = rule(
    "KE112",
    "shard-truncated",
    Severity.ERROR,
    "A safetensors file is shorter, or longer, than its own header says: an interrupted download "
    "or copy.",
    example="truncate -s 1M drafter/model.safetensors",
)
HEADER = rule(
    "KE113",
    "header-malformed",
    Severity.ERROR,
    "A file named `*.safetensors` does not begin with a safetensors header.",
    example="A PyTorch file that was renamed to `model.safetensors`.",
)
OFFSETS = rule(
    "KE114",
    "header-offsets",
    Severity.ERROR,
    "The header of a safetensors file contradicts itself: a tensor's bytes are not as many as its "
    "dtype and shape need, or tensors overlap or leave holes.",
    example='{"norm.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 8]}}',
)
TENSOR_TWICE = rule(
    "KE115",
    "tensor-twice",
    Severity.ERROR,
    "Two files that SGLang would both load have a tensor of the same name. The one that happens to "
    "be read last wins.",
    example="`fc.weight` in `model.safetensors` and in `model-old.safetensors`, without an index.",
)
TENSOR_MISPLACED = rule(
    "KE116",
    "tensor-not-in-shard",
    Severity.ERROR,
    "The shard index says that a tensor is in a file, and the file does not have it. Index and "
    "shards are of different saves.",
    example="The index places `lm_head.weight` in shard 2, which holds only `fc.weight`.",
)
LFS_POINTER = rule(
    "KE117",
    "lfs-pointer",
    Severity.ERROR,
    "The file is the small text that Git LFS leaves in place of the real file. The repository was "
    "cloned without its large files.",
    example="git clone without git-lfs installed",
)


class UnreadableDrafter(Exception):
    """The files cannot be read; `findings` say why and how to mend it."""

    def __init__(self, findings: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(finding.render() for finding in findings))
        self.findings = tuple(findings)
