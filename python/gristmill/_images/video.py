"""`VideoModel`: the frames, the tokens and the pixels that a model takes of a video."""

import dataclasses
import functools
import io
import math
import numbers
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._images import pretrained
from gristmill._images.decoding import as_bytes
from gristmill._images.model import channels
from gristmill._util import checks
from gristmill.errors import ArgumentError, ImageError, MissingExtraError

# Containers that hold one video; others, such as play lists, would open further files.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,gif,avi,mpegts,mpeg,flv,ogg"
# No video of a training set has as many frames: ten hours at 30 a second.
_MOST_FRAMES = 1 << 20
_MOST_ASPECT = 200
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5,) * 3, (0.5,) * 3)
# The first bytes of Matroska and WebM, and those of the segment with all of their frames.
_EBML, _SEGMENT = bytes.fromhex("1a45dfa3"), bytes.fromhex("18538067")
# The token of videos, and those around one.
TOKEN, AROUND = "<|video_pad|>", ("<|vision_start|>", "<|vision_end|>")


class VideoPlan(NamedTuple):
    """The parts of a video that a model takes, by its container's header.

    Attributes:
      frames: the indices of the frames, in order.
      fps: the frames a second of the video.
      size: height and width of the resized frames.
      grid_thw: patches in time, down and across.
      tokens: tokens of the sequence whose embeddings are the video's, without those of timestamps.
      text: the text that stands for it, with one token of videos for each group of frames that has one of its own.
      groups: how many of these it has.
      seconds_per_grid: the seconds that a patch in time spans.
    """

    frames: tuple[int, ...]
    fps: float
    size: tuple[int, int]
    grid_thw: tuple[int, int, int]
    tokens: int
    text: str
    groups: int
    seconds_per_grid: float


@dataclass(frozen=True)
class _Rules:
    """The rules of a family, with the settings of its processor in transformers."""

    patch: int
    min_pixels: int
    max_pixels: int
    normalization: tuple[tuple[float, ...], tuple[float, ...]]
    choose: Callable[["VideoModel", int, float], npt.NDArray[np.int64]]
    is_of_all_frames: bool
    has_timestamps: bool


