//! Headers: ustar and older ones, GNU's long names, and pax.

use std::ops::Range;

pub(super) const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const TARGET: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..263;
const PREFIX: Range<usize> = 345..500;

/// A header of one block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    /// As it is written: not all kinds have data.
    pub(super) size: u64,
    /// The name of the file that it stands for, if it is a link.
    pub(super) target: Vec<u8>,
}

impl Header {
    /// The error says what was expected and found.
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Self, String> {
        // The checksum's own bytes count as spaces.
        let rest = block[..CHECKSUM.start].iter().chain(&block[CHECKSUM.end..]);
        let sum: u64 = 8 * u64::from(b' ') + rest.map(|&byte| u64::from(byte)).sum::<u64>();
        if number(&block[CHECKSUM]) != Some(sum) {
            return Err("expected the header of a member, found another checksum".to_owned());
        }
        let size = number(&block[SIZE])
            .ok_or_else(|| "expected the size of a member, found no number".to_owned())?;
        let mut name = until_nul(&block[NAME]).to_vec();
        let prefix = until_nul(&block[PREFIX]);
        if &block[MAGIC] == b"ustar\0" && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        Ok(Self { kind: block[KIND], name, size, target: until_nul(&block[TARGET]).to_vec() })
    }
}

/// Whether a file begins with a header that says that it is a tar: no JSON holds the byte NUL.
pub(in crate::format) fn is_header(head: &[u8]) -> bool {
    let magic = head.get(MAGIC.start..MAGIC.end + 2);
    magic.is_some_and(|magic| magic.starts_with(b"ustar\0") || magic == b"ustar  \0")
}

/// Facts about the next member from the header of pax.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) target: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// The member is sparse: its data is not its content.
    pub(super) is_sparse: bool,
}

impl Pax {
    /// Adds records of `length key=value\n`. None if they are not valid.
    pub(super) fn add(&mut self, mut records: &[u8]) -> Option<()> {
        while !records.is_empty() {
            let digits = records.iter().position(|&byte| byte == b' ')?;
            let length: usize = std::str::from_utf8(&records[..digits]).ok()?.parse().ok()?;
            let record = records.get(digits + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|&byte| byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ => self.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
            records = &records[length..];
        }
        Some(())
    }
}

/// A field as an integer: octal digits, or after a byte 0x80 big-endian bytes, for members of 8 GiB and more.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut number = u64::from(field[0] & 0x7f);
        for &byte in &field[1..] {
            number = number.checked_mul(256)?.checked_add(u64::from(byte))?;
        }
        return Some(number);
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0_u64, |number, &digit| match digit {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        let cases: [(&[u8], Option<u64>); 8] = [
            (b"00000000017\0", Some(15)),
            (b"   17 \0     ", Some(15)),
            (b"\0\0\0\0\0\0\0\0\0\0\0\0", Some(0)),
            (b"777777777777", Some((1 << 36) - 1)),
            (b"\x80\0\0\0\0\0\0\x02\0\0\0\x01", Some((2 << 32) + 1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"0000000008\0\0", None),
            (b"1 7\0\0\0\0\0\0\0\0\0", None),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn pax_records_must_be_valid() {
        let mut pax = Pax::default();
        pax.add(b"21 path=d/\xc3\xbc.x=\n.txt\n10 size=7\n16 mtime=123.25\n").unwrap();
        let path = Some(b"d/\xc3\xbc.x=\n.txt".to_vec());
        assert_eq!(pax, Pax { path, target: None, size: Some(7), is_sparse: false });
        pax.add(b"22 GNU.sparse.major=1\n").unwrap();
        assert!(pax.is_sparse);
        let invalid: [&[u8]; 8] = [
            b"x",
            b" ",
            b"8 path=a\n",
            b"11 path=a\nb",
            b"7 path\n",
            b"2 ",
            b"10 size=x\n",
            b"99999999999999999999 a=b\n",
        ];
        for records in invalid {
            assert_eq!(Pax::default().add(records), None, "{records:?}");
        }
    }
}
