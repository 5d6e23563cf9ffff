//! The pages of a column chunk, each bounded before its memory is taken.
//!
//! The library that decodes pages would inflate them as far as they go, and takes memory for as many values as a header
//! claims. So pages are read and checked here.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::Crc;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};

use super::deltas::{self, Lengths};
use super::footer::Chunk;
use super::thrift::{Fault, Thrift};
use crate::codec::{BlockDecoder, read_failed};
use crate::store::{Source, read_exact_at};

/// A file, as the pages of its columns share it.
pub(super) struct PageSource {
    source: SharedSource,
    /// The largest accepted page, inflated.
    limit: u64,
    stop: Arc<AtomicBool>,
}

type SharedSource = Arc<Mutex<Box<dyn Source>>>;

/// The bytes of a header that are read first. Some writers put whole values into it as statistics.
const HEADER_BYTES: usize = 512;
/// Memory that the library takes for each entry of a dictionary, and for each value of a page of prefixes that it
/// skips.
const VALUE_BYTES: u64 = 32;
/// Memory that it takes for each value of a page that holds the lengths of all values first.
const LENGTH_BYTES: u64 = 8;
/// Memory that it takes for each value of a list, as long as the row is read.
const ELEMENT_BYTES: u64 = 64;

impl PageSource {
    /// Reading fails once another thread sets `stop`.
    pub(super) fn new(source: Box<dyn Source>, limit: u64, stop: &Arc<AtomicBool>) -> Self {
        Self { source: Arc::new(Mutex::new(source)), limit, stop: Arc::clone(stop) }
    }

    /// The largest accepted page, inflated.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// The pages of a column chunk. Data pages that are read take their size from `row_budget`.
    pub(super) fn pages(&self, chunk: Chunk, row_budget: &Arc<AtomicU64>) -> Pages {
        Pages {
            source: Arc::clone(&self.source),
            chunk,
            limit: self.limit,
            row_budget: Arc::clone(row_budget),
            offset: chunk.start,
            values_left: chunk.count,
            peeked: None,
            dictionary: None,
            decoder: BlockDecoder::default(),
            header: Vec::new(),
            stop: Arc::clone(&self.stop),
        }
    }
}

/// Reads the pages of a column chunk in order.
pub(super) struct Pages {
    source: SharedSource,
    chunk: Chunk,
    /// The largest accepted page, inflated.
    limit: u64,
    /// How much the pages of one row may still take.
    row_budget: Arc<AtomicU64>,
    /// Offset of the next page.
    offset: u64,
    /// How many values that page and those after it have.
    values_left: u64,
    /// Its header, if that was read.
    peeked: Option<Header>,
    /// A dictionary that was passed over.
    dictionary: Option<(u64, Header)>,
    decoder: BlockDecoder,
    header: Vec<u8>,
    stop: Arc<AtomicBool>,
}

/// The header of a page.
#[derive(Debug, Clone, Copy, Default)]
struct Header {
    /// Bytes that the header itself takes.
    length: u64,
    kind: Kind,
    inflated: u32,
    compressed: u32,
    crc: Option<u32>,
    values: u32,
    encoding: i64,
    definition_levels: i64,
    repetition_levels: i64,
    nulls: u32,
    rows: u32,
    definition_bytes: u32,
    repetition_bytes: u32,
    is_plain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    Data,
    DataV2,
    Dictionary,
    #[default]
    Other,
}

/// A fault that was found here, on its way through the library.
#[derive(Debug)]
struct Found(String);

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Found {}

/// The message about an error of a column's reader.
pub(super) fn describe(error: &ParquetError) -> String {
    if let ParquetError::External(error) = error
        && let Some(Found(reason)) = error.downcast_ref()
    {
        return reason.clone();
    }
    match error {
        ParquetError::NYI(what) => super::unknown(what),
        _ => super::corrupt(&error.to_string()),
    }
}

impl Pages {
    /// The header of the next page that has values. None at the end of the chunk.
    fn peek(&mut self) -> Result<Option<Header>, String> {
        while self.peeked.is_none() {
            let Some(header) = self.next_header()? else { return Ok(None) };
            // An index is not read, and the library takes a page without values for the end.
            if header.kind == Kind::Dictionary || header.kind != Kind::Other && header.values > 0 {
                self.peeked = Some(header);
            } else {
                self.pass(&header);
            }
        }
        Ok(self.peeked)
    }

