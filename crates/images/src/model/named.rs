//! The models that have names, with the settings of their checkpoints.

use super::{Canvases, Limits, Markup, Patches, Settings, Shape, Tiling};
use crate::{Alpha, Filter, Size};

/// The names that [`ImageModel::named`](super::ImageModel::named) knows.
pub const NAMES: [&str; 21] = [
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
    "qwen2-vl-bridge",
    "qwen2.5-vl-bridge",
    "qwen3-vl-bridge",
    "gemma3",
    "gemma4",
    "siglip",
    "siglip2-naflex",
    "clip",
    "llama4",
    "llava",
    "llava-next",
    "llava-onevision",
    "internvl",
    "pixtral",
    "mistral3",
    "idefics3",
    "smolvlm",
    "glm4v",
];

const HALF: [[f64; 3]; 2] = [[0.5; 3]; 2];
/// Mean and standard deviation of the images that CLIP was trained on.
const CLIP: [[f64; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]];
/// The same of `ImageNet`.
const IMAGENET: [[f64; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
/// Values from 0 to 1.
const UNIT: [[f64; 3]; 2] = [[0.0; 3], [1.0; 3]];

pub(super) fn settings(name: &str) -> Option<Settings> {
    let (shape, filter, [mean, std], markup) = match name {
        "qwen2-vl" | "qwen2.5-vl" => {
            (qwen(14, 56 * 56, 28 * 28 * 1280), Filter::Bicubic, CLIP, qwen_markup())
        }
        "qwen3-vl" => (qwen(16, 256 * 256, 4096 * 4096), Filter::Bicubic, HALF, qwen_markup()),
        "qwen2-vl-bridge" | "qwen2.5-vl-bridge" => (bridge(14), Filter::Bicubic, CLIP, qwen_markup()),
        "qwen3-vl-bridge" => (bridge(16), Filter::Bicubic, HALF, qwen_markup()),
        "gemma3" => (fixed(896, None, 256), Filter::Bilinear, HALF, gemma_markup()),
        "gemma4" => (patches(16, 3, Limits::Tokens(280), true), Filter::Bicubic, UNIT, gemma4_markup()),
        "siglip" => (fixed(224, None, 0), Filter::Bicubic, HALF, Markup::default()),
        "siglip2-naflex" => {
            (patches(16, 1, Limits::Count(256), true), Filter::Bilinear, HALF, Markup::default())
        }
        "clip" => (fixed(224, Some(224), 0), Filter::Bicubic, CLIP, Markup::default()),
        "llama4" => (tiles(336, Tiling::Fit { most: 16 }, 144), Filter::Bilinear, HALF, llama_markup()),
        "llava" => {
            let size = Size { width: 336, height: 336 };
            let shape = Shape::Fixed { size, shortest: Some(336), tokens: 576, pads: true };
            (shape, Filter::Bicubic, CLIP, token("<image>"))
        }
        "llava-next" => {
            let canvases = Canvases::new(&[[1, 2], [2, 1], [2, 2], [3, 1], [1, 3]])?;
            let tiling = Tiling::AnyResolution { canvases, pooled_above: None };
            (tiles(336, tiling, 576), Filter::Bicubic, CLIP, token("<image>"))
        }
        "llava-onevision" => {
            let sides = || 1..=6;
            let all: Vec<[u32; 2]> =
                sides().flat_map(|down| sides().map(move |across| [down, across])).collect();
            let tiling = Tiling::AnyResolution { canvases: Canvases::new(&all)?, pooled_above: Some(9) };
            (tiles(384, tiling, 729), Filter::Bicubic, HALF, token("<image>"))
        }
        "internvl" => {
            (tiles(448, Tiling::Stretch { most: 12 }, 256), Filter::Bicubic, IMAGENET, internvl_markup())
        }
        "pixtral" => (patches(16, 1, Limits::Longest(1024), false), Filter::Bicubic, CLIP, pixtral_markup()),
        "mistral3" => (patches(14, 2, Limits::Longest(1540), false), Filter::Bicubic, CLIP, pixtral_markup()),
        "idefics3" => {
            (tiles(364, Tiling::Split { longest: 1456 }, 169), Filter::Lanczos, HALF, token("<image>"))
        }
        "smolvlm" => {
            (tiles(512, Tiling::Split { longest: 2048 }, 64), Filter::Lanczos, HALF, token("<image>"))
        }
        "glm4v" => {
            let limits = Limits::Video { least: 112 * 112, most: 28 * 28 * 15_000 };
            let Shape::Patches(still) = patches(14, 2, limits, false) else { return None };
            (Shape::Patches(Patches { temporal: 2, ..still }), Filter::Bicubic, CLIP, glm_markup())
        }
        _ => return None,
    };
    Some(Settings { shape, filter, mean, std, alpha: Alpha::Drop, applies_exif: false, markup })
}

fn fixed(side: u32, shortest: Option<u32>, tokens: u32) -> Shape {
    Shape::Fixed { size: Size { width: side, height: side }, shortest, tokens, pads: false }
}

fn tiles(side: u32, tiling: Tiling, tokens: u32) -> Shape {
    Shape::Tiles { side, tiling, tokens }
}

fn patches(patch: u32, merge: u32, limits: Limits, by_pixels: bool) -> Shape {
    Shape::Patches(Patches { patch, merge, temporal: 1, limits, by_pixels, before: None })
}

fn qwen(patch: u32, least: u32, most: u32) -> Shape {
    Shape::Patches(Patches {
        patch,
        merge: 2,
        temporal: 2,
        limits: Limits::Pixels { least, most },
        by_pixels: false,
        before: None,
    })
}

/// Megatron-Bridge resizes to multiples of 28, whatever the patch, before the model's own resize.
fn bridge(patch: u32) -> Shape {
    Shape::Patches(Patches {
        patch,
        merge: 2,
        temporal: 2,
        limits: Limits::Pixels { least: 256 * 28 * 28, most: 1280 * 28 * 28 },
        by_pixels: false,
        before: Some((28, 4 * 28 * 28, 16384 * 28 * 28)),
    })
}

fn qwen_markup() -> Markup {
    Markup { around: ["<|vision_start|>", "<|vision_end|>"].map(str::to_owned), ..token("<|image_pad|>") }
}

fn gemma_markup() -> Markup {
    markup(["<start_of_image>", "<image_soft_token>", "\n\n<start_of_image>", "<end_of_image>\n\n"])
}

fn gemma4_markup() -> Markup {
    markup(["<|image|>", "<|image|>", "<|image>", "<image|>"])
}

fn llama_markup() -> Markup {
    markup(["<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>"])
}

fn internvl_markup() -> Markup {
    markup(["<IMG_CONTEXT>", "<IMG_CONTEXT>", "<img>", "</img>"])
}

fn pixtral_markup() -> Markup {
    Markup { row_ends: Some(["[IMG_BREAK]", "[IMG_END]"].map(str::to_owned)), ..token("[IMG]") }
}

fn glm_markup() -> Markup {
    let around = ["<|begin_of_image|>", "<|end_of_image|>"].map(str::to_owned);
    Markup { around, ..token("<|image|>") }
}

/// A token that chat templates write for an image.
fn token(token: &str) -> Markup {
    markup([token, token, "", ""])
}

fn markup(strings: [&str; 4]) -> Markup {
    let [placeholder, token, before, after] = strings.map(str::to_owned);
    Markup { placeholder, token, before, after, ..Markup::default() }
}
