"""Trains a tiny vision-language model on photographs with captions, stops, and resumes with equal losses.

    python examples/caption_photographs.py --photographs FOLDER --folder runs/captions

The folder has `name.jpg` or `name.png` and `name.txt` of each photograph. Without `--photographs` they are those of
scikit-image, if it is installed. They are written as tars of WebDataset and read with `gm.ImageText`: rows of several
captions, each behind its image. Patches of pixels replace image tokens, and the model learns the captions.

Besides gristmill it needs `optax` and `tokenizers`.
"""

import argparse
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers

import gristmill as gm

LENGTH, WIDTH, HEADS, LAYERS = 256, 64, 4, 2
# Photographs of 32 x 32 pixels in 4 x 4 patches, each a token.
SIDE, PATCH, PATCHES, MAX_IMAGES = 32, 8, 16, 4
# The captions that scikit-image has for its photographs.
CAPTIONS = {
    "astronaut": "The astronaut Eileen Collins.",
    "camera": "A man with a camera on a tripod.",
    "cat": "Chelsea the cat.",
    "coffee": "A cup of coffee on a saucer.",
    "rocket": "The launch of a rocket.",
    "coins": "Greek coins from Pompeii.",
    "page": "A scanned page of text.",
    "moon": "The surface of the moon.",
}

Params = dict[str, Any]
Batch = dict[str, jax.Array]


def main() -> None:
    """Makes the shards, trains or resumes, and prints losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/captions"))
    parser.add_argument("--steps", type=int, default=200, help="steps of the whole run")
    parser.add_argument("--stop-at", type=int, help="save at this step and stop; the next call resumes there")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_shards(arguments.folder, photographs_of(arguments.photographs))
    dataset = gm.PackedDataset(
        str(arguments.folder / "*.tar"),
        tokenizer=make_encoder(),
        sample=gm.ImageText(
            gm.ImageModel(size=SIDE, tokens=PATCHES),
            text=gm.Text("txt"),
            image_token="<image>",
            max_images=MAX_IMAGES,
        ),
        sequence_length=LENGTH,
        batch_size=4,
        packing="best_fit",
        eos="<end>",
        seed=0,
        epochs=None,
    )
    params = init_params(jax.random.key(0), dataset.encoder.largest_id + 1)
    optimizer = optax.adam(3e-3)
    state = params, optimizer.init(params)

    @jax.jit
    def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, gradient = jax.value_and_grad(loss_of)(params, batch)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments), loss

    checkpoint = arguments.folder / "checkpoint.pickle"
    iterator, first = iter(dataset), 0
    if checkpoint.exists():
        saved = pickle.loads(checkpoint.read_bytes())
        state, first = jax.tree.map(jnp.asarray, saved["state"]), saved["step"]
        iterator.set_state(saved["data"])
    last = arguments.steps if arguments.stop_at is None else arguments.stop_at
    for number in range(first, last):
        state, loss = step(state, next(iterator))
        if number % 10 == 9:
            print(f"step {number + 1:4}: loss {loss:.6f}")
    saved = {"state": jax.tree.map(np.asarray, state), "step": last, "data": iterator.get_state()}
    checkpoint.write_bytes(pickle.dumps(saved))
    stats = iterator.stats()
    print(f"{stats['images']:,} images, {stats['trained_tokens']:,} of {stats['tokens']:,} tokens were trained on")
    iterator.close()


def photographs_of(folder: Path | None) -> list[tuple[str, bytes, str]]:
    """Extension, file and caption of each photograph."""
    if folder is not None:
        images = sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".jpeg", ".png"))
        return [(path.suffix[1:], path.read_bytes(), path.with_suffix(".txt").read_text()) for path in images]
    import skimage.data
    import skimage.io

    found = []
    for name, caption in CAPTIONS.items():
        file = io.BytesIO()
        skimage.io.imsave(file, getattr(skimage.data, name)(), plugin="pil", format_str="png", check_contrast=False)
        found.append(("png", file.getvalue(), caption))
    return found


def write_shards(folder: Path, photographs: list[tuple[str, bytes, str]]) -> None:
    """Writes two shards, in which each photograph is there several times."""
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number, (extension, image, caption) in enumerate(photographs * 4):
                for name, content in [(extension, image), ("txt", caption.encode())]:
                    member = tarfile.TarInfo(f"{shard}-{number:04}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def make_encoder() -> gm.Encoder:
    """A tokenizer of bytes, with a token for images and one for the end."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<image>", "<end>"])
    return gm.Encoder.from_bytes(tokenizer.to_str().encode())


def init_params(key: jax.Array, vocabulary: int) -> Params:
    """The parameters of a transformer with tied embeddings, and of a projection of patches."""

    def matrix(*shape: int) -> jax.Array:
        nonlocal key
        key, used = jax.random.split(key)
        return jax.random.normal(used, shape) * shape[0] ** -0.5

    layers = [
        {"attend": matrix(WIDTH, 3 * WIDTH), "mix": matrix(WIDTH, WIDTH), "up": matrix(WIDTH, 4 * WIDTH)}
        | {"down": matrix(4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    embeddings = {"tokens": matrix(vocabulary, WIDTH), "positions": matrix(LENGTH, WIDTH)}
    return embeddings | {"patches": matrix(3 * PATCH * PATCH, WIDTH), "layers": layers}


def features_of(params: Params, images: jax.Array) -> jax.Array:
    """The features of the patches of all images of a row, in order: `[rows, max_images * patches, width]`."""
    rows, side = images.shape[0], SIDE // PATCH
    pixels = images.astype(jnp.float32) / 127.5 - 1
    cut = pixels.reshape(rows, MAX_IMAGES, side, PATCH, side, PATCH, 3).transpose(0, 1, 2, 4, 3, 5, 6)
    return cut.reshape(rows, MAX_IMAGES * PATCHES, -1) @ params["patches"]


def embeddings_of(params: Params, batch: Batch, image_token: int) -> jax.Array:
    """Embeddings of the tokens; the k-th image token of a row has the k-th feature."""
    is_image = batch["inputs"] == image_token
    index = jnp.clip(jnp.cumsum(is_image, axis=1) - 1, 0, MAX_IMAGES * PATCHES - 1)
    features = jnp.take_along_axis(features_of(params, batch["images"]), index[:, :, None], axis=1)
    tokens = params["tokens"][batch["inputs"]] * WIDTH**0.5
    return jnp.where(is_image[:, :, None], features, tokens) + params["positions"][batch["inputs_position"]]


def loss_of(params: Params, batch: Batch) -> jax.Array:
    """The mean loss of the captions. Attention stays within a sample."""

    def norm(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    segments = batch["inputs_segmentation"]
    sees = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    # The two tokens that were added are the last ones, and that of images comes first.
    x = embeddings_of(params, batch, image_token=params["tokens"].shape[0] - 2)
    for layer in params["layers"]:
        heads = (norm(x) @ layer["attend"]).reshape(*x.shape[:2], 3, HEADS, -1)
        query, key, value = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(sees[:, None], scores, -1e9))
        x += jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ layer["mix"]
        x += jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    logits = norm(x) @ params["tokens"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    trained = batch["targets_segmentation"] > 0
    return jnp.sum(losses * trained) / jnp.sum(trained)


if __name__ == "__main__":
    main()