    /// Continues behind a page.
    fn pass(&mut self, header: &Header) {
        self.offset += header.length + u64::from(header.compressed);
        self.values_left -= header.data_values();
        self.peeked = None;
    }

    fn next(&mut self) -> Result<Option<Page>, String> {
        let Some(header) = self.peek()? else { return Ok(None) };
        let offset = self.offset;
        self.pass(&header);
        self.page(offset, &header).map(Some)
    }

    /// The header of the page at `offset`. None at the end of the chunk.
    fn next_header(&mut self) -> Result<Option<Header>, String> {
        if self.stop.load(Ordering::Relaxed) {
            return Err("reading was stopped".to_owned());
        }
        let left = self.chunk.end.saturating_sub(self.offset);
        let Chunk { count, .. } = self.chunk;
        if left == 0 {
            return match self.values_left {
                0 => Ok(None),
                missing => {
                    let found = count - missing;
                    Err(super::corrupt(&format!(
                        "the pages of a column chunk have {found} values in place of {count}"
                    )))
                }
            };
        }
        let left = left + self.chunk.beyond;
        let mut wanted = HEADER_BYTES as u64;
        loop {
            let length = wanted.min(left);
            self.header.resize(length as usize, 0);
            read(&self.source, self.offset, &mut self.header)?;
            match Header::parse(&self.header) {
                Ok(header) if header.length + u64::from(header.compressed) <= left => {
                    if header.data_values() > self.values_left {
                        let found =
                            format!("its column chunk has more values than the {count} of the footer");
                        return Err(corrupt(self.offset, &found));
                    }
                    return Ok(Some(header));
                }
                Err(Fault::End) if length < left && length < self.limit => wanted *= 8,
                _ => return Err(corrupt(self.offset, "its header is not valid")),
            }
        }
    }

    /// Reads a page whose header is known.
    fn page(&mut self, offset: u64, header: &Header) -> Result<Page, String> {
        let inflated = u64::from(header.inflated);
        if inflated.max(header.compressed.into()) > self.limit {
            return Err(format!(
                "expected a page of at most {} bytes, found one of {inflated} at byte {offset} of the file; write the \
                 file again with smaller pages (pyarrow: write_batch_size=16), or raise max_document_bytes=",
                self.limit
            ));
        }
        self.take_from_row(header)?;
        let mut block = vec![0; header.compressed as usize];
        read(&self.source, offset + header.length, &mut block)?;
        if let Some(expected) = header.crc {
            let mut crc = Crc::new();
            crc.update(&block);
            if crc.sum() != expected {
                return Err(corrupt(offset, "its CRC-32 is another than in its header"));
            }
        }
        let page = self.inflate(offset, header, block)?;
        self.checked(offset, header, page.into())
    }

    /// Bounds the pages that the values of one row lie in: a list may continue through many.
    fn take_from_row(&self, header: &Header) -> Result<(), String> {
        if header.kind == Kind::Dictionary {
            return Ok(());
        }
        let elements = if self.chunk.has_lists { u64::from(header.values) * ELEMENT_BYTES } else { 0 };
        let left = self.row_budget.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(elements.max(header.inflated.into())) else {
            return Err(format!(
                "expected the values of a row in pages of at most {} bytes, found more; write shorter lists, or raise \
                 max_document_bytes=",
                self.limit
            ));
        };
        self.row_budget.store(left, Ordering::Relaxed);
        Ok(())
    }

    fn inflate(&mut self, offset: u64, header: &Header, block: Vec<u8>) -> Result<Vec<u8>, String> {
        let length = header.inflated as usize;
        // Before version 3, Arrow compressed such pages and noted that it had not; their length shows it.
        let codec = self.chunk.codec.filter(|_| !header.is_plain || block.len() != length);
        let Some(codec) = codec else {
            return if block.len() == length {
                Ok(block)
            } else {
                Err(corrupt(offset, "it has another length than in its header"))
            };
        };
        // The levels of the second version lie before the compressed values.
        let levels = header.level_bytes() as usize;
        let (Some(values), true) = (block.get(levels..), levels <= length) else {
            return Err(corrupt(offset, "its levels are longer than the page"));
        };
        let mut page = vec![0; length];
        page[..levels].copy_from_slice(&block[..levels]);
        // A page of nulls has no values, and some writers none that are compressed.
        if levels < length && self.decoder.inflate(codec, values, &mut page[levels..]).is_none() {
            return Err(corrupt(offset, &format!("it is not {codec:?} data of {length} bytes inflated")));
        }
        Ok(page)
    }

