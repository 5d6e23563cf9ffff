//! The reader: the records of one shard in order, each with its position.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::arrow::{ArrowReader, count_batches};
use super::ids::{ArrayReader, MegatronReader};
use super::jsonl::{self, JsonlReader};
use super::parquet::{ParquetReader, count_groups};
use super::sniff::{NOT_IDS, ids_format, sniff};
use super::tar::TarReader;
use super::{
    AfterError, Format, IdFiles, Member, Position, Projection, RawRecord, ReadError, ReadOptions, Scratch,
    json_of, located,
};
use crate::codec::{Codec, Decoder, GzipIndex};
use crate::error::{Error, Result, ShardError};
use crate::store::{Access, Shard, Source};

/// Inflated bytes requested at once.
pub(super) const CHUNK_BYTES: usize = 128 << 10;

/// Reads the records of one shard in order, whatever its format, in bounded memory: about one record and fixed buffers.
pub struct RecordReader {
    shard: Arc<str>,
    options: Arc<ReadOptions>,
    codec: Codec,
    format: Format,
    records: Records,
    /// The shard has ended or cannot be read any further.
    ended: bool,
}

/// The reader of a format. An enum, so that no call per record is dynamic.
#[expect(clippy::large_enum_variant, reason = "a lane has one, and the usual format needs no pointer")]
enum Records {
    Jsonl(JsonlReader),
    Parquet(Box<ParquetReader>),
    Arrow(Box<ArrowReader>),
    Tar(Box<TarReader>),
    Megatron(Box<MegatronReader>),
    Array(Box<ArrayReader>),
}

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, for people.
    pub kind: String,
}

/// Why a format's reader cannot return a record.
pub(super) struct Unreadable {
    /// The first record that is lost.
    pub(super) position: Position,
    pub(super) rest: AfterError,
    pub(super) reason: String,
}

/// The reader of a format, but for its next record, which is no dynamic call.
pub(super) trait Reader {
    /// Where the next record starts.
    fn position(&self) -> Position;

    /// Goes to a position that was returned earlier, before the first record is read.
    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable>;

    /// Goes to the record with this number, before the first record is read; elsewhere is the end.
    fn skip_records(&mut self, number: u64) -> Result<Found, Unreadable> {
        self.skip_to(Position { record: number, byte: 0 })
    }

    /// The columns of the file, of a format that has some.
    fn columns(&self) -> Option<Vec<Column>> {
        None
    }

    /// How many rows each row group has, of a format with row groups.
    fn row_groups(&self) -> Option<&[u64]> {
        None
    }

    /// Whether records have members of their own, which are shown in place of the keys of their JSON.
    fn has_members(&self) -> bool {
        false
    }

    /// The members of the next record.
    fn next_members(&mut self) -> Result<Option<Vec<Member>>, Unreadable> {
        Ok(None)
    }
}

/// Result of going to a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Target,
    /// No record starts at the position, for this reason.
    Elsewhere(String),
}

impl RecordReader {
    /// Opens a shard at its first record. A file that is missing or does not have the manifest's size is an
    /// [`Error::Shard`]; one that cannot be opened for lack of descriptors or memory is an [`Error::System`]. Once `stop`
    /// is set, by another thread, reading the shard fails.
    pub fn open(shard: &Shard, options: &Arc<ReadOptions>, stop: &Arc<AtomicBool>) -> Result<Self> {
        Self::of_shard(shard, options.access.open(shard, stop)?, options, stop)
    }

    /// Opens a shard at a position that [`position`](Self::position) returned earlier. Nothing before it is parsed, but
    /// of JSONL everything is inflated. A position that is not the start of that record is an [`Error::State`].
    pub fn open_at(
        shard: &Shard,
        options: &Arc<ReadOptions>,
        position: Position,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let mut reader = Self::open(shard, options, stop)?;
        // The start of a piece has no other position.
        if position != Position::default() {
            reader.skip_to(position)?;
        }
        Ok(reader)
    }

