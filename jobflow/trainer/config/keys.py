"""Which keys there are, and where: for suggestions, and for values that nobody wrote."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from jobflow.trainer.config.paths import below, steps_of
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.section import Section
from jobflow.trainer.config.tree import Branch, Leaf, Tree, child

#: what other programs call a key
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "learningrate", "learn_rate", "base_lr", "lr_rate", "rate"), "lr"),
    **dict.fromkeys(("eps", "delta"), "epsilon"),
    **dict.fromkeys(("wd", "l2", "decay", "weightdecay"), "weight_decay"),
    **dict.fromkeys(("gradient_clip", "grad_clip", "max_grad_norm", "clip", "clip_grad_norm", "max_norm"), "clip_norm"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), "schedule"),
    **dict.fromkeys(("warmup", "warm_up"), "warmup_steps"),
    **dict.fromkeys(("optim", "optimiser"), "optimizer"),
    **dict.fromkeys(("type", "kind", "optimizer_name"), "name"),
    **dict.fromkeys(("batch", "batchsize", "bs", "global_batch_size"), "batch_size"),
    **dict.fromkeys(("eval_batch_size", "validation_batch_size", "test_batch_size"), "evaluation_batch_size"),
    **dict.fromkeys(("val", "valid", "dev"), "validation"),
    **dict.fromkeys(("num_epochs", "max_epochs", "n_epochs", "epoch"), "epochs"),
    **dict.fromkeys(("num_steps", "max_steps", "iterations", "max_iters", "step"), "steps"),
    **dict.fromkeys(("random_seed", "rng"), "seed"),
    **dict.fromkeys(("gpus", "num_gpus", "world_size", "num_devices", "device_num", "ranks"), "devices"),
    **dict.fromkeys(("dp", "data_parallel"), "data"),
    **dict.fromkeys(("tp", "tensor_parallel", "model_parallel"), "tensor"),
    **dict.fromkeys(("pp", "pipeline_parallel", "num_stages"), "pipeline"),
    **dict.fromkeys(("gradient_accumulation", "accumulate", "gradient_accumulation_steps", "accumulation_steps"), "accumulation"),
    **dict.fromkeys(("zero_stage", "zero_optimization"), "zero"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing", "checkpointing"), "recompute"),
    **dict.fromkeys(("amp", "dtype", "mixed_precision", "fp16", "bf16"), "precision"),
    **dict.fromkeys(("eval", "evaluate", "validate"), "evaluation"),
    **dict.fromkeys(("early_stop", "earlystopping"), "early_stopping"),
    **dict.fromkeys(("save", "ckpt", "checkpoints"), "checkpoint"),
    **dict.fromkeys(("dir", "save_dir", "checkpoint_dir"), "directory"),
    **dict.fromkeys(("save_every", "save_steps", "log_every", "log_steps", "interval"), "every_steps"),
    **dict.fromkeys(("keep", "max_to_keep", "save_total_limit"), "keep_last"),
    **dict.fromkeys(("monitor", "metric"), "best_metric"),
    **dict.fromkeys(("output_dir", "outdir", "out", "workdir"), "output"),
    **dict.fromkeys(("log", "logger"), "logging"),
    **dict.fromkeys(("args", "kwargs", "params"), "arguments"),
    **dict.fromkeys(("net", "network"), "model"),
    **dict.fromkeys(("hidden", "features", "out_features", "size"), "units"),
    **dict.fromkeys(("channels", "out_channels"), "filters"),
    **dict.fromkeys(("kernel", "ksize"), "kernel_size"),
    **dict.fromkeys(("stride",), "strides"),
    **dict.fromkeys(("linear", "fc"), "dense"),
    **dict.fromkeys(("conv",), "conv2d"),
    **dict.fromkeys(("batchnorm", "bn", "batch_normalization"), "batch_norm"),
    **dict.fromkeys(("layernorm", "ln"), "layer_norm"),
    **dict.fromkeys(("maxpool", "max_pool"), "max_pool2d"),
    **dict.fromkeys(("p", "prob", "drop_rate"), "rate"),
    "bias": "use_bias",
    "async": "asynchronous",
    "gamma": "decay_rate",
    "milestones": "boundaries",
}


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections that a kind of value may be: those of a union, or of a list's entries."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple):
        return [section for part in get_args(annotation) for section in sections_in(part)]
    return []


def tag_of(section: type[Section]) -> str | None:
    """What `name:` chooses this section; None if it is not chosen by name."""
    field = section.model_fields.get("name")
    if field is not None and get_origin(field.annotation) is Literal:
        return str(get_args(field.annotation)[0])
    return None


def section_at(path: Sequence[str], tree: Tree | None) -> list[type[Section]]:
    """The sections that may stand under a path: several where `name:`, in the tree, does not choose one of them."""
    found: list[type[Section]] = [TrainConfig]
    for step in path:
        tree = None if tree is None else child(tree, step)
        if step.isdecimal():
            continue
        found = [inside for section in found if step in section.model_fields for inside in sections_in(section.model_fields[step].annotation)]
        name = tree.entries.get("name") if isinstance(tree, Branch) else None
        chosen = [section for section in found if isinstance(name, Leaf) and tag_of(section) == name.value]
        found = chosen or found
    return found


@cache
def homes() -> Mapping[str, tuple[tuple[str, str | None], ...]]:
    """key -> (path of a section that has it, the section's name if it is chosen by one)."""
    found: dict[str, dict[tuple[str, str | None], None]] = {}
    for path, section in _all(TrainConfig, ""):
        for key in section.model_fields:
            found.setdefault(key, {})[path, tag_of(section)] = None
    return {key: tuple(places) for key, places in found.items()}


def _all(section: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    yield path, section
    for key, field in section.model_fields.items():
        for inside in sections_in(field.annotation):
            is_list = tuple in [get_origin(part) for part in (field.annotation, *get_args(field.annotation))]
            yield from _all(inside, below(path, key) + (".N" if is_list else ""))


def default_at(path: str, tree: Branch) -> Any:
    """What the schema gives a key that nobody wrote; None if it gives nothing."""
    *above, key = steps_of(path)
    for section in section_at(above, tree):
        field = section.model_fields.get(key)
        default = PydanticUndefined if field is None else field.get_default(call_default_factory=True)
        if default is not PydanticUndefined:
            return default.model_dump(mode="json") if isinstance(default, Section) else default
    return None


def suggestion(key: str, path: str, sections: Sequence[type[Section]], taken: Mapping[str, object]) -> tuple[str, str]:
    """What to say about a key that a section has not (begins with "; "), and the key that was probably meant (may be empty)."""
    legal = [name for section in sections for name in section.model_fields]
    meant = close_key(key, [name for name in legal if name not in taken], legal)
    inside = [name for name in taken if (below(path, name), None) in homes().get(key, ())]
    if inside:
        return f"; it belongs under {inside[0]}: indent it further", f"{inside[0]}.{key}"
    if "." in key and all(step in homes() for step in steps_of(key)):
        *outer, last = steps_of(key)
        return f"; write maps inside each other: {'{'.join(f'{step}: ' for step in outer)}{{{last}: ...{'}' * len(outer)}", ""
    if key == "extends":
        return "; it belongs at the top of the file", ""
    if key in homes():
        variants = [tag for place, tag in homes()[key] if place == path and tag]
        if variants:
            return f"; only {_listed(variants, 'and')} {'have' if len(variants) > 1 else 'has'} it", ""
        return f"; it belongs {_under([place for place, _ in homes()[key]])}", ""
    if meant:
        return f'; did you mean "{meant}"?', meant
    elsewhere = close_key(key, list(homes()))
    if elsewhere:
        return f'; did you mean "{elsewhere}" {_under([place for place, _ in homes()[elsewhere]])}?', ""
    owners = {"model": "; what a builder takes belongs under model.arguments", "data": "; what a reader takes stands beside `reader`"}
    return owners.get(path, ""), ""


def close_key(key: str, *groups: Sequence[str]) -> str:
    """The key that comes closest to a wrong one, in the first group that has one; synonyms count.  Empty if none is close."""
    word = key.lower().replace("-", "_").replace(" ", "_")
    for names in groups:
        synonyms = {other: name for other, name in SYNONYMS.items() if name in names and other not in names}
        known = {**{name: name for name in names}, **synonyms}
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
        if close:
            return known[close[0]]
    return ""


def _under(places: Sequence[str]) -> str:
    once = list(dict.fromkeys(places))
    if "" in once:
        return "at the top of the file"
    return f"under {_listed(once, 'or')}" if len(once) <= 4 else f"under {_listed(once[:3], 'or')}, for example"


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def place_of(word: str, exactly: bool) -> str:
    """The path of the key that a word is, or comes closest to: of several that which is nearest to the top; "" if none is close."""
    plain = word.replace("-", "_")
    known = [name for name, places in homes().items() if any("layers" not in steps_of(place) for place, _ in places)]
    key = (plain if plain in known else SYNONYMS.get(plain, "")) if exactly else close_key(word, known)
    found = [below(place, key) for place, _ in homes().get(key, ()) if "layers" not in steps_of(place)]
    order = ("training", "optimizer", "data", "strategy", "checkpoint")
    return min(found, key=lambda path: (path.count("."), *(path.partition(".")[0] != first for first in order)), default="")