@dataclass(frozen=True)
class VideoModel:
    """How a model wants its videos. It needs the extra `video`: `pip install gristmill[video]`, which brings PyAV.

    Frames are those that transformers 5.24 chooses and that PyAV decodes; sizes and tokens follow from the container's
    header, so nothing is decoded before a row is packed. MP4, WebM, Matroska, AVI, MPEG and GIF are read, with every
    codec that the FFmpeg inside PyAV decodes (H.264, H.265, VP9, AV1 and more). The orientation of a video is not
    applied.

    Values equal those of transformers' video processors up to the rounding of torchvision's resize, which differs from
    Pillow's by at most 2 of 255.

    Args:
      name: `"qwen2-vl"`, `"qwen2.5-vl"` or `"qwen3-vl"`. Videos of Qwen3-VL have a timestamp before each
        pair of frames.
      fps: frames taken for each second.
      num_frames: or how many are taken; then `fps` must be None.
      min_frames: with `fps`, the least frames, as far as a video has them.
      max_frames: with `fps`, the most frames.
      min_pixels: the least pixels of a resized frame; of Qwen3-VL of all frames. None: those of the class.
      max_pixels: the most pixels, likewise.
      image_mean: for each channel, what is subtracted from values between 0 and 1. None: that of the class.
      image_std: for each channel, what the difference is divided by. None: that of the class.
      max_file_frames: videos of more frames than these are refused, before anything is decoded.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    name: str
    _: dataclasses.KW_ONLY
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    min_pixels: int | None = None
    max_pixels: int | None = None
    image_mean: tuple[float, float, float] | None = None
    image_std: tuple[float, float, float] | None = None
    max_file_frames: int = _MOST_FRAMES

    def __post_init__(self) -> None:
        checks.choice("name", self.name, tuple(_RULES))
        if self.fps is not None and not (isinstance(self.fps, numbers.Real) and 0 < self.fps <= 1000):
            raise ArgumentError(f"fps={self.fps!r}: expected a number above 0 and up to 1000")
        checks.optional_integer("num_frames", self.num_frames, 2, 1 << 16)
        if self.fps is not None and self.num_frames is not None:
            raise ArgumentError(f"fps={self.fps}, num_frames={self.num_frames}: expected one of them")
        checks.integer("min_frames", self.min_frames, 2, 1 << 16)
        checks.integer("max_frames", self.max_frames, self.min_frames, 1 << 16)
        checks.optional_integer("min_pixels", self.min_pixels, 1, 1 << 30)
        checks.optional_integer("max_pixels", self.max_pixels, 1, 1 << 30)
        for name in ("image_mean", "image_std"):
            object.__setattr__(self, name, channels(name, getattr(self, name)))
        checks.integer("max_file_frames", self.max_file_frames, 1, _MOST_FRAMES)

    @classmethod
    def from_pretrained(cls, folder: "str | os.PathLike[str]", **changes: Any) -> "VideoModel":
        """The model of a checkpoint, by its own `video_preprocessor_config.json` or `processor_config.json`.

        Args:
          folder: the folder of the checkpoint, or the path of the file.
          **changes: settings that replace those of the files.

        Raises:
          ArgumentError: there is no such file, its processor is not known, or a setting of it is not followed.
        """
        name, settings = pretrained.read_videos(folder)
        return cls(name, **{**settings, **changes})

    @property
    def rules(self) -> _Rules:
        """The rules of its family."""
        return _RULES[self.name]

    @property
    def shape(self) -> tuple[int]:
        """The shape of a patch: two frames of 3 channels of its pixels."""
        return (2 * 3 * self.rules.patch**2,)

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and the standard deviation of the channels."""
        mean, std = self.rules.normalization
        return self.image_mean or mean, self.image_std or std

    @property
    def described(self) -> str:
        """The part of it that defines the stream."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "_"}
        return f"VideoModel({', '.join(f'{name}={value!r}' for name, value in values.items() if value is not None)})"

    def plan(self, data: bytes | bytearray | memoryview) -> VideoPlan:
        """The plan for a video, by its header; where that does not say how many frames there are, they are counted.

        Args:
          data: the bytes of the file.

        Raises:
          ImageError: the bytes are no video, or a damaged one, or the model does not take its size.
          MissingExtraError: PyAV is not installed.
        """
        with _opened(as_bytes(data)) as (container, stream):
            total, fps = _count(container, stream, self.max_file_frames), stream.average_rate
            width, height = stream.codec_context.width, stream.codec_context.height
        if not fps or not width or not height:
            raise ImageError(
                f"video: expected frames a second and a size in its header, found {fps} and {width} x {height}"
            )
        if width * height > _core.MAX_PIXELS:
            raise ImageError(f"video: expected at most {_core.MAX_PIXELS} pixels a frame, found {width} x {height}")
        fps = float(fps)
        frames = [int(index) for index in self.rules.choose(self, total, fps)]
        size = self._size(height, width, len(frames))
        down, across = (side // self.rules.patch for side in size)
        grid = (-(-len(frames) // 2), down, across)
        tokens = math.prod(grid) // 4
        text, groups = AROUND[0] + TOKEN + AROUND[1], 1
        if self.rules.has_timestamps:
            even = frames + frames[-1:] * (len(frames) % 2)
            times = [(even[at] / fps + even[at + 1] / fps) / 2 for at in range(0, len(even), 2)]
            text, groups = "".join(f"<{time:.1f} seconds>{text}" for time in times), len(times)
        sampled = len(frames) / total * fps
        return VideoPlan(tuple(frames), fps, size, grid, tokens, text, groups, 2 / sampled)

    def pixels(
        self, data: bytes | bytearray | memoryview, *, dtype: Any = np.uint8
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """The patches of a video. PyAV releases the GIL while it decodes.

        Args:
          data: the bytes of the file.
          dtype: `uint8`: resized. `float32`: also normalized.

        Returns:
          Array `[patches, 2 * 3 * patch_size ** 2]`, in the order of `pixel_values_videos` of transformers.

        Raises:
          ImageError: the video is damaged, or ends before its last wanted frame; or see `plan`.
          MissingExtraError: PyAV is not installed.
        """
        data = as_bytes(data)
        plan = self.plan(data)
        height, width = plan.size
        frames = np.empty((2 * plan.grid_thw[0], height, width, 3), np.uint8)
        at = 0
        for pixels in _decoded(data, plan.frames):
            frames[at] = _core.resize_image(pixels, height, width, "bicubic")
            at += 1
        frames[at:] = frames[at - 1]  # an odd number of frames ends with the last one twice
        patch, (time, down, across) = self.rules.patch, plan.grid_thw
        parts = frames.reshape(time, 2, down // 2, 2, patch, across // 2, 2, patch, 3)
        patches = parts.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        if np.dtype(dtype) == np.float32:
            table = _table(*self.normalization)
            channels = np.arange(3).reshape(3, 1, 1, 1)
            normalized: npt.NDArray[np.float32] = table[channels, patches].reshape(-1, *self.shape)
            return normalized
        return np.ascontiguousarray(patches).reshape(-1, *self.shape)

    def _size(self, height: int, width: int, frames: int) -> tuple[int, int]:
        """Both sides multiples of two patches, within the limits of pixels: `smart_resize` of transformers."""
        rules, factor = self.rules, 2 * self.rules.patch
        least, most = self.min_pixels or rules.min_pixels, self.max_pixels or rules.max_pixels
        all_frames, even = 1, 1
        if rules.is_of_all_frames:
            all_frames, even = frames, round(frames / 2) * 2
            if min(height, width) < factor:
                scale = max(factor / height, factor / width)
                height, width = int(height * scale), int(width * scale)
        if max(height, width) / min(height, width) > _MOST_ASPECT:
            raise ImageError(f"video: expected an aspect ratio of at most {_MOST_ASPECT}, found {width} x {height}")
        rows, columns = round(height / factor) * factor, round(width / factor) * factor
        if even * rows * columns > most:
            shrink = math.sqrt(all_frames * height * width / most)
            rows, columns = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
        elif even * rows * columns < least:
            stretch = math.sqrt(least / (all_frames * height * width))
            rows, columns = (math.ceil(side * stretch / factor) * factor for side in (height, width))
        return rows, columns


def _of_qwen2(model: VideoModel, total: int, fps: float) -> npt.NDArray[np.int64]:
    """An even number of frames at equal distances from the first one on."""
    if model.num_frames is not None:
        count: float = round(model.num_frames / 2) * 2
    else:
        most = min(model.max_frames, total) // 2 * 2
        count = min(max(total / fps * (model.fps or 2.0), model.min_frames), most, total) // 2 * 2
    if not 0 < count <= total:
        advice = "; lower num_frames=" if model.num_frames is not None and total > 1 else ""
        raise ImageError(f"video: expected at least {max(2, int(count))} frames, found {total}{advice}")
    step = total / count
    # In 32 bits, as torch.arange writes them.
    return (np.arange(math.ceil(total / step)) * step).astype(np.float32).astype(np.int64)


def _of_qwen3(model: VideoModel, total: int, fps: float) -> npt.NDArray[np.int64]:
    """Frames at equal distances from the first to the last."""
    count = model.num_frames
    if count is None:
        count = min(max(int(total / fps * (model.fps or 2)), model.min_frames), model.max_frames, total)
    return np.linspace(0, total - 1, count).round().astype(np.int64)


_QWEN2 = _Rules(14, 128 * 28 * 28, 28 * 28 * 768, _CLIP, _of_qwen2, is_of_all_frames=False, has_timestamps=False)
_RULES = {
    "qwen2-vl": _QWEN2,
    "qwen2.5-vl": _QWEN2,
    "qwen3-vl": _Rules(16, 128 * 32 * 32, 32 * 32 * 768, _HALF, _of_qwen3, is_of_all_frames=True, has_timestamps=True),
}


def _av() -> Any:
    """The module of PyAV.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        import av  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtraError("videos need PyAV: pip install 'gristmill[video]'") from error
    return av