    /// Checks the lengths of delta-encoded strings, for all of which the library takes memory at once.
    fn check_lengths(
        &self,
        offset: u64,
        header: &Header,
        encoding: Encoding,
        page: &[u8],
    ) -> Result<(), String> {
        let is_delta = matches!(encoding, Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY);
        if !is_delta || header.kind == Kind::Dictionary {
            return Ok(());
        }
        let levels = usize::from(self.chunk.has_lists) + usize::from(self.chunk.has_nulls);
        let start = match header.kind {
            Kind::DataV2 => Some(header.level_bytes() as usize),
            _ => after_levels(page, levels),
        };
        let values = start.and_then(|start| page.get(start..));
        match values.map(|values| deltas::check(encoding, values, header.values, self.limit)) {
            Some(Lengths::Fine) => Ok(()),
            Some(Lengths::Repeat(bytes)) => Err(format!(
                "expected a page of at most {} bytes of strings, found one of {bytes} at byte {offset} of the file; write \
                 the file again with smaller pages, or raise max_document_bytes=",
                self.limit
            )),
            Some(Lengths::Invalid) | None => Err(corrupt(offset, "the lengths of its strings are not valid")),
        }
    }

    /// A page whose numbers fit its bytes.
    fn checked(&self, offset: u64, header: &Header, buf: Bytes) -> Result<Page, String> {
        let length = buf.len() as u64;
        let Header { values: num_values, .. } = *header;
        let Some(encoding) = value_encoding(header.encoding) else {
            let Header { encoding, .. } = header;
            return Err(super::unknown(&format!(
                "encoding {encoding} of the page at byte {offset} of the file"
            )));
        };
        if header.level_bytes() > length {
            return Err(corrupt(offset, "its levels are longer than the page"));
        }
        if header.kind == Kind::Dictionary
            && self.chunk.values == Type::BYTE_ARRAY
            && length / 4 < num_values.into()
        {
            return Err(corrupt(offset, "its dictionary has more entries than bytes for them"));
        }
        let value_bytes = match (header.kind, encoding) {
            (Kind::Dictionary, _) | (_, Encoding::DELTA_BYTE_ARRAY) => VALUE_BYTES,
            _ if self.chunk.has_lists => ELEMENT_BYTES,
            (_, Encoding::DELTA_LENGTH_BYTE_ARRAY) => LENGTH_BYTES,
            _ => 0,
        };
        if u64::from(num_values) * value_bytes > self.limit {
            return Err(format!(
                "expected a page of at most {} values, found {num_values} at byte {offset} of the file; write the file again \
                 with smaller pages, or raise max_document_bytes=",
                self.limit / value_bytes
            ));
        }
        self.check_lengths(offset, header, encoding, &buf)?;
        Ok(match header.kind {
            Kind::Dictionary => {
                Page::DictionaryPage { buf, num_values, encoding: Encoding::PLAIN, is_sorted: false }
            }
            Kind::DataV2 => Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls: header.nulls,
                num_rows: header.rows,
                def_levels_byte_len: header.definition_bytes,
                rep_levels_byte_len: header.repetition_bytes,
                is_compressed: !header.is_plain,
                statistics: None,
            },
            Kind::Data | Kind::Other => Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding: level_encoding(header.definition_levels),
                rep_level_encoding: level_encoding(header.repetition_levels),
                statistics: None,
            },
        })
    }
}

/// Where the values begin that follow levels of the first version, each of which has its length before it.
fn after_levels(page: &[u8], levels: usize) -> Option<usize> {
    (0..levels).try_fold(0_usize, |start, _| {
        let length = page.get(start..start.checked_add(4)?)?;
        start.checked_add(4)?.checked_add(u32::from_le_bytes(length.try_into().ok()?) as usize)
    })
}

