"""Fine-tunes a tiny model on conversations, and shows that only the trained tokens are learnt.

    python examples/fine_tune.py --folder runs/chat

It writes conversations of sums, packs them with `gm.Chat`, and trains a small transformer on the rows. It prints the
loss of the tokens that are trained on, and that of all others, which are no part of the loss that is minimised: the
model learns to answer, and not to ask.

Besides gristmill it needs `optax` and `tokenizers`.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import tokenizers

import gristmill as gm

LENGTH, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Params = dict[str, Any]
Batch = dict[str, jax.Array]


def main() -> None:
    """Makes the data, trains, and prints losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/chat"))
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    dataset = gm.PackedDataset(
        write_conversations(arguments.folder / "sums.jsonl"),
        tokenizer=make_encoder(),
        sample=gm.Chat(template=TEMPLATE, special_tokens_in_content="text"),
        sequence_length=LENGTH,
        batch_size=16,
        packing="best_fit",
        seed=0,
        epochs=None,
    )
    params = init_params(jax.random.key(0), dataset.encoder.largest_id + 1)
    optimizer = optax.adam(3e-3)
    state = params, optimizer.init(params)

    @jax.jit
    def step(state: Any, batch: Batch) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        params, moments = state
        (_, losses), gradient = jax.value_and_grad(losses_of, has_aux=True)(params, batch)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments), losses

    iterator = iter(dataset)
    for number in range(arguments.steps + 1):
        state, (trained, others) = step(state, next(iterator))
        if number % 50 == 0:
            print(f"step {number:4}: loss {trained:.3f} of trained tokens, {others:.3f} of all others")
    stats = iterator.stats()
    print(f"{stats['trained_tokens']:,} of {stats['tokens']:,} tokens were trained on")
    iterator.close()


def write_conversations(path: Path) -> Path:
    """Questions and answers, several in a conversation."""
    numbers = random.Random(0)
    with path.open("w") as file:
        for _ in range(2000):
            messages = []
            for _ in range(numbers.randint(1, 3)):
                a, b = numbers.randint(0, 9), numbers.randint(0, 9)
                messages += [{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": f"{a + b}"}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def make_encoder() -> gm.Encoder:
    """A tokenizer of bytes, with the control tokens of the template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    return gm.Encoder.from_bytes(tokenizer.to_str().encode())


def init_params(key: jax.Array, vocabulary: int) -> Params:
    """The parameters of a transformer with tied embeddings."""

    def matrix(*shape: int) -> jax.Array:
        nonlocal key
        key, used = jax.random.split(key)
        return jax.random.normal(used, shape) * shape[0] ** -0.5

    layers = [
        {"attend": matrix(WIDTH, 3 * WIDTH), "mix": matrix(WIDTH, WIDTH), "up": matrix(WIDTH, 4 * WIDTH)}
        | {"down": matrix(4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    return {"tokens": matrix(vocabulary, WIDTH), "positions": matrix(LENGTH, WIDTH), "layers": layers}


def logits_of(params: Params, batch: Batch) -> jax.Array:
    """Predictions `[rows, length, vocabulary]`. Attention stays within a conversation."""

    def norm(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    segments = batch["inputs_segmentation"]
    sees = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    x = params["tokens"][batch["inputs"]] * WIDTH**0.5 + params["positions"][batch["inputs_position"]]
    for layer in params["layers"]:
        heads = (norm(x) @ layer["attend"]).reshape(*x.shape[:2], 3, HEADS, -1)
        query, key, value = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(sees[:, None], scores, -1e9))
        x += jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ layer["mix"]
        x += jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ params["tokens"].T


def losses_of(params: Params, batch: Batch) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The loss of the trained tokens, to be minimised; and that one again with the loss of all others."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, batch), batch["targets"])
    # `targets_segmentation` is 0 where the target is not trained on: in the questions, and behind the last token.
    trained = batch["targets_segmentation"] > 0
    after = jnp.pad(batch["inputs_segmentation"][:, 1:], ((0, 0), (0, 1)))
    others = (batch["inputs_segmentation"] > 0) & (after == batch["inputs_segmentation"]) & ~trained
    loss = jnp.sum(losses * trained) / jnp.sum(trained)
    return loss, (loss, jnp.sum(losses * others) / jnp.sum(others))


if __name__ == "__main__":
    main()
