//! How tokens spell what they stand for: byte-level tokenizers bytes, printable Latin-1 characters as themselves and the
//! others in order from U+0100 on; SentencePiece-style ones spaces.

/// Bytes that do not spell themselves.
const OTHERS: usize = 68;
const FIRST_OTHER: u32 = 0x100;

const fn spells_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for each byte, and the bytes that the characters from U+0100 on stand for.
const TABLES: ([char; 256], [u8; OTHERS]) = {
    let (mut characters, mut others) = (['\0'; 256], [0; OTHERS]);
    let (mut byte, mut count) = (0, 0);
    while byte < 256 {
        characters[byte] = byte as u8 as char;
        if !spells_itself(byte as u8) {
            // Below the surrogates, so never None.
            characters[byte] = match char::from_u32(FIRST_OTHER + count as u32) {
                Some(other) => other,
                None => '\0',
            };
            others[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    (characters, others)
};

/// The character that stands for each byte.
pub static CHARACTERS: [char; 256] = TABLES.0;
static BYTES: [u8; OTHERS] = TABLES.1;

/// The bytes that a token spells; none if it contains a character that spells no byte.
pub fn bytes(token: &str) -> Option<Vec<u8>> {
    let byte = |c: char| match u8::try_from(c) {
        Ok(byte) => spells_itself(byte).then_some(byte),
        Err(_) => BYTES.get((u32::from(c) - FIRST_OTHER) as usize).copied(),
    };
    token.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_spelled_and_read_back() {
        let token: String = CHARACTERS.iter().collect();
        assert_eq!(bytes(&token), Some((0..=255).collect()));
        assert_eq!(CHARACTERS[usize::from(b' ')], 'Ġ');
        assert_eq!(CHARACTERS[usize::from(b'\n')], 'Ċ');
        for other in [' ', '\u{AD}', '\u{144}', '日'] {
            assert_eq!(bytes(&other.to_string()), None);
        }
    }
}
