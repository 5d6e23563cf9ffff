//! The bit layouts that several files rely on.
//!
//! An *id* has 20 bits ([`ID_BITS`]). A *packed value* holds the ids of a pre-token in words of 64 bits: three ids in a
//! word, of which the first also holds their number.
//!
//! ```text
//!         63      60 59           40 39           20 19            0
//!        +----------+---------------+---------------+---------------+
//! few    |  count   |   third id    |   second id   |   first id    |   first word, count 0 to 14
//!        |  unused  |   sixth id    |   fifth id    |   fourth id   |   second word, and so on
//!        +----------+---------------+-------+-------+---------------+
//! many   |    15    |    number of ids      |  number of the first  |   the ids are in `spilled` blocks of eight
//!        +----------+------- 28 bits -------+--- block, 32 bits ----+
//! none   |  all bits are one, and the second word holds a slot      |   a pre-token that the cache lacks
//!        +----------------------------------------------------------+
//! ```
//!
//! The *key* of a pre-token is its bytes, zeros up to the last byte of the key, and in that byte the length with a tag.
//! No UTF-8 text contains a byte from 0xF8 on, so the first eight bytes of another key never look like a tiny one.
//!
//! ```text
//! byte    0              6   7     8             14   15
//!        +-----------------+-----+------------------+-----+
//! tiny   |  1 to 7 bytes   | tag |    the same      | tag |    tag: F8 + length, so the two words are equal
//!        +-----------------+-----+------------------+-----+
//! short  |         8 to 15 bytes                    | tag |    tag: length
//!        +------------------------------------------+-----+        +-----+
//! medium |         16 to 31 bytes, in a key of 32 bytes      ...   | tag |
//!        +------------------------------------------+-----+        +-----+
//! part   |  part of a pre-token, as short or medium | tag |    tag: 80 + length
//!        +------------------------------------------+-----+
//! ```
//!
//! An added token among pre-tokens is a tiny one, spelled in bytes that no text contains: FF, and its id in three bytes.
//!
//! A *cache line* holds four words of values, then four words of keys. Tiny pre-tokens with up to three ids take one
//! word of each, short ones and those with up to six ids two, medium ones all four.
//!
//! ```text
//! word    0    1    2    3    4    5    6    7
//!        +----+----+----+----+----+----+----+----+
//!        | v0 | v1 | v2 | v3 | k0 | k1 | k2 | k3 |
//!        +----+----+----+----+----+----+----+----+
//! ```
//!
//! The table of merges maps a *pair* of symbols to a rank. While a pre-token is merged, the rank and index of a pair are
//! one number, whose smallest is the next merge.
//!
//! ```text
//!            63            44 43             24 23            0                 31        6 5        0
//!           +----------------+-----------------+---------------+               +-----------+----------+
//! entry     |  left symbol   |  right symbol   |     rank      |    merge key  |   rank    |  index   |
//!           +----------------+-----------------+---------------+               +-----------+----------+
//! ```

/// Bits of an id.
pub const ID_BITS: u32 = 20;
/// All ids are below this. The last one is reserved for "no neighbour" while merging.
pub const MAX_IDS: u32 = 1 << ID_BITS;

/// Ids in a word of a packed value.
pub const IDS_PER_WORD: usize = 3;
/// The most ids in two words.
pub const FEW: usize = 2 * IDS_PER_WORD;
/// The position of the number of ids in the first word.
pub const COUNT_SHIFT: u32 = 60;
/// In place of the number of ids: they are in spilled blocks.
pub const SPILLED: usize = 15;
/// The position of the number of spilled ids.
pub const SPILLED_COUNT_SHIFT: u32 = 32;

/// The packed ids of a tiny or short pre-token.
pub type Value = [u64; 2];

/// Words of values in a cache line, and as many words of keys after them.
pub const LINE_WORDS: usize = 4;

/// The longest tiny pre-token, in bytes.
pub const TINY: usize = 7;
/// The longest short pre-token.
pub const SHORT: usize = 15;
/// The longest medium pre-token.
pub const MEDIUM: usize = 31;

/// The key of a tiny or short pre-token.
pub type ShortKey = u128;
/// The bytes of a text that a short key is made from, some of them after the pre-token's end.
pub const KEY_BYTES: usize = size_of::<ShortKey>();
/// The key of a medium pre-token.
pub type MediumKey = [u64; 4];

/// The tag of a tiny pre-token's key, beside its length.
pub const TINY_TAG: u8 = 0xF8;
/// The tag of a key of a part of a pre-token, which may have other ids than the same bytes as a pre-token.
pub const PART_TAG: u8 = 0x80;
/// The bits of a key's last byte that tell a tiny pre-token (all set) from others (none set).
pub const KIND_BITS: u8 = 0x70;
/// Not the key of any pre-token.
pub const NO_KEY: ShortKey = ShortKey::MAX;

/// The masks of a short key's first bytes, by their number.
pub static FIRST_BYTES: [ShortKey; SHORT + 1] = {
    let mut masks = [0; SHORT + 1];
    let mut len = 1;
    while len <= SHORT {
        masks[len] = ShortKey::MAX >> (128 - 8 * len);
        len += 1;
    }
    masks
};

/// The tags of keys, by the length of the pre-token; of a medium key in its second half.
pub static TAGS: [ShortKey; MEDIUM + 1] = {
    let mut tags = [0; MEDIUM + 1];
    let mut len = 1;
    while len <= MEDIUM {
        tags[len] = (len as ShortKey) << 120;
        if len <= TINY {
            let tag = (TINY_TAG as usize | len) as ShortKey;
            tags[len] = tag << 120 | tag << 56;
        }
        len += 1;
    }
    tags
};

/// The first byte of an added token among pre-tokens; three bytes of its id follow.
pub const ADDED_TOKEN: u8 = 0xFF;

/// The low bits of a pair's entry, which hold its rank.
pub const RANK_BITS: u32 = 24;

/// The most symbols of a pre-token that is merged in an array.
pub const MAX_SYMBOLS: usize = 64;
/// The low bits of a merge key, which hold the index of the pair's first symbol.
pub const INDEX_BITS: u32 = MAX_SYMBOLS.trailing_zeros();

const _: () = {
    assert!(IDS_PER_WORD as u32 * ID_BITS <= COUNT_SHIFT, "a count lies above three ids");
    assert!(SPILLED == u64::MAX as usize >> COUNT_SHIFT, "the largest count stands for spilled ids");
    assert!(LINE_WORDS * IDS_PER_WORD < SPILLED, "a line of values holds fewer ids than that");
    assert!(2 * LINE_WORDS == 64 / size_of::<u64>(), "a cache line has 64 bytes");
    assert!(size_of::<MediumKey>() == MEDIUM + 1 && KEY_BYTES == SHORT + 1, "a key ends with its tag");
    assert!(
        TINY_TAG as usize & TINY == 0 && (TINY_TAG as usize | TINY) == 0xFF,
        "tag and length share no bits"
    );
    assert!(
        TINY_TAG & KIND_BITS == KIND_BITS && SHORT & KIND_BITS as usize == 0,
        "the kind bits tell them apart"
    );
    assert!(PART_TAG as usize & MEDIUM == 0 && PART_TAG & KIND_BITS == 0, "a part is no tiny pre-token");
    assert!(ID_BITS <= 24, "three bytes hold an id");
    assert!(2 * ID_BITS + RANK_BITS == 64, "two symbols and a rank are a word");
    assert!(RANK_BITS + 1 + INDEX_BITS < 32, "a merge key has room for ranks, and for one above them");
};