    /// Reads a shard's bytes from any source. `shard` names it in errors, and its extension says whether the bytes must
    /// be compressed.
    pub fn from_source(
        shard: &Arc<str>,
        source: Box<dyn Source>,
        options: &Arc<ReadOptions>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let shard = Shard::whole(Arc::clone(shard), source.size());
        Self::of_shard(&shard, source, options, stop)
    }

    /// Reads a shard, or a piece of one, from any source of the whole file.
    pub fn of_shard(
        shard: &Shard,
        mut source: Box<dyn Source>,
        options: &Arc<ReadOptions>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let name = shard.name();
        let lost = |reason| lost(name, reason);
        let ids =
            options.ids.as_ref().and_then(|ids| Some((ids_format(&mut *source, &shard.path, ids)?, ids)));
        let (codec, format) = match ids {
            Some((format, ids)) => {
                check_is_alone(shard, ids)?;
                (Codec::None, format)
            }
            None => sniff(&mut *source, &shard.path).map_err(lost)?,
        };
        let limit = options.max_document_bytes;
        let images = options.projection.images();
        if images.is_some_and(|images| images.are_columns) && format == Format::Tar {
            return Err(Error::Argument(format!(
                "{}: expected images in the keys of records, as in the first shard, found a tar; make a source of each kind",
                shard.path
            )));
        }
        if images.is_some_and(|images| !images.are_columns) && (codec, format) != (Codec::None, Format::Tar) {
            return Err(Error::Argument(format!(
                "{}: expected a tar that is not compressed, found {}: images are read again when their row is filled; write \
                 the shard as one",
                shard.path,
                found(codec, format)
            )));
        }
        let records = match (format, &shard.piece) {
            (Format::Jsonl, None) => {
                Records::Jsonl(JsonlReader::new(Decoder::new(codec, source, limit, stop), limit))
            }
            (Format::Jsonl, Some(piece)) => {
                let index = match codec {
                    Codec::Gzip => GzipIndex::open(&options.access.folder.join(&*shard.path), &mut *source),
                    Codec::None | Codec::Zstd => Ok(None),
                };
                let index = index.map_err(Error::Argument)?;
                let piece = Decoder::of_piece(codec, source, &piece.bytes, index.as_ref(), limit, stop);
                let (decoder, start) = piece.map_err(lost)?;
                if start.is_alone {
                    return Err(not_divisible(shard));
                }
                Records::Jsonl(JsonlReader::of_piece(decoder, &start, limit).map_err(lost)?)
            }
            (Format::Parquet, piece) => {
                let reader = ParquetReader::new(name, source, piece.as_ref(), options, stop).map_err(lost)?;
                Records::Parquet(Box::new(reader))
            }
            (Format::Arrow, piece) => {
                let reader = ArrowReader::new(name, source, piece.as_ref(), options, stop).map_err(lost)?;
                Records::Arrow(Box::new(reader))
            }
            (Format::Tar, piece) => {
                if piece.is_some() && codec != Codec::None {
                    return Err(Error::Argument(format!(
                        "split_bytes= divides {} into pieces, but it is a compressed tar: set split_bytes=0, or inflate it",
                        shard.path
                    )));
                }
                let size = (codec == Codec::None).then_some(source.size());
                let decoder = Decoder::new(codec, source, limit, stop);
                let reader = TarReader::new(decoder, size, piece.as_ref(), options).map_err(lost)?;
                Records::Tar(Box::new(reader))
            }
            (Format::Megatron, piece) => {
                let open = || {
                    let index = options.access.find(&index_of(&shard.path), stop)?;
                    let [first, second, third] = [(); 3].map(|()| options.access.open(&index, stop));
                    Ok([first?, second?, third?])
                };
                let index = open().map_err(|error| beside(name, error))?;
                let reader = MegatronReader::new(source, index, piece.as_ref(), limit);
                Records::Megatron(Box::new(reader.map_err(lost)?))
            }
            (Format::Array, piece) => {
                let Some((_, ids)) = ids else { return Err(lost(NOT_IDS.to_owned()).into()) };
                if ids.border.is_none() {
                    return Err(Error::Argument(format!(
                        "{}: an array of ids has no borders but a token: set eos= to the one that ends each document",
                        shard.path
                    )));
                }
                let reader = ArrayReader::new(source, piece.as_ref(), ids, limit).map_err(lost)?;
                Records::Array(Box::new(reader))
            }
        };
        Ok(Self {
            shard: Arc::clone(name),
            options: Arc::clone(options),
            codec,
            format,
            records,
            ended: false,
        })
    }

