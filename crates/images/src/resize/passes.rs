//! The two passes of a resize. Sums of integers are exact, so vector instructions change no value.

use super::filter::{PRECISION, Weights};

/// Rows that the pass along the rows takes at once: a vector of 16 bytes.
const ROWS: usize = 16;
const CHANNELS: usize = 3;

/// An image, or a part of one, in a larger buffer.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// From the first byte of the first row on.
    pub pixels: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a row that belong to the part.
    pub width: usize,
    pub rows: usize,
}

/// Makes each row of `out` of rows of `source`; the first of these is number `origin` of the weights.
pub(super) fn down(source: View, weights: &Weights, origin: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::down(source, weights, origin, out) };
    }
    down_any(source, weights, origin, out);
}

/// Makes each column of `out` of columns of `source`; the first of these is number `origin` of the weights.
pub(super) fn across(
    source: View,
    weights: &Weights,
    origin: usize,
    out: &mut [u8],
    tiles: &mut [Vec<u8>; 2],
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::across(source, weights, origin, out, tiles) };
    }
    across_any(source, weights, origin, out, tiles);
}

/// The same code, compiled for processors with AVX2: of SSE2, there is no product of 32 bits.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{View, Weights, across_any, down_any};

    #[target_feature(enable = "avx2")]
    pub fn down(source: View, weights: &Weights, origin: usize, out: &mut [u8]) {
        down_any(source, weights, origin, out);
    }

    #[target_feature(enable = "avx2")]
    pub fn across(source: View, weights: &Weights, origin: usize, out: &mut [u8], tiles: &mut [Vec<u8>; 2]) {
        across_any(source, weights, origin, out, tiles);
    }
}

#[inline(always)]
fn down_any(source: View, weights: &Weights, origin: usize, out: &mut [u8]) {
    let View { pixels, stride, width, .. } = source;
    for ((first, weights), out) in weights.lines(origin).zip(out.chunks_exact_mut(width)) {
        let rows = &pixels[first * stride..];
        let end = weigh_blocks::<64>(rows, stride, weights, out, 0);
        let end = weigh_blocks::<8>(rows, stride, weights, out, end);
        weigh_blocks::<1>(rows, stride, weights, out, end);
    }
}

/// Takes whole blocks of `N` columns from `start` on, and returns where they end.
#[inline(always)]
fn weigh_blocks<const N: usize>(
    rows: &[u8],
    stride: usize,
    weights: &[i32],
    out: &mut [u8],
    start: usize,
) -> usize {
    let mut at = start;
    while at + N <= out.len() {
        weigh::<N>(&rows[at..], stride, weights, &mut out[at..at + N]);
        at += N;
    }
    at
}

#[inline(always)]
fn across_any(source: View, weights: &Weights, origin: usize, out: &mut [u8], tiles: &mut [Vec<u8>; 2]) {
    let width = CHANNELS * weights.len();
    let [old, new] = tiles;
    old.resize(ROWS * source.width, 0);
    new.resize(ROWS * width, 0);
    for (tile, out) in out.chunks_mut(ROWS * width).enumerate() {
        // The last tile repeats the last row.
        let rows = std::array::from_fn(|i| {
            let row = (tile * ROWS + i).min(source.rows - 1);
            &source.pixels[row * source.stride..][..source.width]
        });
        to_columns(rows, old);
        let columns = new.chunks_exact_mut(CHANNELS * ROWS);
        for ((first, weights), new) in weights.lines(origin).zip(columns) {
            weigh::<{ CHANNELS * ROWS }>(&old[first * CHANNELS * ROWS..], CHANNELS * ROWS, weights, new);
        }
        to_rows(new, width, out);
    }
}

/// The sums of `N` columns, rounded.
#[inline(always)]
fn weigh<const N: usize>(rows: &[u8], stride: usize, weights: &[i32], out: &mut [u8]) {
    let mut sums = [1 << (PRECISION - 1); N];
    for (i, &weight) in weights.iter().enumerate() {
        let row = &rows[i * stride..][..N];
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += i32::from(value) * weight;
        }
    }
    for (out, sum) in out[..N].iter_mut().zip(sums) {
        *out = (sum >> PRECISION).clamp(0, 255) as u8;
    }
}

/// Writes the bytes of 16 rows next to one another: those of the first column, then those of the second.
#[inline(always)]
fn to_columns(rows: [&[u8]; ROWS], columns: &mut [u8]) {
    let width = rows[0].len();
    let whole = width / ROWS * ROWS;
    for at in (0..whole).step_by(ROWS) {
        let mut block = [[0; ROWS]; ROWS];
        for (line, row) in block.iter_mut().zip(rows) {
            line.copy_from_slice(&row[at..at + ROWS]);
        }
        let out = &mut columns[ROWS * at..][..ROWS * ROWS];
        out.copy_from_slice(transposed(block).as_flattened());
    }
    for at in whole..width {
        for (out, row) in columns[ROWS * at..].iter_mut().zip(rows) {
            *out = row[at];
        }
    }
}

/// The opposite of [`to_columns`], for as many rows as `rows` has room for.
#[inline(always)]
fn to_rows(columns: &[u8], width: usize, rows: &mut [u8]) {
    let whole = width / ROWS * ROWS;
    for at in (0..whole).step_by(ROWS) {
        let mut block = [[0; ROWS]; ROWS];
        block.as_flattened_mut().copy_from_slice(&columns[ROWS * at..][..ROWS * ROWS]);
        for (row, line) in rows.chunks_exact_mut(width).zip(transposed(block)) {
            row[at..at + ROWS].copy_from_slice(&line);
        }
    }
    for at in whole..width {
        for (row, &value) in rows.chunks_exact_mut(width).zip(&columns[ROWS * at..]) {
            row[at] = value;
        }
    }
}

/// Each of the four rounds interleaves the first eight lines with the last eight.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(block: [[u8; ROWS]; ROWS]) -> [[u8; ROWS]; ROWS] {
    use std::arch::x86_64::{__m128i, _mm_unpackhi_epi8, _mm_unpacklo_epi8};
    use std::mem::transmute;

    // SAFETY: both types are 256 bytes, for which any values are valid; SSE2 belongs to x86-64.
    unsafe {
        let mut lines: [__m128i; ROWS] = transmute(block);
        for _ in 0..4 {
            lines = std::array::from_fn(|i| {
                let (first, second) = (lines[i / 2], lines[i / 2 + 8]);
                if i % 2 == 0 { _mm_unpacklo_epi8(first, second) } else { _mm_unpackhi_epi8(first, second) }
            });
        }
        transmute(lines)
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed(block: [[u8; ROWS]; ROWS]) -> [[u8; ROWS]; ROWS] {
    std::array::from_fn(|i| std::array::from_fn(|j| block[j][i]))
}
