use proptest::prelude::*;

use super::*;
use crate::layout::KEY_BYTES;
use crate::simd::lanes::Lanes;
use crate::simd::{NarrowWork, Simd};

/// The ids of a pre-token in these tests: some fit into a line, some do not.
fn ids_of(pretoken: &[u8]) -> Vec<u32> {
    let sum: u32 = pretoken.iter().map(|byte| u32::from(*byte)).sum();
    (0..pretoken.len() as u32 * (sum % 3 + 1) / 2).map(|i| (sum * 7919 + i) & 0x000F_FFFF).collect()
}

fn look_up<'a>(cache: &PretokenCache, pretoken: Pretoken<'a>) -> Option<Query<'a>> {
    Some(match Query::at(pretoken, 0)? {
        Query::Short(key, _) => Query::Short(key, cache.short().slot(key)),
        Query::Medium(key, _) => Query::Medium(key, cache.medium_slot(&key)),
        Query::Long(pretoken) => Query::Long(pretoken),
    })
}

fn find(cache: &PretokenCache, pretoken: &[u8]) -> Option<Vec<u32>> {
    let text = [pretoken, &[b'x'; 64]].concat();
    let lookup = look_up(cache, Pretoken::new(&text, 0, pretoken.len()))?;
    let mut ids = Vec::new();
    cache.append(&lookup, &mut ids).then_some(ids)
}

fn insert(cache: &mut PretokenCache, pretoken: &[u8]) {
    let text = [pretoken, &[b'y'; 64]].concat();
    let lookup = look_up(cache, Pretoken::new(&text, 0, pretoken.len())).unwrap();
    cache.insert(&lookup, &ids_of(pretoken));
}

fn pretokens(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|i| {
        let len = i % 40 + 1;
        let digits = i.to_string().into_bytes();
        // Pre-tokens that differ in the first or in the last bytes only, or in their length.
        let mut pretoken = vec![if i % 2 == 0 { 0 } else { b'a' }; len];
        let at = if i % 3 == 0 { len.saturating_sub(digits.len()) } else { 0 };
        pretoken.iter_mut().skip(at).zip(digits).for_each(|(byte, digit)| *byte = digit);
        pretoken
    })
}

#[test]
fn cache_returns_the_inserted_ids() {
    for bound in [1 << 14, 1 << 20, 1 << 26] {
        let mut cache = PretokenCache::new(bound, 0);
        let mut found = 0;
        for (i, pretoken) in pretokens(30_000).enumerate() {
            if i % 128 == 0 {
                cache.maintain();
            }
            insert(&mut cache, &pretoken);
            assert_eq!(find(&cache, &pretoken), Some(ids_of(&pretoken)), "{pretoken:?}");
        }
        for pretoken in pretokens(30_000) {
            if let Some(ids) = find(&cache, &pretoken) {
                assert_eq!(ids, ids_of(&pretoken));
                found += 1;
            }
        }
        assert!(found > if bound == 1 << 26 { 20_000 } else { 100 }, "{found} of bound {bound}");
        assert!(cache.bytes() <= bound + bound / 4 + (1 << 16), "{} of bound {bound}", cache.bytes());
    }
}

#[test]
fn a_piece_of_any_number_of_parts_stays_within_the_bound() {
    let bound = 1 << 20;
    let mut cache = PretokenCache::new(bound, 0);
    let before = cache.bytes();
    // Between two calls of `maintain`, as the parts of one pre-token.
    for pretoken in pretokens(300_000).filter(|pretoken| pretoken.len() <= MEDIUM) {
        insert(&mut cache, &pretoken);
    }
    assert!(cache.bytes() <= before + bound, "{} and {before}", cache.bytes());
    cache.maintain();
    insert(&mut cache, &[b'z'; 30]);
    assert_eq!(find(&cache, &[b'z'; 30]), Some(ids_of(&[b'z'; 30])));
}

#[test]
fn parts_have_keys_of_their_own() {
    let text = [b'a'; 100];
    let mut cache = PretokenCache::new(1 << 20, 0);
    for len in [4, 12, 20] {
        let bytes = Pretoken::new(&text, 0, len);
        let part = Query::part(&cache, bytes).unwrap();
        cache.insert(&part, &[1]);
        assert!(cache.append(&part, &mut Vec::new()));
        assert!(!cache.append(&look_up(&cache, bytes).unwrap(), &mut Vec::new()));
    }
    assert!(Query::part(&cache, Pretoken::new(&text, 0, 32)).is_none());
}

/// The key of a pre-token, which words of a line equal it, and the ids of the line's first value.
#[derive(Clone, Copy)]
struct Probes<'a> {
    bytes: &'a [u8; KEY_BYTES],
    len: usize,
    line: &'a CacheLine,
}

impl NarrowWork for Probes<'_> {
    type Output = (ShortKey, usize, [u32; 8]);

    #[inline(always)]
    fn run(self, simd: impl Probe + Lanes) -> Self::Output {
        let key = simd.key(self.bytes, self.len);
        let [one, two, ..] = self.line.0;
        (key, Probe::equal(simd, self.line, key), simd.unpack(&[one, two]))
    }
}

proptest! {
    #[test]
    fn the_kernels_do_the_same(
        text in "[ a-c\u{0}é日😀]{15,40}",
        start in 0usize..15,
        len in 1usize..=SHORT,
        words in any::<[u64; 8]>(),
        copies in any::<[Option<bool>; 4]>(),
    ) {
        let text = [text.as_bytes(), &[b'x'; 16]].concat();
        let mut line = CacheLine(words);
        let key = Simd::Scalar.run_narrow(Probes { bytes: bytes(&text, start), len, line: &line }).0;
        for (word, copy) in line.0[4..].iter_mut().zip(copies) {
            *word = copy.map_or(*word, |high| if high { (key >> 64) as u64 } else { key as u64 });
        }
        let probes = Probes { bytes: bytes(&text, start), len, line: &line };
        for simd in Simd::all() {
            prop_assert_eq!(simd.run_narrow(probes), Simd::Scalar.run_narrow(probes));
        }
    }
}
