"""OpenCUA's tokenizer as a fast one of transformers: from the checkpoint's data; its Python code is read, never run.

The checkpoint has ranked byte pairs (``tiktoken.model``), special tokens and the chat template
(``tokenizer_config.json``), and a Python class whose attribute ``pat_str`` is the pattern that splits a text before
pairs are joined. That class is parsed, and the attribute must be a constant.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils.hub import cached_file

RANKS, CONFIG = "tiktoken.model", "tokenizer_config.json"
_PATTERN = "pat_str"


def has_ranks(source: str) -> bool:
    """Whether a checkpoint, a folder or hub name, has ranked byte pairs and no ``tokenizer.json``."""
    return _find(source, "tokenizer.json") is None and _find(source, RANKS) is not None


def load_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint, a folder or hub name.

    Ids that no special token has, between the last pair and the last special token, are special tokens of the names
    ``<|reserved_token_ID|>``.

    Raises:
        ValueError: a file is missing or is not as described in this module. OSError: a file cannot be read.
    """
    config = json.loads(_required(source, CONFIG).read_text(encoding="utf-8"))
    pairs = read_ranks(_required(source, RANKS))
    module, name = _class_of(source, config)
    pattern = split_pattern(_required(source, f"{module}.py").read_text(encoding="utf-8"), name)
    tokenizer = byte_pair_tokenizer(pairs, pattern)
    special = {int(i): str(token["content"]) for i, token in config.get("added_tokens_decoder", {}).items()}
    if not special or min(special) < len(pairs):
        raise ValueError(
            f"{source}: {CONFIG} has special tokens with the ids {sorted(special)[:3]}, {RANKS} has {len(pairs)} "
            "tokens; expected added_tokens_decoder with ids after those"
        )
    ids = range(len(pairs), max(special) + 1)
    names = [special.get(i, f"<|reserved_token_{i}|>") for i in ids]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in names])
    named = {key: _name(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=config.get("chat_template"),
        clean_up_tokenization_spaces=False,
        **{key: token for key, token in named.items() if token in names},
    )


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token → rank, from lines of a token in base64 and its rank. The ranks are 0, 1, 2, …, and are the token ids.

    Raises:
        ValueError: another format, or tokens without one of the 256 bytes.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{path}, line {number}: expected a token in base64 and its rank") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise ValueError(f"{path}: expected tokens of the ranks 0, 1, 2, … with all 256 bytes, got {len(ranks)} tokens")
    return ranks


def byte_pair_tokenizer(ranks: Mapping[bytes, int], pattern: str) -> Tokenizer:
    """A tokenizer that splits a text by ``pattern`` and joins pairs of tokens, that of the lowest rank first.

    Args:
        ranks: token → rank, which is its id.
        pattern: a regular expression that matches every character, also of Oniguruma's ``[a&&b]``.
    """
    letters = bytes_to_unicode()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(BPE({spelled[t]: rank for t, rank in ranks.items()}, merges, ignore_merges=True))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of tokens that make a token, by its rank; several of the same token by the ranks of their parts."""
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def split_pattern(source: str, class_name: str) -> str:
    """The constant ``pat_str`` of a class of Python source, or of its nearest base class there that has one.

    Constants are strings, sums of strings, and ``"…".join`` of a list of strings.

    Raises:
        ValueError: there is no such class, attribute or constant.
    """
    try:
        classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tokenizer's Python code cannot be parsed: {error}") from error
    queue, seen = [class_name], set()
    while queue:
        name = queue.pop(0)
        if name in seen or name not in classes:
            continue
        seen.add(name)
        for statement in classes[name].body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == _PATTERN for target in targets):
                assert isinstance(statement, ast.Assign)
                return _constant(statement.value)
        queue += [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    raise ValueError(f"the tokenizer's Python code has no class {class_name} with the attribute {_PATTERN}")


def _constant(node: ast.expr) -> str:
    """The value of an expression of string constants."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _constant(node.left) + _constant(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        parts = node.args[0] if len(node.args) == 1 else None
        if isinstance(parts, ast.List | ast.Tuple):
            return _constant(node.func.value).join(_constant(part) for part in parts.elts)
    raise ValueError(f"the tokenizer's Python code has a {_PATTERN} that is not a constant: {ast.unparse(node)[:80]}")


def _class_of(source: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """Module and name of the checkpoint's tokenizer class, from ``auto_map``: ``tokenization_opencua.TikTokenV3``."""
    listed = config.get("auto_map", {}).get("AutoTokenizer")
    reference = listed[0] if isinstance(listed, list) and listed else listed
    if not isinstance(reference, str) or not all(part.isidentifier() for part in reference.split(".")):
        raise ValueError(f"{source}: {CONFIG} has no auto_map with AutoTokenizer: MODULE.CLASS, got {listed!r}")
    module, _, name = reference.rpartition(".")
    return module.replace(".", "/"), name


def _name(token: Any) -> str | None:
    """A special token of ``tokenizer_config.json``, which is a string or an object with its content."""
    return token.get("content") if isinstance(token, Mapping) else token


def _find(source: str, name: str) -> Path | None:
    """A file of a checkpoint; None if it has none of that name."""
    file = cached_file(
        source, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    return None if file is None else Path(file)


def _required(source: str, name: str) -> Path:
    path = _find(source, name)
    if path is None:
        raise ValueError(f"{source}: there is no {name}; expected the files of the published checkpoint")
    return path
