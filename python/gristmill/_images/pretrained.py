"""The settings of a checkpoint's images, from the files that transformers saves beside it."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gristmill._util import checks
from gristmill.errors import ArgumentError

_OF_IMAGES, _OF_PROCESSOR = "preprocessor_config.json", "processor_config.json"
_OF_VIDEOS = "video_preprocessor_config.json"
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")

Settings = dict[str, Any]
# Settings of a model, given those of the image processor and those of the processor around it.
Rule = Callable[["_Given", "_Given"], Settings]

# Settings without effect on the pixels and tokens of an image, whatever they are.
_WITHOUT_EFFECT = frozenset(
    {"_valid_processor_keys", "auto_map", "data_format", "default_to_square", "device", "disable_grouping",
     "do_convert_rgb", "feature_extractor_type", "image_processor_type", "image_token", "input_data_format",
     "model_input_names", "num_channels", "processor_class", "return_metadata", "return_row_col_info",
     "return_tensors", "video_processor_type", "video_sampling"}
)  # fmt: skip


_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)
}  # fmt: skip
_SHORTEST_224 = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
# By the model, settings that a file may leave out, where those of the class in transformers 5.24 are others than
# those of the checkpoints that the model is named after.
_LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"size": {"height": 224, "width": 224}},
    "internvl": {"size": {"height": 384, "width": 384}, **_CLIP},
    "llava": _SHORTEST_224,
    "llava-next": {
        **_SHORTEST_224,
        "image_grid_pinpoints": ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
    },
    "llava-onevision": {
        **_CLIP,
        "image_grid_pinpoints": tuple((384 * down, 384 * across) for down in range(1, 7) for across in range(1, 7)),
    },
    "qwen3-vl": {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, **_CLIP},
    "smolvlm": {"size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}},
}


class _Given:
    """Settings of a file, which knows those that nobody has asked for."""

    def __init__(self, values: Mapping[str, Any], path: str, left_out: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._values = {**(left_out or {}), **{key: value for key, value in values.items() if value is not None}}
        self._left = self._values.keys() - _WITHOUT_EFFECT

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        self._left -= {key}
        return self._values.get(key, default)

    def integer(self, key: str, default: Any = None) -> int | None:
        """The same of an integer, or of equal height and width."""
        found = self.get(key, default)
        if isinstance(found, Mapping) and len(set(found.values())) == 1:
            found = next(iter(found.values()))
        return None if found is None else checks.integer(f"{self.path}: {key}", found, 1, 1 << 30)

    def inside(self, key: str, *names: str) -> Any:
        """The value of the first of some names in an object."""
        found = self.get(key) or {}
        return next((found[name] for name in names if found.get(name) is not None), None)

    def expect(self, key: str, expected: Any) -> None:
        """Refuses a value that is not followed.

        Raises:
          ArgumentError: there is another one.
        """
        if (found := self.get(key, expected)) != expected:
            raise ArgumentError(f"{self.path}: {key}={found!r}: expected {expected!r}; make a gm.ImageFunction")

    def pass_over(self, *keys: str) -> None:
        """Says that keys have no effect for this processor."""
        self._left -= set(keys)

    def refuse_others(self) -> None:
        """Refuses keys that nobody has asked for.

        Raises:
          ArgumentError: there are some.
        """
        if self._left:
            found = {key: self._values[key] for key in sorted(self._left)}
            raise ArgumentError(
                f"{self.path}: expected settings that are known, found {found!r}; make the gm.ImageModel by its own "
                "settings, or a gm.ImageFunction"
            )


def read(folder: "str | os.PathLike[str]") -> tuple[str, Settings]:
    """The name of the model of a checkpoint, and its settings.

    Raises:
      ArgumentError: see `ImageModel.from_pretrained`.
    """
    path = Path(checks.path("folder", folder))
    names = [_OF_IMAGES, _OF_PROCESSOR]
    if path.is_file():
        path, names = path.parent, [path.name]
    files = {name: _read(path / name) for name in names if (path / name).is_file()}
    around = files.get(_OF_PROCESSOR, {})
    images = files.get(_OF_IMAGES) or around.get("image_processor") or next(iter(files.values()), None)
    if not isinstance(images, Mapping):
        raise ArgumentError(f"folder={str(folder)!r}: expected {_OF_IMAGES} or {_OF_PROCESSOR} in it, found neither")
    shown = str(path / (_OF_IMAGES if images is files.get(_OF_IMAGES) else next(reversed(files))))
    kind = str(images.get("image_processor_type") or images.get("feature_extractor_type"))
    found = _PROCESSORS.get(kind.removesuffix("Fast").removesuffix("Pil"))
    if found is None:
        raise ArgumentError(
            f"{shown}: expected an image_processor_type of {', '.join(sorted(_PROCESSORS))}, found {kind}; make the "
            "gm.ImageModel by its settings, or a gm.ImageFunction"
        )
    name, rule = found
    if (name, images.get("patch_size")) == ("qwen2-vl", 16):  # models of one family have one processor
        name = "qwen3-vl"
    given = _Given(images, shown, _LEFT_OUT.get(name, {}))
    settings = {**_common(given), **rule(given, _Given(around, str(path / _OF_PROCESSOR)))}
    given.refuse_others()
    return name, {key: value for key, value in settings.items() if value is not None}


def read_videos(folder: "str | os.PathLike[str]") -> tuple[str, Settings]:
    """The name of the model of videos of a checkpoint, and its settings.

    Raises:
      ArgumentError: see `VideoModel.from_pretrained`.
    """
    path = Path(checks.path("folder", folder))
    file = path if path.is_file() else path / _OF_VIDEOS
    if not file.is_file() and (path / _OF_PROCESSOR).is_file():
        file = path / _OF_PROCESSOR
    if not file.is_file():
        raise ArgumentError(f"folder={str(folder)!r}: expected {_OF_VIDEOS} in it, found none")
    values = _read(file)
    values = values.get("video_processor", values)
    kind = str(values.get("video_processor_type"))
    if kind not in _VIDEO_PROCESSORS:
        raise ArgumentError(
            f"{file}: expected a video_processor_type of {', '.join(sorted(_VIDEO_PROCESSORS))}, found {kind}"
        )
    name, patch = _VIDEO_PROCESSORS[kind]
    given = _Given(values, str(file))
    common = _common(given)
    own = _of_patches(given, given)
    for key, expected in [("patch_size", patch), ("merge_size", 2), ("temporal_patch_size", 2)]:
        if own[key] not in (None, expected):
            raise ArgumentError(f"{file}: {key}={own[key]}: expected {expected}")
    given.expect("cap_pixels_per_frame", False)
    given.pass_over("do_sample_frames", "max_video_tokens", "max_duration", "max_image_size", "do_pad")
    if common["resample"] not in (None, "bicubic"):
        raise ArgumentError(f"{file}: resample={common['resample']!r}: expected bicubic")
    settings = {
        "fps": given.get("fps"),
        "num_frames": given.integer("num_frames"),
        "min_frames": given.integer("min_frames"),
        "max_frames": given.integer("max_frames"),
        "min_pixels": own["min_pixels"],
        "max_pixels": own["max_pixels"],
        "image_mean": common["image_mean"],
        "image_std": common["image_std"],
    }
    given.refuse_others()
    return name, {key: value for key, value in settings.items() if value is not None}


# The model and the patch of each video processor of transformers.
_VIDEO_PROCESSORS = {"Qwen2VLVideoProcessor": ("qwen2-vl", 14), "Qwen3VLVideoProcessor": ("qwen3-vl", 16)}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: expected JSON, found: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"{path}: expected an object, found {found!r}")
    return found


def _common(given: _Given) -> Settings:
    """The settings that all processors have."""
    given.expect("do_resize", True)
    given.expect("do_rescale", True)
    if not math.isclose(factor := given.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
        raise ArgumentError(f"{given.path}: rescale_factor={factor!r}: expected 1/255; make a gm.ImageFunction")
    mean, std = given.get("image_mean"), given.get("image_std")
    if not given.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    resample = given.get("resample")
    return {
        "image_mean": mean and tuple(mean),
        "image_std": std and tuple(std),
        "resample": _FILTERS[resample] if isinstance(resample, int) and 0 <= resample < 6 else resample,
    }


def _sides(size: Any) -> Any:
    """Height and width of a size, or one number."""
    if isinstance(size, Mapping):
        return (size["height"], size["width"]) if "height" in size else size.get("shortest_edge")
    return size


def _both_sides(given: _Given) -> Any:
    """The size of a processor that does not keep the aspect ratio."""
    size = given.get("size")
    if isinstance(size, Mapping) and "height" not in size:
        raise ArgumentError(f"{given.path}: size={size!r}: expected height and width; make a gm.ImageFunction")
    return _sides(size)


def _side(given: _Given, *keys: str) -> int | None:
    """The side of the first of some square sizes."""
    sides = next((found for key in keys if (found := _sides(given.get(key))) is not None), None)
    if isinstance(sides, tuple) and sides[0] != sides[1]:
        raise ArgumentError(f"{given.path}: {keys[0]}={sides!r}: expected a square; make a gm.ImageFunction")
    return sides[0] if isinstance(sides, tuple) else sides


def _of_patches(given: _Given, _: _Given) -> Settings:
    return {
        "patch_size": given.integer("patch_size"),
        "merge_size": given.integer("merge_size"),
        "temporal_patch_size": given.integer("temporal_patch_size"),
        "min_pixels": given.integer("min_pixels", given.inside("size", "shortest_edge", "min_pixels")),
        "max_pixels": given.integer("max_pixels", given.inside("size", "longest_edge", "max_pixels")),
    }


def _pixtral(given: _Given, around: _Given) -> Settings:
    given.pass_over("do_pad")
    own = given.integer("patch_size")
    return {
        "patch_size": around.integer("patch_size", own),  # the processor's own counts
        "merge_size": around.integer("spatial_merge_size"),
        "longest_edge": given.inside("size", "longest_edge"),
    }


def _gemma3(given: _Given, around: _Given) -> Settings:
    given.pass_over("pan_and_scan_max_num_crops", "pan_and_scan_min_crop_size", "pan_and_scan_min_ratio_to_activate")
    given.expect("do_pan_and_scan", False)
    tokens = given.integer("image_seq_length")
    return {"size": _both_sides(given), "tokens": around.integer("image_seq_length", tokens)}


def _gemma4(given: _Given, _: _Given) -> Settings:
    given.pass_over("size", "image_seq_length")
    return {
        "patch_size": given.integer("patch_size"),
        "merge_size": given.integer("pooling_kernel_size"),
        "max_tokens": given.integer("max_soft_tokens"),
    }


def _siglip(given: _Given, around: _Given) -> Settings:
    tokens = given.integer("image_seq_length")
    return {"size": _both_sides(given), "tokens": around.integer("image_seq_length", tokens)}


def _siglip2(given: _Given, _: _Given) -> Settings:
    return {"patch_size": given.integer("patch_size"), "max_tokens": given.integer("max_num_patches")}


def _clip(given: _Given, around: _Given) -> Settings:
    given.expect("do_center_crop", True)
    if isinstance(size := given.get("size"), Mapping) and "height" in size:
        raise ArgumentError(
            f"{given.path}: size={size!r}: expected shortest_edge; make gm.ImageModel(size=...) by its settings"
        )
    crop, shortest = _sides(given.get("crop_size")), _side(given, "size")
    return {
        "size": crop or shortest,
        "shortest_edge": shortest,
        "tokens": _square_tokens(around, crop[0] if isinstance(crop, tuple) else crop or shortest),
    }


def _llava(given: _Given, around: _Given) -> Settings:
    return {**_clip(given, around), "pad": bool(given.get("do_pad", False))}


def _square_tokens(around: _Given, side: Any) -> int | None:
    """The tokens of a square image, of processors that have the size of a patch."""
    patch = around.integer("patch_size")
    return None if patch is None or side is None else (side // patch) ** 2 + _tokens_beside(around)


def _tokens_beside(around: _Given) -> int:
    """The tokens that a processor adds to those of patches: the class token, unless it is left out again."""
    added = around.get("num_additional_image_tokens", 0)
    is_left_out = around.get("vision_feature_select_strategy") == "default"
    return int(added) - int(is_left_out)


def _any_resolution(given: _Given, around: _Given) -> Settings:
    given.pass_over("do_pad", "do_center_crop")
    side, size = _side(given, "crop_size", "size"), _side(given, "size")
    if size not in (None, side):
        raise ArgumentError(f"{given.path}: size={size!r}: expected that of crop_size, {side!r}")
    most = str(around.get("vision_aspect_ratio", "")).removeprefix("anyres_max_")
    if beside := _tokens_beside(around):
        raise ArgumentError(
            f"{around.path}: expected the tokens of patches alone, found {beside:+} by num_additional_image_tokens and "
            "vision_feature_select_strategy; make a gm.ImageFunction"
        )
    return {
        "size": side,
        "image_grid_pinpoints": given.get("image_grid_pinpoints"),
        "tokens": around.integer("num_image_tokens", _square_tokens(around, side)),
        "max_tiles": int(most) if most.isdigit() else None,
    }


def _internvl(given: _Given, around: _Given) -> Settings:
    given.pass_over("crop_to_patches")  # the processor of InternVL cuts, whatever is saved
    given.expect("min_patches", 1)
    return {
        "size": _side(given, "size"),
        "max_tiles": given.integer("max_patches"),
        "tokens": around.integer("image_seq_length"),
    }


def _idefics(given: _Given, around: _Given) -> Settings:
    given.pass_over("do_pad")
    given.expect("do_image_splitting", True)
    return {
        "size": given.inside("max_image_size", "longest_edge"),
        "longest_edge": given.inside("size", "longest_edge"),
        "tokens": around.integer("image_seq_len"),
    }


def _llama4(given: _Given, _: _Given) -> Settings:
    given.expect("resize_to_max_canvas", False)
    return {"size": _side(given, "size"), "max_tiles": given.integer("max_patches")}


# The model and the rule of each image processor of transformers.
_PROCESSORS: dict[str, tuple[str, Rule]] = {
    "CLIPImageProcessor": ("clip", _clip),
    "Gemma3ImageProcessor": ("gemma3", _gemma3),
    "Gemma4ImageProcessor": ("gemma4", _gemma4),
    "Glm46VImageProcessor": ("glm4v", _of_patches),
    "Glm4vImageProcessor": ("glm4v", _of_patches),
    "GotOcr2ImageProcessor": ("internvl", _internvl),
    "Idefics3ImageProcessor": ("idefics3", _idefics),
    "Llama4ImageProcessor": ("llama4", _llama4),
    "LlavaImageProcessor": ("llava", _llava),
    "LlavaNextImageProcessor": ("llava-next", _any_resolution),
    "LlavaOnevisionImageProcessor": ("llava-onevision", _any_resolution),
    "PixtralImageProcessor": ("pixtral", _pixtral),
    "Qwen2VLImageProcessor": ("qwen2-vl", _of_patches),
    "Qwen2_5_VLImageProcessor": ("qwen2-vl", _of_patches),
    "Qwen3VLImageProcessor": ("qwen2-vl", _of_patches),
    "Siglip2ImageProcessor": ("siglip2-naflex", _siglip2),
    "SiglipImageProcessor": ("siglip", _siglip),
    "SmolVLMImageProcessor": ("smolvlm", _idefics),
}
