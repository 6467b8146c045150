"""Names of tensors in files of other libraries, and the names of jobflow's models for them.

model.load_state_dict(renamed_weights(flow.load("model.safetensors"), "gpt2"))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, ConfigError, JobflowError, did_you_mean, did_you_mean_or, patterns_like, user_line
from jobflow.core.filters import matches


@dataclass(frozen=True)
class WeightNames:
    """Patterns of names in a file with the names in a model, which apply in order, and patterns of new names of matrices to transpose.

    A pattern that matches no name has no effect.
    """

    rename: Mapping[str, str]
    transpose: tuple[str, ...] = ()


#: files of the Hugging Face Hub by name: weights of GPT-2 for `models.GPT`, and of Llama for `models.Llama`
KNOWN = {
    "gpt2": WeightNames(
        {
            "transformer.*": "*",
            "wte.weight": "token_embedding.weight",
            "wpe.weight": "position_embedding.weight",
            "h.*.ln_1.*": "blocks.*.norm1.*",
            "h.*.attn.c_attn.*": "blocks.*.attention.qkv.*",
            "h.*.attn.c_proj.*": "blocks.*.attention.out.*",
            "h.*.ln_2.*": "blocks.*.norm2.*",
            "h.*.mlp.c_fc.*": "blocks.*.up.*",
            "h.*.mlp.c_proj.*": "blocks.*.down.*",
            "ln_f.*": "norm.*",
        },
        # GPT-2 multiplies x @ weight + bias, so its matrices are [inputs, outputs]
        ("blocks.*.attention.qkv.weight", "blocks.*.attention.out.weight", "blocks.*.up.weight", "blocks.*.down.weight"),
    ),
    "llama": WeightNames(
        {
            "model.*": "*",
            "embed_tokens.weight": "token_embedding.weight",
            "layers.*.input_layernorm.weight": "blocks.*.norm1.weight",
            "layers.*.self_attn.o_proj.weight": "blocks.*.attention.out.weight",
            "layers.*.self_attn.*_proj.weight": "blocks.*.attention.*.weight",
            "layers.*.post_attention_layernorm.weight": "blocks.*.norm2.weight",
            "layers.*.mlp.*_proj.weight": "blocks.*.feed_forward.*.weight",
            "norm.weight": "norm.weight",
            "lm_head.weight": "head.weight",
        }
    ),
}


def renamed(names: Mapping[str, Any], rename: Mapping[str, str], key: str, *, strict: bool = True) -> dict[str, str]:
    """Return {name in the model: name in the file}: each entry of `rename` applies to the results of the earlier entries.

    Each `*` of the new name stands for the text of a `*` of the pattern, in order.
    Raises: ConfigError for two names that become equal, and with `strict` for an entry that matches no name.
    """
    new = {name: name for name in names}
    for pattern, target in rename.items():
        if pattern.count("*") < target.count("*"):
            raise ConfigError(f'{key}: "{target}" has more * than the pattern "{pattern}"; write at most {pattern.count("*")}')
        expression = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))
        changed = {old: match for old, name in new.items() if (match := expression.fullmatch(name))}
        if not changed and strict:
            raise ConfigError(f'{key}: no name in the file matches "{pattern}"{did_you_mean(pattern, patterns_like(pattern, new.values()))}')
        new |= {old: _filled(target, match.groups()) for old, match in changed.items()}
    result: dict[str, str] = {}
    for old, name in new.items():
        if result.setdefault(name, old) != old:
            raise ConfigError(f'{key}: "{result[name]}" and "{old}" both become "{name}"; correct the patterns')
    return result


def _filled(target: str, texts: tuple[str, ...]) -> str:
    first, *rest = target.split("*")
    return first + "".join(text + part for text, part in zip(texts, rest, strict=False))


def renamed_weights(tensors: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return tensors of a Hugging Face file under the names of a model: "gpt2" for `models.GPT`, "llama" for `models.Llama`.

    Matrices of GPT-2 are transposed. Tensors that the model does not have, such as masks, are omitted.
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise ArgumentError(f"renamed_weights at {user_line()}: tensors is {tensors!r:.60}; pass a dict of tensors by name, as flow.load returns it")
    if not isinstance(names, str):
        raise ArgumentError(f"renamed_weights at {user_line()}: names is {names!r:.60}; pass {' or '.join(KNOWN)}")
    known = KNOWN.get(names)
    if known is None:
        near = did_you_mean_or(names, KNOWN, f"use {', '.join(KNOWN)}")
        raise ArgumentError(f'renamed_weights at {user_line()}: unknown names "{names}"{near}')
    try:
        mapping = renamed(tensors, known.rename, "renamed_weights", strict=False)
    except JobflowError as error:
        raise ArgumentError(f"renamed_weights at {user_line()}: {error}") from None
    own = {name: old for name, old in mapping.items() if any(_becomes(target, name) for target in known.rename.values())}
    return {name: tensors[old].T if matches(known.transpose, name) else tensors[old] for name, old in own.items()}


def _becomes(target: str, name: str) -> bool:
    return target != "*" and matches(target, name)
