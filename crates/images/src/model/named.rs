//! The models that have names, with the settings of their checkpoints.

use super::{Markup, Patches, Settings, Shape};
use crate::{Alpha, Filter, Size};

/// The names that [`ImageModel::named`](super::ImageModel::named) knows.
pub const NAMES: [&str; 10] = [
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
    "qwen2-vl-bridge",
    "qwen2.5-vl-bridge",
    "qwen3-vl-bridge",
    "gemma3",
    "siglip",
    "clip",
    "llama4",
];

const HALF: [[f64; 3]; 2] = [[0.5; 3]; 2];
/// Mean and standard deviation of the images that CLIP was trained on.
const CLIP: [[f64; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]];

pub(super) fn settings(name: &str) -> Option<Settings> {
    let (shape, filter, [mean, std], markup) = match name {
        "qwen2-vl" | "qwen2.5-vl" => {
            (qwen(14, 56 * 56, 28 * 28 * 1280), Filter::Bicubic, CLIP, qwen_markup())
        }
        "qwen3-vl" => (qwen(16, 256 * 256, 4096 * 4096), Filter::Bicubic, HALF, qwen_markup()),
        "qwen2-vl-bridge" | "qwen2.5-vl-bridge" => (bridge(14), Filter::Bicubic, CLIP, qwen_markup()),
        "qwen3-vl-bridge" => (bridge(16), Filter::Bicubic, HALF, qwen_markup()),
        "gemma3" => (fixed(896, None, 256), Filter::Bilinear, HALF, gemma_markup()),
        "siglip" => (fixed(224, None, 0), Filter::Bicubic, HALF, Markup::default()),
        "clip" => (fixed(224, Some(224), 0), Filter::Bicubic, CLIP, Markup::default()),
        "llama4" => {
            let shape = Shape::Tiles { side: 336, most: 16, tokens: 144 };
            (shape, Filter::Bilinear, HALF, llama_markup())
        }
        _ => return None,
    };
    Some(Settings { shape, filter, mean, std, alpha: Alpha::Drop, markup })
}

fn fixed(side: u32, shortest: Option<u32>, tokens: u32) -> Shape {
    Shape::Fixed { size: Size { width: side, height: side }, shortest, tokens }
}

fn qwen(patch: u32, min_pixels: u32, max_pixels: u32) -> Shape {
    Shape::Patches(Patches { patch, merge: 2, temporal: 2, min_pixels, max_pixels, before: None })
}

/// Megatron-Bridge resizes to multiples of 28, whatever the patch, before the model's own resize.
fn bridge(patch: u32) -> Shape {
    Shape::Patches(Patches {
        patch,
        merge: 2,
        temporal: 2,
        min_pixels: 256 * 28 * 28,
        max_pixels: 1280 * 28 * 28,
        before: Some((28, 4 * 28 * 28, 16384 * 28 * 28)),
    })
}

fn qwen_markup() -> Markup {
    markup(["<|image_pad|>", "<|image_pad|>", "", ""])
}

fn gemma_markup() -> Markup {
    markup(["<start_of_image>", "<image_soft_token>", "\n\n<start_of_image>", "<end_of_image>\n\n"])
}

fn llama_markup() -> Markup {
    markup(["<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>"])
}

fn markup(strings: [&str; 4]) -> Markup {
    let [placeholder, token, before, after] = strings.map(str::to_owned);
    Markup { placeholder, token, before, after }
}
