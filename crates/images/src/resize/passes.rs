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
    down_by::<Portable>(source, weights, origin, out);
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
    across_by::<Portable>(source, weights, origin, out, tiles);
}

/// Adds up neighbouring columns.
trait Kernel {
    /// Writes the rounded sums of `8 * V` columns. `rows` has `stride` bytes from one row to the next.
    fn weigh<const V: usize>(rows: &[u8], stride: usize, weights: &[i32], out: &mut [[u8; 8]; V]);
}

/// The code that every compiler makes vectors of.
struct Portable;

impl Kernel for Portable {
    #[inline(always)]
    fn weigh<const V: usize>(rows: &[u8], stride: usize, weights: &[i32], out: &mut [[u8; 8]; V]) {
        let mut sums = [[HALF; 8]; V];
        for (i, &weight) in weights.iter().enumerate() {
            let row = &rows[i * stride..][..8 * V];
            for (sum, &value) in sums.as_flattened_mut().iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        for (out, sum) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            *out = rounded(*sum);
        }
    }
}

/// Rust has no stable vectors of its own, and keeps the sums of the loop above in memory: half as fast.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_packs_epi32, _mm_packus_epi16, _mm256_add_epi32,
        _mm256_castsi256_si128, _mm256_cvtepu8_epi32, _mm256_extracti128_si256, _mm256_mullo_epi32,
        _mm256_set1_epi32, _mm256_srai_epi32,
    };

    use super::{HALF, Kernel, PRECISION, View, Weights, across_by, down_by};

    #[target_feature(enable = "avx2")]
    pub fn down(source: View, weights: &Weights, origin: usize, out: &mut [u8]) {
        down_by::<Avx2>(source, weights, origin, out);
    }

    #[target_feature(enable = "avx2")]
    pub fn across(source: View, weights: &Weights, origin: usize, out: &mut [u8], tiles: &mut [Vec<u8>; 2]) {
        across_by::<Avx2>(source, weights, origin, out, tiles);
    }

    struct Avx2;

    impl Kernel for Avx2 {
        #[inline(always)]
        fn weigh<const V: usize>(rows: &[u8], stride: usize, weights: &[i32], out: &mut [[u8; 8]; V]) {
            // SAFETY: only `down` and `across` of this module use this kernel, for which AVX2 was detected.
            unsafe {
                let mut sums = [_mm256_set1_epi32(HALF); V];
                for (i, &weight) in weights.iter().enumerate() {
                    let (row, _) = rows[i * stride..][..8 * V].as_chunks();
                    let weight = _mm256_set1_epi32(weight);
                    for (sum, &bytes) in sums.iter_mut().zip(row) {
                        let values = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_ne_bytes(bytes)));
                        let product = _mm256_mullo_epi32(values, weight);
                        *sum = _mm256_add_epi32(*sum, product);
                    }
                }
                for (out, sum) in out.iter_mut().zip(sums) {
                    let sum = _mm256_srai_epi32::<{ PRECISION as i32 }>(sum);
                    // Both clamp.
                    let short =
                        _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                    *out = _mm_cvtsi128_si64(_mm_packus_epi16(short, short)).to_ne_bytes();
                }
            }
        }
    }
}

/// Added to a sum, it rounds.
const HALF: i32 = 1 << (PRECISION - 1);

#[inline(always)]
fn rounded(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

#[inline(always)]
fn down_by<K: Kernel>(source: View, weights: &Weights, origin: usize, out: &mut [u8]) {
    let View { pixels, stride, width, .. } = source;
    for ((first, weights), out) in weights.lines(origin).zip(out.chunks_exact_mut(width)) {
        let rows = &pixels[first * stride..];
        let (blocks, rest) = out.as_chunks_mut::<8>();
        let (large, small) = blocks.as_chunks_mut::<8>();
        let start = 64 * large.len();
        for (i, out) in large.iter_mut().enumerate() {
            K::weigh(&rows[64 * i..], stride, weights, out);
        }
        for (i, out) in small.iter_mut().enumerate() {
            K::weigh(&rows[start + 8 * i..], stride, weights, std::array::from_mut(out));
        }
        let start = start + 8 * small.len();
        for (i, out) in rest.iter_mut().enumerate() {
            let values = rows[start + i..].iter().step_by(stride);
            *out = rounded(
                values.zip(weights).fold(HALF, |sum, (&value, weight)| sum + i32::from(value) * weight),
            );
        }
    }
}

#[inline(always)]
fn across_by<K: Kernel>(
    source: View,
    weights: &Weights,
    origin: usize,
    out: &mut [u8],
    tiles: &mut [Vec<u8>; 2],
) {
    const COLUMN: usize = CHANNELS * ROWS;
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
        let columns = new.as_chunks_mut::<8>().0.as_chunks_mut::<{ COLUMN / 8 }>().0;
        for ((first, weights), new) in weights.lines(origin).zip(columns) {
            K::weigh(&old[first * COLUMN..], COLUMN, weights, new);
        }
        to_rows(new, width, out);
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

    type Pairs = [[__m128i; 2]; ROWS / 2];

    // A loop over the pairs would keep them in memory.
    #[inline(always)]
    fn interleaved(lines: Pairs) -> Pairs {
        let zip = |i: usize, j: usize| {
            let (first, last) = (lines[i][j], lines[i + 4][j]);
            // SAFETY: SSE2 belongs to x86-64.
            unsafe { [_mm_unpacklo_epi8(first, last), _mm_unpackhi_epi8(first, last)] }
        };
        [zip(0, 0), zip(0, 1), zip(1, 0), zip(1, 1), zip(2, 0), zip(2, 1), zip(3, 0), zip(3, 1)]
    }

    // SAFETY: both types are 256 bytes, for which any values are valid.
    let lines = unsafe { transmute::<[[u8; ROWS]; ROWS], Pairs>(block) };
    let columns = interleaved(interleaved(interleaved(interleaved(lines))));
    // SAFETY: as above.
    unsafe { transmute::<Pairs, [[u8; ROWS]; ROWS]>(columns) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed(block: [[u8; ROWS]; ROWS]) -> [[u8; ROWS]; ROWS] {
    std::array::from_fn(|i| std::array::from_fn(|j| block[j][i]))
}