    /// How the shard holds records.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The columns of the file. None for lines and tars.
    pub fn columns(&self) -> Option<Vec<Column>> {
        self.records.reader().columns()
    }

    /// How many rows each row group of a Parquet file has. None for other formats.
    pub fn row_groups(&self) -> Option<&[u64]> {
        self.records.reader().row_groups()
    }

    /// How the shard is compressed.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The next record, not parsed. None at the end. Afterwards [`position`](Self::position) is that of the record after
    /// it.
    pub fn next_raw(&mut self) -> Result<Option<RawRecord<'_>>, ReadError> {
        let Self { shard, records, ended, .. } = self;
        records.next(ended).map_err(|error| error.of_shard(shard))
    }

    /// Appends the wanted text of the next record that is kept to `text`, and returns the record's position and the bytes
    /// appended. None at the end. On error `text` is as it was.
    pub fn next_text(&mut self, text: &mut String) -> Result<Option<(Position, usize)>, ReadError> {
        let before = text.len();
        let mut scratch = Scratch::default();
        let Self { shard, options, records, ended, .. } = self;
        loop {
            let next = records.next(ended).map_err(|error| error.of_shard(shard))?;
            let Some(record) = next else { return Ok(None) };
            match options.extract(shard, record, text, &mut scratch) {
                Ok(true) => return Ok(Some((record.position, text.len() - before))),
                Ok(false) => {}
                Err(error) => return Err(ReadError { error, rest: AfterError::Readable }),
            }
        }
    }

    /// The members of the next record, of which all columns must be wanted; of a group in a tar the members of the archive, and
    /// what is in their JSON. None at the end.
    pub fn next_members(&mut self) -> Result<Option<Vec<Member>>, ReadError> {
        let Self { shard, records, ended, .. } = self;
        if records.reader().has_members() {
            let members = if *ended { Ok(None) } else { records.reader_mut().next_members() };
            *ended = is_last(&members);
            return members.map_err(|error| error.of_shard(shard));
        }
        self.next_with(|_, record| jsonl::members(RawRecord { bytes: &json_of(record), ..record }))
    }

    fn next_with<T>(
        &mut self,
        take: impl FnOnce(&Projection, RawRecord<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, ReadError> {
        let Self { shard, options, records, ended, .. } = self;
        let next = records.next(ended).map_err(|error| error.of_shard(shard))?;
        let Some(record) = next else { return Ok(None) };
        take(&options.projection, record).map(Some).map_err(|reason| {
            let error = located(shard, record.position, reason);
            ReadError { error, rest: AfterError::Readable }
        })
    }

    /// Where the next record starts: after a record, the position directly after it.
    pub fn position(&self) -> Position {
        self.records.reader().position()
    }

    /// Goes to a position that [`position`](Self::position) returned earlier, before the first record is read. A position
    /// that is not the start of that record is an [`Error::State`].
    pub fn skip_to(&mut self, position: Position) -> Result<()> {
        let found = self.records.reader_mut().skip_to(position);
        match found.map_err(|error| error.of_shard(&self.shard))? {
            Found::Target => Ok(()),
            Found::Elsewhere(found) => Err(Error::State(format!(
                "{}: expected record {} to start at byte {} as the state says, but {found}; the shard is not the \
                 one that the state was saved with: restore that one",
                self.shard, position.record, position.byte
            ))),
        }
    }
}

impl RecordReader {
    /// Goes to the record with this number, or to the end if there are fewer, before the first record is read. Slower than
    /// [`skip_to`](Self::skip_to), which knows the byte: each line is looked at.
    pub fn skip_records(&mut self, number: u64) -> Result<(), ReadError> {
        let found = self.records.reader_mut().skip_records(number);
        self.ended = found.map_err(|error| error.of_shard(&self.shard))? != Found::Target;
        Ok(())
    }
}

impl Records {
    fn reader(&self) -> &dyn Reader {
        match self {
            Self::Jsonl(reader) => reader,
            Self::Parquet(reader) => &**reader,
            Self::Arrow(reader) => &**reader,
            Self::Tar(reader) => &**reader,
            Self::Megatron(reader) => &**reader,
            Self::Array(reader) => &**reader,
        }
    }

    fn reader_mut(&mut self) -> &mut dyn Reader {
        match self {
            Self::Jsonl(reader) => reader,
            Self::Parquet(reader) => &mut **reader,
            Self::Arrow(reader) => &mut **reader,
            Self::Tar(reader) => &mut **reader,
            Self::Megatron(reader) => &mut **reader,
            Self::Array(reader) => &mut **reader,
        }
    }

    /// The next record. Sets `ended` at the end and where the rest of the shard is lost.
    fn next(&mut self, ended: &mut bool) -> Result<Option<RawRecord<'_>>, Unreadable> {
        if *ended {
            return Ok(None);
        }
        let next = match self {
            Self::Jsonl(reader) => reader.next(),
            Self::Parquet(reader) => reader.next(),
            Self::Arrow(reader) => reader.next(),
            Self::Tar(reader) => reader.next(),
            Self::Megatron(reader) => reader.next(),
            Self::Array(reader) => reader.next(),
        };
        *ended = is_last(&next);
        next
    }
}

