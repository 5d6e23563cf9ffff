//! The inner loops of libjpeg-turbo as vector code for x86-64, where its own needs an assembler to build. `jpeg.c` puts
//! them in place of its C code; the pixels are the same.
//!
//! The rows of samples and pixels are plain loops, which the compiler turns into vector code.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_cvtepi16_epi32, _mm256_loadu_si256, _mm256_max_epi32,
    _mm256_min_epi32, _mm256_mullo_epi32, _mm256_packs_epi16, _mm256_packs_epi32, _mm256_permute2x128_si256,
    _mm256_permutevar8x32_epi32, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_slli_epi32,
    _mm256_srai_epi32, _mm256_sub_epi32, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Makes a C function that runs `$body` compiled for AVX2, or for every x86-64 where the processor lacks it.
macro_rules! row_kernel {
    ($(#[$doc:meta])* $name:ident, $body:ident($($argument:ident: $type:ty),*)) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) {
            #[target_feature(enable = "avx2")]
            unsafe fn with_avx2($($argument: $type),*) {
                // SAFETY: see the function called.
                unsafe { $body($($argument),*) }
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                unsafe { with_avx2($($argument),*) }
            } else {
                // SAFETY: see the function called.
                unsafe { $body($($argument),*) }
            }
        }
    };
}

row_kernel! {
    /// A row of pixels from their luma and the differences of blue and red.
    gristmill_jpeg_to_rgb, to_rgb(luma: *const u8, blue: *const u8, red: *const u8, pixels: *mut u8, width: usize)
}
row_kernel! {
    /// A row of samples (three or more) at twice the width, each interpolated from the two nearest.
    gristmill_jpeg_widen, widen(samples: *const u8, wide: *mut u8, width: usize)
}
row_kernel! {
    /// One of two rows of samples at twice the width and height, each interpolated from the four nearest.
    gristmill_jpeg_enlarge, enlarge(near: *const u8, far: *const u8, wide: *mut u8, width: usize)
}

/// The rule of JFIF, in 16 binary places.
#[inline(always)]
unsafe fn to_rgb(luma: *const u8, blue: *const u8, red: *const u8, pixels: *mut u8, width: usize) {
    const HALF: i32 = 1 << 15;
    // SAFETY: libjpeg gives rows of `width` samples and room for as many pixels.
    let (luma, blue, red) =
        unsafe { (from_raw_parts(luma, width), from_raw_parts(blue, width), from_raw_parts(red, width)) };
    // SAFETY: as above.
    let pixels = unsafe { from_raw_parts_mut(pixels, 3 * width) };
    for (((pixel, luma), blue), red) in pixels.chunks_exact_mut(3).zip(luma).zip(blue).zip(red) {
        let (luma, blue, red) = (i32::from(*luma), i32::from(*blue) - 128, i32::from(*red) - 128);
        pixel[0] = (luma + ((91_881 * red + HALF) >> 16)).clamp(0, 255) as u8;
        pixel[1] = (luma + ((HALF - 22_554 * blue - 46_802 * red) >> 16)).clamp(0, 255) as u8;
        pixel[2] = (luma + ((116_130 * blue + HALF) >> 16)).clamp(0, 255) as u8;
    }
}

#[inline(always)]
unsafe fn widen(samples: *const u8, wide: *mut u8, width: usize) {
    // SAFETY: libjpeg gives a row of `width` samples and room for twice as many.
    let (samples, wide) = unsafe { (from_raw_parts(samples, width), from_raw_parts_mut(wide, 2 * width)) };
    wide[0] = samples[0];
    wide[2 * width - 1] = samples[width - 1];
    let (between, _) = wide[1..].as_chunks_mut::<2>();
    for (pair, samples) in between.iter_mut().zip(samples.windows(2)) {
        let (left, right) = (u16::from(samples[0]), u16::from(samples[1]));
        *pair = [((3 * left + right + 2) >> 2) as u8, ((3 * right + left + 1) >> 2) as u8];
    }
}

#[inline(always)]
unsafe fn enlarge(near: *const u8, far: *const u8, wide: *mut u8, width: usize) {
    // SAFETY: libjpeg gives rows of `width` samples and room for twice as many.
    let (near, far, wide) = unsafe {
        (from_raw_parts(near, width), from_raw_parts(far, width), from_raw_parts_mut(wide, 2 * width))
    };
    let sum = |near: u8, far: u8| 3 * u16::from(near) + u16::from(far);
    wide[0] = ((4 * sum(near[0], far[0]) + 8) >> 4) as u8;
    wide[2 * width - 1] = ((4 * sum(near[width - 1], far[width - 1]) + 7) >> 4) as u8;
    let (between, _) = wide[1..].as_chunks_mut::<2>();
    for (pair, (near, far)) in between.iter_mut().zip(near.windows(2).zip(far.windows(2))) {
        let (left, right) = (sum(near[0], far[0]), sum(near[1], far[1]));
        *pair = [((3 * left + right + 7) >> 4) as u8, ((3 * right + left + 8) >> 4) as u8];
    }
}

/// Eight rows or columns of 8 numbers.
type Block = [__m256i; 8];

