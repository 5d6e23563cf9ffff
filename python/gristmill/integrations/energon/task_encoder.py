"""`QwenVLTaskEncoder`: Megatron-Bridge's arguments of that name, and what they say of samples and rows."""

from dataclasses import dataclass
from typing import Any

from gristmill import Chat, ImageModel, ImageText
from gristmill.errors import ArgumentError, ArgumentTypeError
from gristmill.integrations.energon.batches import BatchForm

# Bridge trains on the newline behind a turn's end, too.
_STOP_TOKENS = ("<|im_end|>\n",)
# The images of a packed row, where Bridge has no limit.
_LEAST_IMAGES = 64


@dataclass
class QwenVLTaskEncoder:
    """How Megatron-Bridge encodes the chats of Qwen-VL: its arguments, without torch.

    Attributes:
      tokenizer: as in `EnergonMultiModalDataModule`, whose own is used.
      image_processor: has no effect: images are resized twice, as Bridge does it.
      temporal_patch_size: how often an image is repeated in a patch.
      spatial_merge_size: a square of as many patches is one token.
      patch_size: side of a patch: 14, or 16 of Qwen3-VL.
      max_padding_length: the length of a row.
      min_pixels: the least pixels of a resized image.
      max_pixels: the most pixels of a resized image.
      max_num_images: the most images of a sample; with packing, of a row, then at least 64. Others are left out and
        counted.
      max_num_frames: has no effect, as there are no videos.
      max_visual_tokens: the most tokens of the images of a sample; with packing, of a row.
      pad_to_max_length: whether rows have `max_padding_length` tokens.
      pad_to_multiple_of: or a multiple of so many, without packing.
      enable_in_batch_packing: whether the samples of a batch are joined in one row.
      in_batch_packing_pad_to_multiple_of: multiple to which each sample of a joined row is padded.
      enable_energon_packing: whether samples are packed, see `packing_buffer_size`.
    """

    tokenizer: Any = None
    image_processor: Any = None
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    patch_size: int = 14
    max_padding_length: int = 4096
    min_pixels: int = 200704
    max_pixels: int = 1003520
    max_num_images: int | None = 10
    max_num_frames: int | None = 60
    max_visual_tokens: int | None = 16384
    pad_to_max_length: bool = False
    pad_to_multiple_of: int = 128
    enable_in_batch_packing: bool = False
    in_batch_packing_pad_to_multiple_of: int = 1
    enable_energon_packing: bool = False

    @property
    def seq_length(self) -> int:
        """The length of a row, by Bridge's name."""
        return self.max_padding_length

    @property
    def merge_size(self) -> int:
        """The squares of patches, by Bridge's name."""
        return self.spatial_merge_size


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The parts of rows, and how they become batches.

    Attributes:
      sample: what a record becomes.
      row_length: tokens of a row.
      max_segments: samples of a packed row; None: any number.
      packs: whether rows hold several samples.
      form: the form of the batches.
    """

    sample: ImageText
    row_length: int
    max_segments: int | None
    packs: bool
    form: BatchForm


def encoding_of(
    encoder: Any,
    *,
    template: Any,
    seq_length: int,
    packs: bool,
    max_images: int | None,
    max_patches: int | None,
    max_segments: int | None,
    tensors: bool | None,
) -> Encoding:
    """The encoding that a task encoder stands for: an `ImageText`, or `QwenVLTaskEncoder`, Bridge's own included.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: it is neither.
    """
    if isinstance(encoder, ImageText):
        form = BatchForm(
            sequence_length=seq_length, joins=packs, pad_to_max_length=False, pad_to_multiple_of=1, segment_multiple=1,
            tensors=tensors,
        )  # fmt: skip
        return Encoding(sample=encoder, row_length=seq_length, max_segments=max_segments, packs=packs, form=form)
    if type(encoder).__name__ != "QwenVLTaskEncoder":
        raise ArgumentTypeError(
            f"task_encoder={type(encoder).__name__}: expected a gm.ImageText, or a QwenVLTaskEncoder of "
            "gristmill.integrations.energon or of Megatron-Bridge; code that encodes samples is not run: say what it "
            "does as gm.ImageText(model, fields=..., text=gm.Chat(...))"
        )
    if encoder.enable_in_batch_packing and packs:
        raise ArgumentError(
            "enable_in_batch_packing=True: rows are packed already, by packing_buffer_size; leave one out"
        )
    length, multiple = encoder.seq_length, encoder.in_batch_packing_pad_to_multiple_of
    if packs and multiple > 1:
        max_segments = max_segments or 32  # so that their padding has its place
    tokens = min(length, encoder.max_visual_tokens or length)
    images = encoder.max_num_images or max(1, tokens // encoder.merge_size**2)
    return Encoding(
        sample=ImageText(
            _model(encoder),
            text=Chat(format="chatml", template=template, stop_tokens=_STOP_TOKENS, string_arguments="keep"),
            max_images=max_images or (max(images, _LEAST_IMAGES) if packs else images),
            max_patches=max_patches or tokens * encoder.merge_size**2,
            images="float32",
        ),
        row_length=length - (multiple - 1) * max_segments if packs and max_segments else length,
        max_segments=max_segments,
        packs=packs,
        form=BatchForm(
            sequence_length=length,
            joins=packs or encoder.enable_in_batch_packing,
            pad_to_max_length=encoder.pad_to_max_length,
            pad_to_multiple_of=encoder.pad_to_multiple_of,
            segment_multiple=multiple,
            tensors=tensors,
        ),
    )


def _model(encoder: Any) -> ImageModel:
    name = {14: "qwen2.5-vl-bridge", 16: "qwen3-vl-bridge"}.get(encoder.patch_size)
    if name is None:
        raise ArgumentError(f"patch_size={encoder.patch_size}: expected 14 or 16; pass a gm.ImageText as task_encoder")
    return ImageModel(
        name,
        merge_size=encoder.merge_size,
        temporal_patch_size=encoder.temporal_patch_size,
        min_pixels=encoder.min_pixels,
        max_pixels=encoder.max_pixels,
    )