/// Whether there is nothing after a result.
fn is_last<T>(next: &Result<Option<T>, Unreadable>) -> bool {
    match next {
        Ok(record) => record.is_none(),
        Err(error) => error.rest == AfterError::Lost,
    }
}

impl Unreadable {
    fn of_shard(self, shard: &Arc<str>) -> ReadError {
        ReadError { error: located(shard, self.position, self.reason), rest: self.rest }
    }
}

/// The error for a piece of a file that can only be read from its start.
fn not_divisible(shard: &Shard) -> Error {
    Error::Argument(format!(
        "split_bytes= divides {} into pieces, but it is one Zstandard frame, which can only be read from its start: set \
         split_bytes=0, or compress it again in many frames, for example with pzstd",
        shard.path
    ))
}

/// A shard that cannot be read at all.
fn lost(shard: &Arc<str>, reason: String) -> ReadError {
    ReadError { error: located(shard, Position::default(), reason), rest: AfterError::Lost }
}

/// Checks that nothing but ids is wanted of a file of ids.
fn check_is_alone(shard: &Shard, ids: &IdFiles) -> Result<()> {
    if ids.are_alone {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{}: a file of ids has no keys: leave out loss_mask=, labels= and fields= of gm.Tokens, and keep=, or use JSONL, Parquet \
         or Arrow",
        shard.path
    )))
}

/// The path of the index beside a file of ids.
fn index_of(path: &str) -> String {
    format!("{}.idx", &path[..path.len() - ".bin".len()])
}

/// The error of a file that cannot be found beside a shard.
fn beside(shard: &Arc<str>, error: Error) -> Error {
    match error {
        Error::Shard(ShardError { shard: missing, .. }) => {
            let says = format!(
                "expected its index beside it, found no {missing} that can be read; of numbers alone, set dtype= of \
                 gm.Tokens"
            );
            lost(shard, says).into()
        }
        error => error,
    }
}

