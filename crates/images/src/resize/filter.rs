//! Pillow's filters, and the weights that they give to the pixels of a line.

use std::f64::consts::PI;
use std::ops::Range;

/// How the values of new pixels follow from those of old ones; names and formulas are those of Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The old pixel that holds the new one's centre.
    Nearest,
    /// The mean of the old pixels below the new one.
    Box,
    /// Linear interpolation; a triangle when shrinking.
    Bilinear,
    /// A sharper triangle.
    Hamming,
    /// Cubic interpolation, with a = -0.5.
    Bicubic,
    /// A sinc of 3 lobes.
    Lanczos,
}

impl Filter {
    /// All filters with their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("nearest", Self::Nearest),
        ("box", Self::Box),
        ("bilinear", Self::Bilinear),
        ("hamming", Self::Hamming),
        ("bicubic", Self::Bicubic),
        ("lanczos", Self::Lanczos),
    ];

    /// Beyond this distance, in old pixels when enlarging, weights are 0.
    const fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Nearest | Self::Box => f64::from(distance > -0.5 && distance <= 0.5),
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Hamming if x < 1.0 => {
                sinc(x) * (f64::from(0.54_f32) + f64::from(0.46_f32) * (x * PI).cos())
            }
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos if (-3.0..3.0).contains(&distance) => sinc(distance) * sinc(distance / 3.0),
            Self::Hamming | Self::Bicubic | Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// Weights have 22 bits behind the binary point: 32 less those of a value, and 2 for sums above 1 and signs.
pub(super) const PRECISION: u32 = 22;

/// The weights of a window of new pixels along one axis.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// For each new pixel: the old pixels that count, and where their weights begin.
    lines: Vec<(Range<usize>, usize)>,
    values: Vec<i32>,
}

impl Weights {
    /// Weights of the pixels `window` of `new` that are made of `old`.
    pub fn new(filter: Filter, old: u32, new: u32, window: Range<u32>) -> Self {
        let scale = f64::from(old) / f64::from(new);
        if filter == Filter::Nearest {
            return Self::nearest(old, scale, window);
        }
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let mut weights = Self::default();
        let mut exact = Vec::new();
        for pixel in window {
            let centre = (f64::from(pixel) + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(old as usize);
            exact.clear();
            exact.extend((first..end).map(|i| filter.weight((i as f64 - centre + 0.5) * (1.0 / stretch))));
            let sum: f64 = exact.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            weights.lines.push((first..end, weights.values.len()));
            weights.values.extend(exact.iter().map(|weight| {
                let scaled = weight / sum * f64::from(1 << PRECISION);
                (scaled + if scaled < 0.0 { -0.5 } else { 0.5 }) as i32
            }));
        }
        weights
    }

    /// Pillow adds the scale up, with its errors of rounding.
    fn nearest(old: u32, scale: f64, window: Range<u32>) -> Self {
        let mut lines = Vec::new();
        let mut position = scale * 0.5;
        for pixel in 0..window.end {
            if pixel >= window.start {
                let first = (position as usize).min(old as usize - 1);
                lines.push((first..first + 1, 0));
            }
            position += scale;
        }
        Self { lines, values: vec![1 << PRECISION] }
    }

    /// How many new pixels there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// The old pixels that count for any of the new ones.
    pub fn needed(&self) -> Range<usize> {
        let first = self.lines.first().map_or(0, |(old, _)| old.start);
        first..self.lines.last().map_or(first, |(old, _)| old.end)
    }

    /// For each new pixel the first old one, counted from `origin` on, and the weights.
    pub fn lines(&self, origin: usize) -> impl Iterator<Item = (usize, &[i32])> {
        self.lines.iter().map(move |(old, at)| (old.start - origin, &self.values[*at..at + old.len()]))
    }
}
