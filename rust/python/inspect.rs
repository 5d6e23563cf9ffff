//! `_core.Records`: the contents of a shard's records, for `gristmill inspect`.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_chat_template::{LostReasoning, OnLostReasoning};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::choices::find;
use super::error::guarded;
use super::keep::{Paths, Program, SidecarFiles};
use super::sample::ChatPlan;
use super::signals::Signals;
use super::spec::access;
use crate::codec::Codec;
use crate::error::{Error, Result, ShardError};
use crate::format::keep::{Expression, Operand, Texts};
use crate::format::{
    AfterError, Column, Format, IdFiles, IdKind, Member, Position, Projection, RawKind, RawRecord, ReadError,
    ReadOptions, RecordReader, Scratch, Values, json_of,
};
use crate::lane::block::RawBlock;
use crate::lane::sidecars::SidecarReaders;
use crate::prepare::field::Field;
use crate::prepare::sidecars::Joined;
use crate::spec::sidecars::Sidecars;
use crate::store::{Piece, Shard, Source};

/// Reads the records of a shard, by the same rules as a run.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Records {
    reader: Mutex<RecordReader>,
    joined: Mutex<Joining>,
    expressions: Vec<Expression>,
    signals: Arc<Mutex<Signals>>,
}

/// The sidecars of the shard, and what is read of them.
struct Joining {
    shard: Arc<str>,
    options: Arc<ReadOptions>,
    sidecars: Sidecars,
    readers: SidecarReaders,
    block: RawBlock,
    /// Nothing more can be joined.
    lost: bool,
}

impl Joining {
    /// The result of `take` for the next record and those of its sidecars. None at the end.
    fn next_values<T>(
        &mut self,
        reader: &mut RecordReader,
        take: impl FnOnce(&Values<'_>) -> T,
    ) -> Result<Option<T>> {
        let Self { shard, options, sidecars, readers, block, lost } = self;
        if *lost {
            return Ok(None);
        }
        block.clear();
        let unusable = |position: Position, error: &ReadError, lost: &mut bool| {
            *lost = error.rest == AfterError::Lost;
            let reason = sidecars.unusable(0, &error.error);
            let (record, byte) = (Some(position.record), position.shown_byte());
            Err(ShardError { shard: Arc::clone(shard), record, byte, reason }.into())
        };
        let record = match reader.next_raw() {
            Ok(Some(record)) => record,
            Ok(None) => {
                return readers
                    .end()
                    .map(|()| None)
                    .or_else(|error| unusable(reader.position(), &error, lost));
            }
            Err(error) => {
                if let (AfterError::Readable, Some(record)) = (error.rest, error.error.record) {
                    readers.pass(record);
                }
                return Err(error.into());
            }
        };
        let position = record.position;
        if let Err(error) = readers.read(position.record, &mut block.bytes, &mut block.sidecars) {
            return unusable(position, &error, lost);
        }
        let joined = Joined { sidecars, shard: 0, records: &block.sidecars, bytes: &block.bytes };
        let (mut scratch, mut result) = (Vec::new(), None);
        let located = |reason| ShardError {
            shard: Arc::clone(shard),
            record: Some(position.record),
            byte: position.shown_byte(),
            reason,
        };
        let lines = joined.values(&mut scratch).map_err(located)?;
        let (mut text, mut own) = (String::new(), Scratch::default());
        options.projection.extract_if(shard, record, &mut text, &mut own, |values| {
            let values = values.with_sidecars(usize::MAX, &lines);
            result = Some(joined.check(&values, shard, position.record).map(|()| take(&values)));
            false
        })?;
        Ok(result.transpose().map_err(located)?)
    }
}

/// A shard's file whose reader stops when a signal's handler raises: it may read on for long where there are no records.
pub(super) struct Interruptible {
    file: Box<dyn Source>,
    signals: Arc<Mutex<Signals>>,
    stop: Arc<AtomicBool>,
}

impl Interruptible {
    /// Also returns the flag that stops the reader.
    pub(super) fn new(file: Box<dyn Source>, signals: &Arc<Mutex<Signals>>) -> (Self, Arc<AtomicBool>) {
        let stop = Arc::default();
        (Self { file, signals: Arc::clone(signals), stop: Arc::clone(&stop) }, stop)
    }
}

impl Source for Interruptible {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.store(signals.have_raised(), Ordering::Relaxed);
        self.file.read_at(offset, out)
    }
}

/// The messages of a sample whose reasoning the template does not write, each with the field that has it; those that end in no
/// stop token; those of which it writes nothing; and whether it writes none of the tools.
type Untrained = (Vec<(usize, String)>, Vec<usize>, Vec<usize>, bool);