/// The parts of a shard that begin in pieces of it: their number and their name. None: it can be divided anywhere, or not
/// at all.
pub fn parts(shard: &Shard, access: &Access) -> Result<Option<(u64, &'static str)>> {
    let mut file = access.open(shard, &Arc::default())?;
    let lost = |reason| Error::from(lost(&shard.path, reason));
    let counted = match sniff(&mut *file, &shard.path).map_err(lost)? {
        (Codec::None, Format::Parquet) => count_groups(&mut *file).map(|groups| (groups, "row group")),
        (Codec::None, Format::Arrow) => count_batches(&mut *file).map(|batches| (batches, "record batch")),
        (Codec::Zstd, Format::Jsonl) => Decoder::count_frames(file).map(|frames| (frames, "frame")),
        _ => return Ok(None),
    };
    counted.map(Some).map_err(lost)
}

/// How many bytes a shard of lines inflates to.
pub fn inflated_bytes(shard: &Shard, access: &Access) -> Result<u64> {
    let mut file = access.open(shard, &Arc::default())?;
    let (codec, format) = sniff(&mut *file, &shard.path).map_err(|reason| lost(&shard.path, reason))?;
    if format != Format::Jsonl {
        let reason = format!("expected JSON lines, found {format:?}: only lines are inflated as a whole");
        return Err(lost(&shard.path, reason).into());
    }
    let mut decoder = Decoder::new(codec, file, u64::MAX, &Arc::default());
    let mut position = Position::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match decoder.read(&mut chunk) {
            Ok(0) => return Ok(position.byte),
            Ok(read) => position.byte += read as u64,
            Err(reason) => return Err(Error::Shard(located(&shard.path, position, reason))),
        }
    }
}

/// The kind of a shard, for a message.
fn found(codec: Codec, format: Format) -> String {
    let format = match format {
        Format::Jsonl => "JSON lines",
        Format::Parquet => "Parquet",
        Format::Arrow => "Arrow",
        Format::Tar => "a tar",
        Format::Megatron => "ids of Megatron",
        Format::Array => "an array of ids",
    };
    match codec {
        Codec::None => format.to_owned(),
        Codec::Gzip => format!("{format} compressed with gzip"),
        Codec::Zstd => format!("{format} compressed with Zstandard"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Arc<ReadOptions> {
        Arc::new(ReadOptions {
            access: Access::default(),
            projection: Projection::text("text"),
            keep: None,
            max_document_bytes: 100,
            ids: None,
        })
    }

    fn read_all(path: &str, bytes: &[u8]) -> Vec<Result<String, String>> {
        let source = Box::new(bytes.to_vec());
        let mut reader = match RecordReader::from_source(&path.into(), source, &options(), &Arc::default()) {
            Ok(reader) => reader,
            Err(error) => return vec![Err(error.to_string())],
        };
        let mut seen = Vec::new();
        loop {
            let mut text = String::new();
            match reader.next_text(&mut text) {
                Ok(None) => return seen,
                Ok(Some((_, length))) => {
                    assert_eq!(length, text.len());
                    seen.push(Ok(text));
                }
                Err(error) => seen.push(Err(error.to_string())),
            }
        }
    }

    #[test]
    fn moves_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<RecordReader>();
    }

    #[test]
    fn reads_plain_lines() {
        let long = format!("{{\"text\": \"{}\"}}\n", "x".repeat(100));
        let shard = [
            "\u{feff}{\"text\": \"a\\n\"}\r\n\n \t\n{\"text\": 1}\n",
            &long,
            "{\"x\": [1, {}], \"text\": \"b\", \"text\": \"\\ud83d\\ude00\"}",
        ]
        .concat();
        let seen = read_all("s.jsonl", shard.as_bytes());
        assert_eq!(seen.len(), 4, "{seen:#?}");
        assert_eq!(seen[0], Ok("a\n".into()));
        assert_eq!(
            seen[1],
            Err("s.jsonl: record 3, byte 24: expected a string under the key \"text\", found a number at byte 9 of \
                 the line: {\"text\": 1}"
                .into())
        );
        assert_eq!(
            seen[2],
            Err("s.jsonl: record 4, byte 36: expected a line of at most 100 bytes, found one of 112; raise \
                 max_document_bytes= to read it"
                .into())
        );
        assert_eq!(seen[3], Ok("\u{1f600}".into()));
    }
}