class _opened:  # noqa: N801 - a context, as a function would be
    """A video and its stream; what FFmpeg raises meanwhile is damage."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._av = _av()
        self._data = data

    def __enter__(self) -> tuple[Any, Any]:
        _check_is_whole(self._data)
        try:
            self._container = self._av.open(io.BytesIO(self._data), options={"format_whitelist": _CONTAINERS})
        except (self._av.FFmpegError, ValueError) as error:
            found = getattr(error, "strerror", None) or error
            raise ImageError(
                f"video: expected a file of MP4, WebM, Matroska, GIF, AVI, MPEG, FLV or Ogg, found: {found}"
            ) from None
        if not self._container.streams.video:
            self._container.close()
            raise ImageError("video: expected a stream of video, found none")
        stream = self._container.streams.video[0]
        stream.codec_context.thread_count = 1  # several videos are decoded at a time
        return self._container, stream

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        self._container.close()
        if isinstance(error, self._av.FFmpegError):
            raise ImageError(f"video: expected frames that can be decoded, found: {error}") from None


def _count(container: Any, stream: Any, most: int) -> int:
    """The frames of a stream that are shown: those of its index or header, or else its packets.

    An MP4 that was cut without encoding it again has more: the frames before the cut that others are decoded from.
    """
    total = max(int(stream.frames), 0)
    if total and container.format.name.startswith("mov"):
        # Older versions of PyAV have no index, so that packets are counted.
        total = sum(not entry.is_discard for entry in getattr(stream, "index_entries", ()))
    if not total:
        for packet in container.demux(stream):
            total += bool(packet.size) and not packet.is_discard
            if total > most:
                break
    if not 0 < total <= most:
        raise ImageError(f"video: expected 1 to {most} frames, found {total if total <= most else 'more'}")
    return total


def _check_is_whole(data: bytes | bytearray) -> None:
    """Checks that a Matroska or WebM file has all bytes of its segment: FFmpeg ends a cut one as if it were whole.

    Raises:
      ImageError: it ends early.
    """
    if data[:4] != _EBML:
        return
    size, start = _element_size(data, 4)
    segment = start + (size or 0)
    if data[segment : segment + 4] != _SEGMENT:
        return
    size, start = _element_size(data, segment + 4)
    if size is not None and start + size > len(data):
        raise ImageError(f"video: expected {start + size} bytes, as its header says, found {len(data)}")


def _element_size(data: bytes | bytearray, at: int) -> tuple[int | None, int]:
    """The size of an element of EBML that is written at an offset, or None if none is, and the offset behind it."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    bits = 7 * length
    size = int.from_bytes(data[at : at + length], "big") & ((1 << bits) - 1)
    return (None if size == (1 << bits) - 1 else size), at + length


