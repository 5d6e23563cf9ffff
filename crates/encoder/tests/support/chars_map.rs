//! SentencePiece's compiled map of strings, made by the plainest of writers.

use serde_json::Value;
use tokenizers::normalizers::Precompiled;

/// Children of a node are in a block of their own.
const BLOCK: usize = 256;

/// A normalizer that puts other strings in place of some.
pub fn precompiled(entries: &[(&str, &str)]) -> Value {
    let mut units = vec![0u32; 2 * BLOCK];
    units[0] = (BLOCK as u32) << 10;
    let mut strings = String::new();
    for (from, to) in entries {
        let (mut at, mut base) = (0, BLOCK);
        for byte in from.bytes() {
            at = base ^ usize::from(byte);
            if units[at] == 0 {
                units[at] = ((at ^ units.len()) << 10) as u32 | u32::from(byte);
                units.resize(units.len() + BLOCK, 0);
            }
            base = at ^ (units[at] >> 10) as usize;
        }
        units[at] |= 1 << 8;
        units[base] = 1 << 31 | strings.len() as u32;
        strings.extend([*to, "\0"]);
    }
    let size = (size_of_val(&*units) as u32).to_le_bytes();
    let map: Vec<u8> =
        size.into_iter().chain(units.into_iter().flat_map(u32::to_le_bytes)).chain(strings.bytes()).collect();
    serde_json::to_value(Precompiled::from(&map).unwrap()).unwrap()
}

/// A map that removes, joins and spells out, in ASCII too, and has strings of several characters.
pub fn some_entries() -> Value {
    precompiled(&[
        ("\n", " "),
        ("\t", " "),
        ("\r", " "),
        ("\u{1}", ""),
        ("\u{3000}", " "),
        ("\u{200d}", ""),
        ("ﬁ", "fi"),
        ("™", "TM"),
        ("e\u{301}", "é"),
        ("ア", "あ"),
        ("B", "b"),
    ])
}
