use proptest::prelude::*;

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::kernel::Kernel;
use crate::kernel::Plain;

/// The ids that the tests give a piece: some fit in a slot, some do not.
fn ids_of(piece: &[u8]) -> Vec<u32> {
    let sum: u32 = piece.iter().map(|byte| u32::from(*byte)).sum();
    (0..piece.len() as u32 * (sum % 3 + 1) / 2).map(|i| (sum * 7919 + i) & 0x000F_FFFF).collect()
}

fn look_up<'a>(cache: &PieceCache, piece: Piece<'a>) -> Option<Lookup<'a>> {
    Some(match Lookup::at(piece, 0)? {
        Lookup::Short(key, _) => Lookup::Short(key, cache.short().place(key)),
        Lookup::Medium(key, _) => Lookup::Medium(key, cache.medium_place(&key)),
        Lookup::Long(piece) => Lookup::Long(piece),
    })
}

fn find(cache: &PieceCache, piece: &[u8]) -> Option<Vec<u32>> {
    let text = [piece, &[b'x'; 64]].concat();
    let lookup = look_up(cache, Piece::new(&text, 0, piece.len()))?;
    let mut ids = Vec::new();
    cache.append(&lookup, &mut ids).then_some(ids)
}

fn insert(cache: &mut PieceCache, piece: &[u8]) {
    let text = [piece, &[b'y'; 64]].concat();
    let lookup = look_up(cache, Piece::new(&text, 0, piece.len())).unwrap();
    cache.insert(&lookup, &ids_of(piece));
}

fn pieces(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|i| {
        let len = i % 40 + 1;
        let digits = i.to_string().into_bytes();
        // Pieces that differ in the first or in the last bytes only, or in their length.
        let mut piece = vec![if i % 2 == 0 { 0 } else { b'a' }; len];
        let at = if i % 3 == 0 { len.saturating_sub(digits.len()) } else { 0 };
        piece.iter_mut().skip(at).zip(digits).for_each(|(byte, digit)| *byte = digit);
        piece
    })
}

#[test]
fn what_is_found_is_what_was_put_in() {
    for bound in [1 << 14, 1 << 20, 1 << 26] {
        let mut cache = PieceCache::new(bound, 0);
        let mut found = 0;
        for (i, piece) in pieces(30_000).enumerate() {
            if i % 128 == 0 {
                cache.maintain();
            }
            insert(&mut cache, &piece);
            assert_eq!(find(&cache, &piece), Some(ids_of(&piece)), "{piece:?}");
        }
        for piece in pieces(30_000) {
            if let Some(ids) = find(&cache, &piece) {
                assert_eq!(ids, ids_of(&piece));
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
    let mut cache = PieceCache::new(bound, 0);
    let before = cache.bytes();
    // Between two calls of `maintain`, as the parts of one piece.
    for piece in pieces(300_000).filter(|piece| piece.len() <= MEDIUM) {
        insert(&mut cache, &piece);
    }
    assert!(cache.bytes() <= before + bound, "{} and {before}", cache.bytes());
    cache.maintain();
    insert(&mut cache, &[b'z'; 30]);
    assert_eq!(find(&cache, &[b'z'; 30]), Some(ids_of(&[b'z'; 30])));
}

#[test]
fn parts_have_keys_of_their_own() {
    let text = [b'a'; 100];
    let mut cache = PieceCache::new(1 << 20, 0);
    for len in [4, 12, 20] {
        let bytes = Piece::new(&text, 0, len);
        let part = Lookup::part(&cache, bytes).unwrap();
        cache.insert(&part, &[1]);
        assert!(cache.append(&part, &mut Vec::new()));
        assert!(!cache.append(&look_up(&cache, bytes).unwrap(), &mut Vec::new()));
    }
    assert!(Lookup::part(&cache, Piece::new(&text, 0, 32)).is_none());
}

#[cfg(target_arch = "x86_64")]
proptest! {
    #[test]
    fn the_kernels_do_the_same(
        text in "[ a-c\u{0}é日😀]{15,40}",
        start in 0usize..15,
        len in 1usize..=SHORT,
        mut words in any::<[u64; 8]>(),
        copies in any::<[Option<bool>; 4]>(),
    ) {
        let Kernel::Avx2(avx2) = Kernel::detect() else { return Ok(()) };
        let text = [text.as_bytes(), &[b'x'; 16]].concat();
        let key = Plain.key(bytes(&text, start), len);
        prop_assert_eq!(avx2.key(bytes(&text, start), len), key);
        for (word, copy) in words[4..].iter_mut().zip(copies) {
            *word = copy.map_or(*word, |high| if high { (key >> 64) as u64 } else { key as u64 });
        }
        let line = CacheLine(words);
        prop_assert_eq!(avx2.equal(&line, key), Plain.equal(&line, key));
        prop_assert_eq!(avx2.unpack(&[words[0], words[1]]), Plain.unpack(&[words[0], words[1]]));
    }
}