/// The message about a page that is not valid.
fn corrupt(offset: u64, found: &str) -> String {
    super::corrupt(&format!("{found} (the page at byte {offset} of the file)"))
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let mut header = Self::default();
        let mut page = Thrift::new(bytes);
        page.fields(|page, id, kind| {
            match id {
                1 => {
                    header.kind = match page.integer(kind)? {
                        0 => Kind::Data,
                        2 => Kind::Dictionary,
                        3 => Kind::DataV2,
                        _ => Kind::Other,
                    };
                }
                2 => header.inflated = page.size(kind)?,
                3 => header.compressed = page.size(kind)?,
                // The unsigned number, in a signed field.
                4 => header.crc = Some(page.integer(kind)? as u32),
                5 => header.parse_data(page)?,
                7 => header.parse_dictionary(page)?,
                8 => header.parse_data_v2(page)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.length = (bytes.len() - page.left()) as u64;
        Ok(header)
    }

    fn parse_data(&mut self, page: &mut Thrift<'_>) -> Result<(), Fault> {
        page.fields(|page, id, kind| {
            match id {
                1 => self.values = page.size(kind)?,
                2 => self.encoding = page.integer(kind)?,
                3 => self.definition_levels = page.integer(kind)?,
                4 => self.repetition_levels = page.integer(kind)?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    fn parse_dictionary(&mut self, page: &mut Thrift<'_>) -> Result<(), Fault> {
        page.fields(|page, id, kind| {
            match id {
                1 => self.values = page.size(kind)?,
                2 => self.encoding = page.integer(kind)?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    fn parse_data_v2(&mut self, page: &mut Thrift<'_>) -> Result<(), Fault> {
        page.fields(|page, id, kind| {
            match id {
                1 => self.values = page.size(kind)?,
                2 => self.nulls = page.size(kind)?,
                3 => self.rows = page.size(kind)?,
                4 => self.encoding = page.integer(kind)?,
                5 => self.definition_bytes = page.size(kind)?,
                6 => self.repetition_bytes = page.size(kind)?,
                7 => {
                    self.is_plain = !Thrift::boolean(kind)?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// How many values of the column chunk the page has.
    fn data_values(&self) -> u64 {
        if matches!(self.kind, Kind::Data | Kind::DataV2) { self.values.into() } else { 0 }
    }

    /// Bytes of the levels that are not compressed.
    fn level_bytes(&self) -> u64 {
        u64::from(self.definition_bytes) + u64::from(self.repetition_bytes)
    }
}

/// The encodings of values, by their number in the format.
fn value_encoding(number: i64) -> Option<Encoding> {
    Some(match number {
        0 => Encoding::PLAIN,
        2 | 8 => Encoding::RLE_DICTIONARY,
        3 => Encoding::RLE,
        5 => Encoding::DELTA_BINARY_PACKED,
        9 => Encoding::BYTE_STREAM_SPLIT,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        _ => return None,
    })
}

/// Levels are run-length encoded but in the oldest files.
fn level_encoding(number: i64) -> Encoding {
    #[expect(deprecated)]
    if number == 4 { Encoding::BIT_PACKED } else { Encoding::RLE }
}

fn read(source: &SharedSource, offset: u64, out: &mut [u8]) -> Result<(), String> {
    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
    read_exact_at(&mut **source, offset, out).map_err(|error| read_failed(&error))
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Self::next(self).map_err(passed_on)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        let header = self.peek().map_err(passed_on)?;
        Ok(header.map(|header| PageMetadata {
            num_rows: (header.kind == Kind::DataV2 && self.chunk.has_lists).then_some(header.rows as usize),
            num_levels: Some(header.values as usize),
            is_dict: header.kind == Kind::Dictionary,
        }))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        if let Some(header) = self.peek().map_err(passed_on)? {
            if header.kind == Kind::Dictionary {
                self.dictionary = Some((self.offset, header));
            }
            self.pass(&header);
        }
        Ok(())
    }

    fn supports_deferred_dictionary(&self) -> bool {
        true
    }

    fn take_deferred_dictionary(&mut self) -> ParquetResult<Option<Page>> {
        let Some((offset, header)) = self.dictionary.take() else { return Ok(None) };
        self.page(offset, &header).map(Some).map_err(passed_on)
    }
}

/// A fault that was found here, as the library passes it on.
fn passed_on(reason: String) -> ParquetError {
    ParquetError::External(Box::new(Found(reason)))
}