def _decoded(data: bytes | bytearray, wanted: tuple[int, ...]) -> Iterator[npt.NDArray[np.uint8]]:
    """The pixels of wanted frames, as often as they are wanted."""
    with _opened(data) as (container, stream):
        left = list(reversed(wanted))
        index = -1
        for index, frame in enumerate(container.decode(stream)):
            if left and index == left[-1]:
                pixels = np.ascontiguousarray(frame.to_ndarray(format="rgb24"))
                while left and index == left[-1]:
                    left.pop()
                    yield pixels
            if not left:
                return
        raise ImageError(f"video: expected {max(wanted) + 1} frames or more, as its header says, found {index + 1}")


@functools.cache
def _table(mean: tuple[float, ...], std: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """For each channel, what its 256 values become, `[3, 256]`."""
    values = (np.arange(256) * (1 / 255)).astype(np.float32)
    rows = [(values - np.float32(mean)) / np.float32(std) for mean, std in zip(mean, std, strict=True)]
    return np.stack(rows).astype(np.float32)


def core_of_video(model: VideoModel) -> _core.ImageFunction:
    """The core's model."""
    _av()

    def plan(data: bytes) -> tuple[int, int, tuple[int, int, int], str | None, int]:
        found = model.plan(data)
        return found.tokens, 0, found.grid_thw, found.text, found.groups

    def pixels(data: bytes, dtype: str, patches: int) -> npt.NDArray[Any]:
        found = model.pixels(data, dtype=dtype)
        if len(found) != patches:
            raise ImageError(f"video: expected {patches} patches, as its header said before, found {len(found)}")
        return found

    return _core.ImageFunction(
        {
            "plan": plan,
            "pixels": pixels,
            "shape": list(model.shape),
            "kind": "patches",
            "max_tiles": 0,
            "planned_by": "file",
            "takes_bytes": True,
            "has_tokens": True,
        }
    )
