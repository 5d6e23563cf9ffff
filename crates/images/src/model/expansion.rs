//! The tokens of an image, and the words between them.

use super::{ImageModel, ImagePlan, Markup, Shape, Tiling};

/// The most tiles down or across whose words Idefics 3 names.
const MOST_NAMED: u32 = 16;

impl ImageModel {
    /// The words that an image is written with, the token whose embeddings are replaced first.
    pub fn words(&self) -> Vec<String> {
        let token = self.settings().markup.token.clone();
        let others: Vec<String> = match self.settings().shape {
            Shape::Tiles { tiling: Tiling::Fit { .. }, .. } => LLAMA.map(str::to_owned).into(),
            Shape::Tiles { tiling: Tiling::Split { longest }, side, .. } => {
                let along = longest.div_ceil(side).min(MOST_NAMED);
                let names = (1..=along).flat_map(|row| (1..=along).map(move |column| (row, column)));
                let names = names.map(|(row, column)| format!("<row_{row}_col_{column}>"));
                IDEFICS.map(str::to_owned).into_iter().chain(names).collect()
            }
            Shape::Patches(_) => self.settings().markup.row_ends.iter().flatten().cloned().collect(),
            _ => Vec::new(),
        };
        [token].into_iter().chain(others).collect()
    }

    /// An image as indices of [`words`](Self::words), each with how often it is repeated.
    pub fn expansion(&self, plan: &ImagePlan) -> Vec<(usize, u32)> {
        let mut parts = Vec::new();
        let [down, across] = plan.tiles;
        match self.settings().shape {
            Shape::Tiles { tiling: Tiling::Fit { .. }, tokens, .. } => {
                if down * across > 1 {
                    for _ in 0..down {
                        for column in 1..=across {
                            parts.extend([(0, tokens), (if column < across { 1 } else { 2 }, 1)]);
                        }
                    }
                }
                parts.extend([(3, 1), (0, tokens)]);
            }
            Shape::Tiles { tiling: Tiling::Split { longest }, tokens, side } => {
                let [fake, whole, line, lines, named] = [1, 2, 3, 4, 5];
                let along = longest.div_ceil(side).min(MOST_NAMED) as usize;
                if down * across > 1 {
                    for row in 0..down {
                        for column in 0..across {
                            let name = named + row as usize * along + column as usize;
                            parts.extend([(fake, 1), (name, 1), (0, tokens)]);
                        }
                        parts.push((if row + 1 < down { line } else { lines }, 1));
                    }
                }
                parts.extend([(fake, 1), (whole, 1), (0, tokens), (fake, 1)]);
            }
            Shape::Patches(patches) if self.settings().markup.row_ends.is_some() => {
                let [_, rows, columns] = plan.grid_thw.map(|side| side / patches.merge.max(1));
                for row in 1..=rows {
                    parts.extend([(0, columns), (if row < rows { 1 } else { 2 }, 1)]);
                }
            }
            _ => parts.push((0, plan.tokens)),
        }
        parts.retain(|(_, count)| *count > 0);
        parts
    }

    /// The text that replaces an image's placeholder.
    pub fn expanded(&self, plan: &ImagePlan) -> String {
        let words = self.words();
        let Markup { before, after, .. } = &self.settings().markup;
        let mut text = before.clone();
        for (word, count) in self.expansion(plan) {
            (0..count).for_each(|_| text.push_str(&words[word]));
        }
        text + after
    }
}

/// Between the tiles of a row, after one, and before the whole image.
const LLAMA: [&str; 3] = ["<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"];

/// Around a tile, before the whole image, after a row of tiles, and after the last one.
const IDEFICS: [&str; 4] = ["<fake_token_around_image>", "<global-img>", "\n", "\n\n"];
