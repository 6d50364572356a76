"""Memory of training on one GPU, by part, in bytes.

Activations are what autograd saves for the backward pass with transformers' modules and attention kernels that save
queries, keys, values, outputs and one normaliser per head; the tests measure them with ``saved_tensors_hooks``. Legend:
w bytes per element of the model's dtype; in half precision the RMS norms save a float32 copy of their input, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bepa_torchrl.sizing.flops import Training
from bepa_torchrl.sizing.model import ModelShape, TextShape, VisionShape

#: bytes of Adam's two moments per trained parameter; 8-bit: one float32 scale per 256 elements
MOMENTS = {"adamw": 8.0, "adamw_8bit": 2 + 2 * 4 / 256}
#: the chunk of float32 logits of :mod:`bepa_torchrl.policies.transformers.chunked_log_probs` on an accelerator
CHUNK_BYTES = 4 << 27
#: bytes of a process's CUDA context with cuBLAS
CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained.

    Args:
        training: what is trained.
        optimizer: a key of :data:`MOMENTS`.
        checkpointing: whether layers and vision blocks are recomputed in the backward pass.
        element: bytes per element of the model's dtype, 2 or 4.
        shards: GPUs over which weights, gradients and the optimiser's state are divided.
        engine_cache: bytes of the key-value cache of an inference engine on the same GPU, rank 0's; None: no engine.
        float32_head: whether logits are computed in float32 (``policy.head_dtype``).
        feature_cache: bytes for the features of screenshots (``policy.feature_cache_gb``), used if the tower is frozen.
        engine_sleeps: whether it gives its weights and its cache up while a micro-batch is trained.
        engine_workers: GPUs over which an engine's weights and the heads of its cache are divided.
        whole_gradients: whether each of several GPUs keeps a whole gradient during a step
            (``train.gradient_sync=step``).
        base_copy: whether there is a copy of the base policy (``loss.kl_weight``).
    """

    training: Training
    optimizer: str = "adamw"
    checkpointing: bool = False
    element: int = 2
    shards: int = 1
    engine_cache: int | None = None
    float32_head: bool = False
    feature_cache: int = 0
    engine_sleeps: bool = False
    engine_workers: int = 1
    whole_gradients: bool = False
    base_copy: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the GPU with the most, rank 0's, while a micro-batch is trained.

    Args:
        weights: the model, and adapters; with several GPUs float32, divided, and a frozen tower whole on each.
        sampling_copy: with several GPUs, the whole policy with which rank 0 samples, or an engine gets its weights.
        base_copy: the whole base policy, by which rows are scored for the divergence from it.
        engine: an inference engine's weights, with adapters merged, its key-value cache and CUDA context, and a float32
            output embedding, of one of its workers; not the temporaries of its passes.
        masters: float32 copies of trained half-precision weights, on one GPU.
        gradients: float32, accumulated over micro-batches; with several GPUs divided, or whole on each.
        moments: Adam's.
        decoder: saved activations of the decoder.
        vision: saved activations of the vision tower, or the features of a frozen one.
        head: chunks of logits and the gradient of the output embedding.
        head_copy: the float32 copy of the output embedding, if logits are computed in float32 and it is not.
        feature_cache: the largest size of the features kept, also beside a sampling copy; 0 with a trained tower.
        workspace: temporaries of the backward pass, and with several GPUs the gathered weights of two layers.
        asleep: what the engine gives up of ``engine`` meanwhile.
    """

    weights: int
    sampling_copy: int
    base_copy: int
    engine: int
    masters: int
    gradients: int
    moments: int
    decoder: int
    vision: int
    head: int
    head_copy: int
    feature_cache: int
    workspace: int
    asleep: int = 0

    @property
    def resident(self) -> int:
        """What is also there while rollouts are sampled: weights, an engine's memory, the optimiser's state, caches."""
        copies = self.sampling_copy + self.base_copy + self.head_copy
        return self.weights + copies + self.engine + self.masters + self.moments + self.feature_cache

    @property
    def total(self) -> int:
        """The sum of all parts, without what an engine gives up."""
        return int(sum(asdict(self).values())) - 2 * self.asleep


def trained_parameters(model: ModelShape, training: Training) -> int:
    """Number of parameters that the optimiser updates."""
    decoder = model.adapter_parameters(training.rank) if training.rank else model.text.parameters
    return decoder + (model.vision.parameters if training.vision else 0)


def training_memory(model: ModelShape, recipe: Recipe, tokens: int, images: int, patches: int) -> Memory:
    """Memory of one micro-batch.

    Args:
        model: the model.
        recipe: how it is trained.
        tokens: tokens of the micro-batch's sequences.
        images: its images.
        patches: patches of each image.
    """
    w, text, training, ranks = recipe.element, model.text, recipe.training, recipe.shards
    trained = trained_parameters(model, training)
    parameters = model.parameters + model.adapter_parameters(training.rank)
    stored = w if ranks == 1 else 4  # shards are float32, so that they need no masters
    masters = 4 * trained if stored < 4 else 0
    undivided = model.vision.parameters if ranks > 1 and not training.vision else 0
    per_token, per_patch = decoder_bytes(model, recipe), vision_bytes(model, recipe)
    features = images * patches // model.vision.merge**2 * text.hidden * w
    embedding = text.vocabulary * text.hidden
    copied = 4 * embedding if recipe.float32_head and w < 4 else 0
    output = 0 if training.rank else copied or embedding * w  # in float32 if the logits are
    held = {"weights": stored * (parameters - undivided)}
    held |= {"masters": masters, "gradients": 4 * trained, "moments": round(MOMENTS[recipe.optimizer] * trained)}
    divided = {name: size // ranks for name, size in held.items()}
    divided["weights"] += w * undivided
    if recipe.whole_gradients:
        divided["gradients"] = held["gradients"]
    engine = _engine_bytes(model, recipe, copied)
    return Memory(
        **divided,
        sampling_copy=w * parameters if ranks > 1 else 0,
        base_copy=w * parameters if recipe.base_copy else 0,
        engine=engine,
        asleep=engine - CONTEXT_BYTES if engine and recipe.engine_sleeps else 0,
        decoder=tokens * per_token + _once(recipe, tokens * decoder_layer_bytes(text, w)),
        vision=features
        + images * patches * per_patch
        + (_once(recipe, images * patches * vision_block_bytes(model.vision, w)) if training.vision else 0),
        head=2 * CHUNK_BYTES + CHUNK_BYTES * w // 4 + output,
        head_copy=copied,
        feature_cache=0 if training.vision else recipe.feature_cache * (2 if ranks > 1 else 1),
        workspace=3 * w * tokens * text.intermediate + (_gathered(text, w) if ranks > 1 else 0),
    )


def decoder_bytes(model: ModelShape, recipe: Recipe) -> int:
    """Saved bytes per token: embeddings, layers (only their inputs with checkpointing), the final norm."""
    text, w = model.text, recipe.element
    layer = w * text.hidden if recipe.checkpointing else decoder_layer_bytes(text, w)
    return w * text.hidden + text.layers * layer + _rms_norm(text.hidden, w)


def vision_bytes(model: ModelShape, recipe: Recipe) -> int:
    """Saved bytes per patch of a trained tower: pixels, blocks (only their inputs with checkpointing), mergers."""
    vision, w = model.vision, recipe.element
    if not recipe.training.vision:
        return 0
    block = w * vision.hidden if recipe.checkpointing else vision_block_bytes(vision, w)
    merger = (_rms_norm(vision.hidden, w) if vision.gated else 2 * w * vision.hidden) + 2 * w * vision.hidden
    return w * vision.patch_inputs + vision.depth * block + (1 + vision.deepstack) * merger


def decoder_layer_bytes(text: TextShape, w: int) -> int:
    """Saved bytes per token of one decoder layer.

    Two norms with the projections' inputs; queries, keys, values, the attention's output and normaliser; of the MLP
    gate, activation, the other factor and the product.
    """
    attention = 2 * w * (text.query + text.key) + 4 * text.heads
    normed = (4 + w) * (text.query + text.key) + 4 * (text.heads + text.kv_heads) if text.qk_norm else 0
    return 2 * (_rms_norm(text.hidden, w) + 4) + attention + normed + 4 * w * text.intermediate


def vision_block_bytes(vision: VisionShape, w: int) -> int:
    """Saved bytes per patch of one block of the tower.

    As in the decoder, but values are a view that keeps queries and keys before their rotation, too, and the
    attention's output exists per window and joined. A LayerNorm saves its input, mean and deviation.
    """
    v = vision.hidden
    attention = w * (2 + 3 + 2) * v + 4 * vision.heads
    if vision.gated:
        return 2 * (_rms_norm(v, w) + 4) + attention + 4 * w * vision.intermediate
    return 2 * (2 * w * v + 2 * w) + attention + 2 * w * vision.intermediate


def kv_bytes(text: TextShape, w: int, workers: int = 1) -> int:
    """Bytes per token of the key-value cache, on each of ``workers`` GPUs, which share the heads (one at least)."""
    return 2 * text.layers * max(1, text.kv_heads // workers) * text.head_dim * w


def _engine_bytes(model: ModelShape, recipe: Recipe, head_copy: int) -> int:
    """One worker of the engine: its share of the weights, its cache and its context; 0 without an engine."""
    if recipe.engine_cache is None:
        return 0
    weights = (recipe.element * model.parameters + head_copy) // recipe.engine_workers
    return weights + recipe.engine_cache + CONTEXT_BYTES


def _rms_norm(width: int, w: int) -> int:
    """Saved bytes of an RMS norm and of the projection after it: float32 input, normalised input, its product."""
    return (4 + 2 * w) * width


def _once(recipe: Recipe, size: int) -> int:
    """The one layer that is recomputed at a time."""
    return size if recipe.checkpointing else 0


def _gathered(text: TextShape, w: int) -> int:
    """Two whole layers and the embeddings, which FSDP2 gathers from all GPUs."""
    return w * (2 * text.layer_matrices + text.vocabulary * text.hidden * (1 if text.tied else 2))