/// For each sample of a record's conversation, given as JSON, the messages that are not trained on; and the error about lost
/// reasoning.
#[pyfunction]
pub fn untrained_of(
    py: Python<'_>,
    plan: ChatPlan,
    record: Vec<u8>,
) -> PyResult<(Vec<Untrained>, Option<String>)> {
    Ok(guarded(py, || {
        let (mut paths, mut columns) = (Vec::new(), Vec::new());
        let wanted = |key: &str| Field::add(key, &mut paths, &mut columns);
        let mut conversations = plan.conversations(0, true, wanted)?;
        let projection = Projection::named(columns).with_paths(paths);
        let line = RawRecord::new(RawKind::Line, Position::default(), &record);
        let mut rendered = |policy| {
            if let Some(training) = &mut conversations.training {
                training.on_lost_reasoning = policy;
            }
            projection
                .values("", line, &mut Scratch::default(), |values| conversations.trained(values))
                .flatten()
        };
        let samples = rendered(OnLostReasoning::List).map_err(Error::Template)?;
        let untrained = samples.into_iter().map(|sample| {
            let lost = sample.lost_reasoning.into_iter();
            let lost = lost.map(|LostReasoning { message, field }| (message, field)).collect();
            let unwritten = sample.rendering.unwritten().clone();
            (lost, sample.unstopped, unwritten.messages, unwritten.tools)
        });
        Ok((untrained.collect(), rendered(OnLostReasoning::Error).err()))
    })?)
}