/// The inverse transform (`JDCT_ISLOW`) of 64 coefficients, each times its factor, into 8 rows of 8 samples that begin
/// at `column`. Without AVX2 nothing is written, and the result is false.
#[unsafe(no_mangle)]
unsafe extern "C" fn gristmill_jpeg_transform(
    coefficients: *const i16,
    factors: *const i32,
    rows: *const *mut u8,
    column: usize,
) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: libjpeg gives 64 coefficients and factors, and the processor has AVX2.
    let samples = unsafe { transform(&*coefficients.cast(), &*factors.cast()) };
    for (row, samples) in samples.as_flattened().iter().enumerate() {
        // SAFETY: libjpeg gives 8 rows with room for 8 samples from the column on.
        unsafe { (*rows.add(row)).add(column).cast::<[u8; 8]>().write_unaligned(*samples) };
    }
    true
}

/// Numbers are cut to 16 bits where libjpeg-turbo's vector code does so, which is in Pillow's wheels. Damaged files
/// alone have larger ones.
#[target_feature(enable = "avx2")]
fn transform(coefficients: &[[i16; 8]; 8], factors: &[[i32; 8]; 8]) -> [[[u8; 8]; 4]; 2] {
    let columns: Block = std::array::from_fn(|row| {
        // SAFETY: each row has the size of the vector that is loaded.
        let (coefficients, factors) = unsafe {
            (
                _mm_loadu_si128((&raw const coefficients[row]).cast()),
                _mm256_loadu_si256((&raw const factors[row]).cast()),
            )
        };
        cut(_mm256_mullo_epi32(_mm256_cvtepi16_epi32(coefficients), factors))
    });
    let is_flat = coefficients[1..].iter().all(|row| *row == [0; 8]);
    let columns = if is_flat { [cut(_mm256_slli_epi32::<2>(columns[0])); 8] } else { inverse::<11>(columns) };
    let rows = transposed(inverse::<18>(transposed(columns)));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    std::array::from_fn(|half| {
        let [a, b, c, d] = std::array::from_fn(|row| rows[4 * half + row]);
        let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let samples = _mm256_xor_si256(_mm256_permutevar8x32_epi32(packed, order), _mm256_set1_epi8(-128));
        // SAFETY: both types have 32 bytes, and any bytes are samples.
        unsafe { std::mem::transmute::<__m256i, [[u8; 8]; 4]>(samples) }
    })
}

/// One dimension of the inverse transform, by the algorithm of Loeffler, Ligtenberg and Moschytz that libjpeg uses. Its
/// factors have 13 binary places; `PLACES` are rounded off, and results beyond 16 bits become the nearest number.
#[target_feature(enable = "avx2")]
fn inverse<const PLACES: i32>(block: Block) -> Block {
    let (add, sub) = (|a, b| _mm256_add_epi32(a, b), |a, b| _mm256_sub_epi32(a, b));
    let times = |a, factor| _mm256_mullo_epi32(a, _mm256_set1_epi32(factor));
    let half = _mm256_set1_epi32(1 << (PLACES - 1));
    let whole = |a| add(_mm256_slli_epi32::<13>(cut(a)), half);
    let [b0, b1, b2, b3, b4, b5, b6, b7] = block;

    let both = times(add(b2, b6), 4_433);
    let (low, high) = (sub(both, times(b6, 15_137)), add(both, times(b2, 6_270)));
    let (sum, difference) = (whole(add(b0, b4)), whole(sub(b0, b4)));
    let even = [add(sum, high), add(difference, low), sub(difference, low), sub(sum, high)];

    let (first, second) = (cut(add(b3, b7)), cut(add(b1, b5)));
    let both = times(add(first, second), 9_633);
    let (first, second) = (sub(both, times(first, 16_069)), sub(both, times(second, 3_196)));
    let (outer, inner) = (times(add(b1, b7), 7_373), times(add(b3, b5), 20_995));
    let odd = [
        add(sub(times(b1, 12_299), outer), second),
        add(sub(times(b3, 25_172), inner), first),
        add(sub(times(b5, 16_819), inner), second),
        add(sub(times(b7, 2_446), outer), first),
    ];
    std::array::from_fn(|at| {
        let (even, odd) = (even[at.min(7 - at)], odd[at.min(7 - at)]);
        let sum = _mm256_srai_epi32::<PLACES>(if at < 4 { add(even, odd) } else { sub(even, odd) });
        let most = _mm256_min_epi32(sum, _mm256_set1_epi32(i16::MAX.into()));
        _mm256_max_epi32(most, _mm256_set1_epi32(i16::MIN.into()))
    })
}

/// The low 16 bits of numbers, with their sign.
#[target_feature(enable = "avx2")]
fn cut(numbers: __m256i) -> __m256i {
    _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(numbers))
}

#[target_feature(enable = "avx2")]
fn transposed(block: Block) -> Block {
    let pairs: Block = std::array::from_fn(|at| {
        let (a, b) = (block[at & !1], block[at | 1]);
        if at % 2 == 0 { _mm256_unpacklo_epi32(a, b) } else { _mm256_unpackhi_epi32(a, b) }
    });
    let fours: Block = std::array::from_fn(|at| {
        let (a, b) = (pairs[(at & 4) + at % 4 / 2], pairs[(at & 4) + at % 4 / 2 + 2]);
        if at % 2 == 0 { _mm256_unpacklo_epi64(a, b) } else { _mm256_unpackhi_epi64(a, b) }
    });
    std::array::from_fn(|at| {
        let (a, b) = (fours[at % 4], fours[at % 4 + 4]);
        if at < 4 { _mm256_permute2x128_si256::<0x20>(a, b) } else { _mm256_permute2x128_si256::<0x31>(a, b) }
    })
}