/// Key, kind and characters of a member.
type Item = (String, &'static str, usize);

/// The characters of a string that are shown.
const SHOWN: usize = 80;

/// A value that an expression has, and its kind.
#[derive(IntoPyObject)]
struct Seen(&'static str, Plain);

#[derive(IntoPyObject)]
enum Plain {
    None(Option<bool>),
    Boolean(bool),
    Number(f64),
    Text(String),
}

impl From<&Operand<'_>> for Seen {
    fn from(operand: &Operand<'_>) -> Self {
        let none = Plain::None(None);
        match operand {
            Operand::Nothing => Self("missing", none),
            Operand::Boolean(value) => Self("boolean", Plain::Boolean(*value)),
            Operand::Number(number) => Self("number", Plain::Number(*number)),
            Operand::Text(text) | Operand::Label(text) => {
                Self("string", Plain::Text(text.chars().take(SHOWN).collect()))
            }
            Operand::Array(_) => Self("array", none),
            Operand::Object(_) => Self("object", none),
        }
    }
}

#[pymethods]
impl Records {
    #[new]
    #[allow(clippy::too_many_arguments)] // one for each of Python's
    #[pyo3(signature = (path, size, max_document_bytes, paths=Paths::default(), programs=Vec::new(), sidecars=Vec::new(), storage=Vec::new(), piece=None, ids=None))]
    fn new(
        py: Python<'_>,
        path: String,
        size: u64,
        max_document_bytes: u64,
        paths: Paths,
        programs: Vec<Program>,
        sidecars: Vec<SidecarFiles>,
        storage: Vec<(String, String)>,
        piece: Option<(u64, u64)>,
        ids: Option<(Option<String>, Option<u32>)>,
    ) -> PyResult<Self> {
        let id_files = |(dtype, border): (Option<String>, Option<u32>)| {
            let kind = dtype.map(|name| find("dtype", &name, &IdKind::ALL)).transpose()?;
            Ok::<_, Error>(IdFiles { kind, border, are_alone: true })
        };
        let mut shard = Shard::whole(path, size);
        shard.piece = piece.map(|(start, end)| Piece { name: Arc::clone(&shard.path), bytes: start..end });
        let options = Arc::new(ReadOptions {
            // Who looks at the first records wants no bytes ahead of them.
            access: access(PathBuf::new(), storage, 1, None),
            projection: Projection::all().with_paths(paths.into()),
            keep: None,
            max_document_bytes,
            ids: ids.map(id_files).transpose()?,
        });
        let signals = Arc::new(Mutex::new(Signals::new()));
        let kinds: Vec<_> = sidecars
            .into_iter()
            .map(|files| files.into_sidecar(&options.access, max_document_bytes))
            .collect();
        let (reader, readers) = guarded(py, || {
            let _connection = options.access.connect([&shard])?;
            let (source, stop) = Interruptible::new(options.access.open(&shard, &Arc::default())?, &signals);
            let readers = SidecarReaders::open(&kinds, &shard.path, 0, Position::default(), &stop)?;
            let reader = RecordReader::of_shard(&shard, Box::new(source), &options, &stop);
            Ok((reader.map_err(|error| options.access.outage().unwrap_or(error))?, readers))
        })?;
        let joined = Joining {
            shard: shard.path,
            options,
            sidecars: Sidecars { kinds, keep: None },
            readers,
            block: RawBlock::default(),
            lost: false,
        };
        let expressions = programs.into_iter().map(Expression::from).collect();
        Ok(Self { reader: Mutex::new(reader), joined: Mutex::new(joined), expressions, signals })
    }

    /// The members of the next record, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<Item>>> {
        let members = self.with(py, |reader| Ok(reader.next_members()?))?;
        let item = |Member { key, kind, characters }| (key, kind, characters);
        Ok(members.map(|members| members.into_iter().map(item).collect()))
    }

    /// For the next record, what each program leaves on its stack; or None at the end.
    fn next_values(&self, py: Python<'_>) -> PyResult<Option<Vec<Vec<Seen>>>> {
        self.with(py, |reader| {
            self.joined.lock().unwrap_or_else(PoisonError::into_inner).next_values(reader, |values| {
                let texts = Texts::default();
                let seen = |expression: &Expression| {
                    expression.evaluate(values, &texts).iter().map(Seen::from).collect()
                };
                self.expressions.iter().map(seen).collect()
            })
        })
    }

    /// Continues to the record with this number. Returns the format's hints of where it and the next one start, and the
    /// record as JSON; or None if there is none from here on.
    fn record<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Option<(u64, u64, Bound<'py, PyBytes>)>> {
        let found = self.with(py, |reader| Ok(record(reader, number)?))?;
        Ok(found.map(|(start, end, line)| (start, end, PyBytes::new(py, &line))))
    }

    /// How the shard holds records: "jsonl", "parquet", "arrow" or "tar".
    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<&'static str> {
        let format = self.with(py, |reader| Ok(reader.format()))?;
        Ok(match format {
            Format::Jsonl => "jsonl",
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
            Format::Tar => "tar",
            Format::Megatron => "megatron",
            Format::Array => "array",
        })
    }

    /// Names and types of the columns; None for lines.
    #[getter]
    fn columns(&self, py: Python<'_>) -> PyResult<Option<Vec<(String, String)>>> {
        let columns = self.with(py, |reader| Ok(reader.columns()))?;
        let pair = |Column { name, kind }| (name, kind);
        Ok(columns.map(|columns| columns.into_iter().map(pair).collect()))
    }

    /// The rows of each row group of a Parquet file; None for other formats.
    #[getter]
    fn row_groups(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        self.with(py, |reader| Ok(reader.row_groups().map(<[u64]>::to_vec)))
    }

    /// How the shard is compressed: "none", "gzip" or "zstd".
    #[getter]
    fn compression(&self, py: Python<'_>) -> PyResult<&'static str> {
        let codec = self.with(py, |reader| Ok(reader.codec()))?;
        Ok(match codec {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Zstd => "zstd",
        })
    }

    /// Number of records read, blank lines counted, and of the bytes of lines.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let position = self.with(py, |reader| Ok(reader.position()))?;
        Ok((position.record, position.byte))
    }
}

/// See [`Records::record`]. Bad records before it are passed over.
fn record(reader: &mut RecordReader, number: u64) -> Result<Option<(u64, u64, Vec<u8>)>, ReadError> {
    if reader.position() == Position::default() {
        reader.skip_records(number)?;
    }
    while reader.position().record <= number {
        let found = match reader.next_raw() {
            Ok(None) => return Ok(None),
            Ok(Some(record)) if record.position.record == number => {
                (record.position.byte, json_of(record).into_owned())
            }
            Ok(Some(_)) => continue,
            Err(error) if error.rest == AfterError::Readable && error.error.record < Some(number) => continue,
            Err(error) => return Err(error),
        };
        return Ok(Some((found.0, reader.position().byte, found.1)));
    }
    Ok(None)
}

impl Records {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut RecordReader) -> Result<T>,
    ) -> PyResult<T> {
        let (read, signals) = guarded(py, || {
            let read = work(&mut self.reader.lock().unwrap_or_else(PoisonError::into_inner));
            let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
            // An outage is no fault of a record.
            let read = read.map_err(|error| joined.options.access.outage().unwrap_or(error));
            drop(joined);
            let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
            Ok((read, std::mem::replace(&mut *signals, Signals::new())))
        })?;
        signals.raised()?;
        Ok(read?)
    }
}
