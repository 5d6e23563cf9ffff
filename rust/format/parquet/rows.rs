//! Rows as JSON objects, which are read as lines are: for filters, and for records of several columns, of any types.

use std::ops::Range;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type};
use parquet::data_type::AsBytes;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::Type as SchemaType;

use super::corrupt;
use super::leaf::{Column, Leaf};
use super::pages::PageSource;
use crate::format::AfterError;
use crate::format::arrow::{Field, Kind as ArrowKind, stored_fields};
use crate::format::columns::{RowFault, check_row_length};
use crate::format::exact::{Exact, Typed};
use crate::format::to_json::{
    LARGEST_DECIMAL_BYTES, open_map, write_bytes, write_date, write_decimal, write_duration, write_filled,
    write_float, write_integer, write_null, write_string, write_text, write_time, write_timestamp,
    write_unknown, write_uuid,
};

/// Some columns of a file.
pub(super) struct Rows {
    /// The start of each column's member, `"name":`, and its values.
    columns: Vec<(Vec<u8>, Node)>,
    leaves: Vec<Leaf>,
    /// The row that was read last.
    line: Vec<u8>,
    longest: u64,
    /// The values of the line that JSON lacks. None: they are not wanted.
    exact: Option<Exact>,
}

/// A column, or what is inside one.
struct Node {
    /// Its leaves.
    leaves: Range<usize>,
    /// The definition level from which on it is not null.
    definition: i16,
    kind: NodeKind,
}

enum NodeKind {
    Value {
        kind: Kind,
        /// The time zone of timestamps in UTC, if the file names another one.
        zone: Option<String>,
    },
    /// The start of each member, and its values.
    Struct(Vec<(Vec<u8>, Node)>),
    List {
        /// The definition level from which on it has items.
        definition: i16,
        /// The repetition level at which another item follows.
        repetition: i16,
        item: Box<Node>,
    },
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As its type in the file says; strings as far as they are UTF-8.
    Plain,
    Unsigned,
    Text,
    /// Strings that hold JSON.
    Json,
    Float16,
    Decimal(i32),
    Date,
    Time(i64),
    Timestamp {
        per_second: i64,
        is_utc: bool,
    },
    Duration(i64),
    Uuid,
    /// Nothing that JSON has.
    Null,
}

impl Rows {
    /// The columns that are `wanted`, by their names, of a file of `size` bytes. None: there is none of them. A row of more
    /// than `longest` bytes is not written.
    pub(super) fn new(
        metadata: &ParquetMetaData,
        size: u64,
        longest: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let schema = metadata.file_metadata().schema_descr();
        let mut rows =
            Self { columns: Vec::new(), leaves: Vec::new(), line: Vec::new(), longest, exact: None };
        let mut index = 0;
        for field in schema.root_schema().get_fields() {
            let leaves = index..index + count_leaves(field);
            index = leaves.end;
            if wanted(field.name()) {
                let mut first = rows.leaves.len();
                for leaf in leaves {
                    rows.leaves.push(Leaf::new(metadata, leaf, size)?);
                }
                rows.columns.extend(member(field, &mut first, 0, 0));
            }
        }
        rows.refine(metadata);
        Ok(rows)
    }

    /// The leaf of the column `name`, if that is among these and holds values.
    pub(super) fn leaf(&self, name: &str) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.name() == name)
    }

    /// Whether there are no columns.
    pub(super) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Ends the current row group.
    pub(super) fn close(&mut self) {
        self.leaves.iter_mut().for_each(Leaf::close);
    }

    /// Leaves out the next rows of the row group.
    pub(super) fn skip(&mut self, rows: u64) {
        self.leaves.iter_mut().for_each(|leaf| leaf.skip(rows));
    }

    /// Reads the next row of a row group; returns whether there is one.
    pub(super) fn read(&mut self, file: &PageSource, group: usize) -> Result<bool, String> {
        for leaf in &mut self.leaves {
            if !leaf.read(file, group)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes from now on what the values are that JSON lacks.
    pub(super) fn want_exact(&mut self) {
        self.exact = Some(Exact::default());
    }

    /// Takes what the schema that Arrow stores says beyond Parquet's own.
    fn refine(&mut self, metadata: &ParquetMetaData) {
        let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let stored = pairs.filter(|pair| pair.key == "ARROW:schema").find_map(|pair| pair.value.as_deref());
        let fields = stored.and_then(stored_fields).unwrap_or_default();
        for (start, node) in &mut self.columns {
            if let Some(field) = fields.iter().find(|field| *start == member_start(&field.name)) {
                node.refine(field);
            }
        }
    }

    /// The values that JSON lacks of the row that was written last.
    pub(super) fn take_exact(&mut self) -> Option<Box<Exact>> {
        self.exact.as_mut()?.take()
    }

    /// The row that was read last, as a JSON object.
    pub(super) fn write(&mut self) -> Result<&[u8], RowFault> {
        let Self { columns, leaves, line, longest, exact } = self;
        line.clear();
        if let Some(exact) = exact {
            exact.clear();
        }
        write_members(columns, &mut Writer { leaves, out: line, longest: *longest, exact: exact.as_mut() })?;
        if leaves.iter().all(Leaf::is_taken) { Ok(line) } else { Err(inconsistent()) }
    }
}

fn inconsistent() -> RowFault {
    (AfterError::Lost, corrupt("columns of one struct or list have different numbers of values in a row"))
}

/// How many leaves a part of the schema has.
fn count_leaves(field: &SchemaType) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|field| count_leaves(field)).sum() }
}

/// The start of a member, and its values, whose leaves begin at `leaf`. None: it has no leaves. `definition` and
/// `repetition` are the levels of what it is in.
fn member(field: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<(Vec<u8>, Node)> {
    Some((member_start(field.name()), node(field, leaf, definition, repetition)?))
}

fn member_start(name: &str) -> Vec<u8> {
    let mut start = Vec::new();
    write_string(name, &mut start);
    start.push(b':');
    start
}

fn node(field: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<Node> {
    let info = field.get_basic_info();
    match if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED } {
        Repetition::REQUIRED => present(field, leaf, definition, repetition),
        Repetition::OPTIONAL => present(field, leaf, definition + 1, repetition),
        Repetition::REPEATED => {
            // Without a list around it, as Protocol Buffers write them: never null.
            list(definition, repetition, leaf, |leaf, definition, repetition| {
                present(field, leaf, definition, repetition)
            })
        }
    }
}

/// A field from its definition level on, whatever its repetition is.
fn present(field: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<Node> {
    if field.is_primitive() {
        *leaf += 1;
        return Some(Node {
            leaves: *leaf - 1..*leaf,
            definition,
            kind: NodeKind::Value { kind: kind(field), zone: None },
        });
    }
    if let Some(repeated) = repeated_of_list(field) {
        return list(definition, repetition, leaf, |leaf, definition, repetition| {
            match item_of(field, repeated) {
                Some(item) => node(item, leaf, definition, repetition),
                None if is_map(field) => pair(repeated, leaf, definition, repetition),
                None => present(repeated, leaf, definition, repetition),
            }
        });
    }
    let first = *leaf;
    let members =
        field.get_fields().iter().filter_map(|field| member(field, leaf, definition, repetition)).collect();
    // A struct without members has no levels that say whether it is null.
    (*leaf > first).then_some(Node { leaves: first..*leaf, definition, kind: NodeKind::Struct(members) })
}

/// A list that is not null from `definition` on. `item` makes a node of its items.
fn list(
    definition: i16,
    repetition: i16,
    leaf: &mut usize,
    item: impl FnOnce(&mut usize, i16, i16) -> Option<Node>,
) -> Option<Node> {
    let item = Box::new(item(leaf, definition + 1, repetition + 1)?);
    let kind = NodeKind::List { definition: definition + 1, repetition: repetition + 1, item };
    let NodeKind::List { item, .. } = &kind else { return None };
    Some(Node { leaves: item.leaves.clone(), definition, kind })
}

/// A map's key and value: as the pair of Python that they are, an array of two.
fn pair(entry: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<Node> {
    let first = *leaf;
    let fields = entry.get_fields().iter();
    let members: Vec<_> =
        fields.filter_map(|field| Some((Vec::new(), node(field, leaf, definition, repetition)?))).collect();
    (*leaf > first).then_some(Node { leaves: first..*leaf, definition, kind: NodeKind::Struct(members) })
}

/// The repeated field of a list or map.
fn repeated_of_list(field: &SchemaType) -> Option<&SchemaType> {
    let info = field.get_basic_info();
    let is_list = info.converted_type() == ConvertedType::LIST
        || matches!(info.logical_type_ref(), Some(LogicalType::List))
        || is_map(field);
    match field.get_fields() {
        [repeated] if is_list && is_repeated(repeated) => Some(repeated),
        _ => None,
    }
}

fn is_repeated(field: &SchemaType) -> bool {
    let info = field.get_basic_info();
    info.has_repetition() && info.repetition() == Repetition::REPEATED
}

fn is_map(field: &SchemaType) -> bool {
    let info = field.get_basic_info();
    matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
        || matches!(info.logical_type_ref(), Some(LogicalType::Map))
}

/// The type of a field for a person.
pub(super) fn type_name(field: &SchemaType) -> String {
    let name = named_type(field);
    if is_repeated(field) { format!("list<{name}>") } else { name }
}

fn named_type(field: &SchemaType) -> String {
    if let Some(repeated) = Some(field).filter(|field| !field.is_primitive()).and_then(repeated_of_list) {
        let list = if is_map(field) { "map" } else { "list" };
        return format!(
            "{list}<{}>",
            item_of(field, repeated).map_or_else(|| named_type(repeated), type_name)
        );
    }
    if !field.is_primitive() {
        let members =
            field.get_fields().iter().map(|field| format!("{}: {}", field.name(), type_name(field)));
        return format!("struct<{}>", members.collect::<Vec<_>>().join(", "));
    }
    let name = match (kind(field), field.get_physical_type()) {
        (Kind::Text, _) => "string",
        (Kind::Json, _) => "json",
        (Kind::Float16, _) => "float16",
        (Kind::Decimal(_), _) => "decimal",
        (Kind::Date, _) => "date",
        (Kind::Time(_), _) => "time",
        (Kind::Timestamp { .. }, _) | (_, Type::INT96) => "timestamp",
        (Kind::Uuid, _) => "uuid",
        (Kind::Duration(_), _) => "duration",
        (Kind::Null, _) => "interval",
        (Kind::Unsigned, Type::INT32) => "uint32",
        (Kind::Unsigned, _) => "uint64",
        (Kind::Plain, Type::BOOLEAN) => "bool",
        (Kind::Plain, Type::INT32) => "int32",
        (Kind::Plain, Type::INT64) => "int64",
        (Kind::Plain, Type::FLOAT) => "float32",
        (Kind::Plain, Type::DOUBLE) => "float64",
        (Kind::Plain, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY) => "binary",
    };
    name.to_owned()
}

/// The field of a list's items, by the rules of the format for older files. None: it is the repeated field itself.
fn item_of<'a>(list: &SchemaType, repeated: &'a SchemaType) -> Option<&'a SchemaType> {
    if is_map(list) || repeated.is_primitive() {
        return None;
    }
    match repeated.get_fields() {
        [_] if repeated.name() == "array" || repeated.name() == format!("{}_tuple", list.name()) => None,
        [item] => Some(item),
        _ => None,
    }
}

/// Whether a column's strings are JSON.
pub(super) fn holds_json(field: &SchemaType) -> bool {
    kind(field) == Kind::Json
}

fn kind(field: &SchemaType) -> Kind {
    let info = field.get_basic_info();
    let bytes = field.get_physical_type() == Type::BYTE_ARRAY;
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::Json), _) | (_, ConvertedType::JSON) if bytes => Kind::Json,
        (Some(LogicalType::String | LogicalType::Enum), _)
        | (_, ConvertedType::UTF8 | ConvertedType::ENUM)
            if bytes =>
        {
            Kind::Text
        }
        (Some(LogicalType::Float16), _) => Kind::Float16,
        (Some(LogicalType::Uuid), _) => Kind::Uuid,
        (Some(LogicalType::Decimal(_)), _) | (_, ConvertedType::DECIMAL) => Kind::Decimal(field.get_scale()),
        (Some(LogicalType::Date), _) | (_, ConvertedType::DATE) => Kind::Date,
        (Some(LogicalType::Time(time)), _) => Kind::Time(per_second(time.unit)),
        (Some(LogicalType::Timestamp(time)), _) => {
            Kind::Timestamp { per_second: per_second(time.unit), is_utc: time.is_adjusted_to_u_t_c }
        }
        (_, ConvertedType::TIME_MILLIS) => Kind::Time(1000),
        (_, ConvertedType::TIME_MICROS) => Kind::Time(1_000_000),
        (_, ConvertedType::TIMESTAMP_MILLIS) => Kind::Timestamp { per_second: 1000, is_utc: true },
        (_, ConvertedType::TIMESTAMP_MICROS) => Kind::Timestamp { per_second: 1_000_000, is_utc: true },
        (Some(LogicalType::Integer(integer)), _) if !integer.is_signed => Kind::Unsigned,
        (
            _,
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64,
        ) => Kind::Unsigned,
        (_, ConvertedType::INTERVAL) => Kind::Null,
        _ => Kind::Plain,
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::MILLIS => 1000,
        TimeUnit::MICROS => 1_000_000,
        TimeUnit::NANOS => 1_000_000_000,
    }
}

/// A row on its way from levels and values to JSON.
struct Writer<'a> {
    leaves: &'a mut [Leaf],
    out: &'a mut Vec<u8>,
    longest: u64,
    exact: Option<&'a mut Exact>,
}

impl Writer<'_> {
    /// Null, or an empty list: one level of each leaf.
    fn take_absent(&mut self, leaves: Range<usize>) {
        self.leaves[leaves].iter_mut().for_each(Leaf::take_level);
    }
}

/// Whether these are the items of a pair, which have no keys.
fn are_pair(members: &[(Vec<u8>, Node)]) -> bool {
    members.first().is_some_and(|(start, _)| start.is_empty())
}

fn write_members(members: &[(Vec<u8>, Node)], writer: &mut Writer<'_>) -> Result<(), RowFault> {
    let is_pair = are_pair(members);
    let [open, close] = if is_pair { *b"[]" } else { *b"{}" };
    writer.out.push(open);
    for (index, (start, node)) in members.iter().enumerate() {
        if index > 0 {
            writer.out.push(b',');
        }
        writer.out.extend_from_slice(start);
        node.write(!is_pair, writer)?;
    }
    writer.out.push(close);
    Ok(())
}

impl Node {
    fn write(&self, is_member: bool, writer: &mut Writer<'_>) -> Result<(), RowFault> {
        let level = |writer: &Writer<'_>| writer.leaves[self.leaves.start].next_definition();
        let found = level(writer).ok_or_else(inconsistent)?;
        if found < self.definition {
            writer.take_absent(self.leaves.clone());
            let write = if is_member { write_filled } else { write_null };
            write(writer.out);
            return Ok(());
        }
        match &self.kind {
            NodeKind::Value { kind, zone } => {
                let leaf = &mut writer.leaves[self.leaves.start];
                let start = writer.out.len();
                kind.write(leaf, writer.out)?;
                if let Some(exact) = &mut writer.exact {
                    let mut bytes = [0; 8];
                    if let Some(value) = kind.typed(zone.as_deref(), leaf, &mut bytes) {
                        exact.note(start..writer.out.len(), &value);
                    }
                }
                check_row_length(writer.out, writer.longest)
            }
            NodeKind::Struct(members) => write_members(members, writer),
            NodeKind::List { definition, repetition, item } => {
                match &item.kind {
                    NodeKind::Struct(members) if are_pair(members) => open_map(writer.out),
                    _ => writer.out.push(b'['),
                }
                if found < *definition {
                    writer.take_absent(self.leaves.clone());
                    writer.out.push(b']');
                    return Ok(());
                }
                loop {
                    item.write(false, writer)?;
                    check_row_length(writer.out, writer.longest)?;
                    if writer.leaves[self.leaves.start].next_repetition() < *repetition {
                        break;
                    }
                    writer.out.push(b',');
                }
                writer.out.push(b']');
                Ok(())
            }
        }
    }
}

impl Node {
    /// Takes what a field of the schema that Arrow stores says beyond Parquet's own.
    fn refine(&mut self, field: &Field) {
        match &mut self.kind {
            NodeKind::Value { kind, zone } => match (field.kind, *kind) {
                (ArrowKind::Duration { per_second }, Kind::Plain) => *kind = Kind::Duration(per_second),
                (ArrowKind::Timestamp { .. }, Kind::Timestamp { is_utc: true, .. }) => {
                    zone.clone_from(&field.zone);
                }
                _ => {}
            },
            NodeKind::Struct(members) if members.len() == field.children.len() => {
                members.iter_mut().zip(&field.children).for_each(|((_, node), field)| node.refine(field));
            }
            NodeKind::Struct(_) => {}
            NodeKind::List { item, .. } => field.children.iter().for_each(|field| item.refine(field)),
        }
    }
}

impl Kind {
    /// The leaf's last value, if JSON lacks it. `bytes` is room for an integer.
    fn typed<'a>(self, zone: Option<&'a str>, leaf: &'a Leaf, bytes: &'a mut [u8; 8]) -> Option<Typed<'a>> {
        let (column, index) = leaf.last_value();
        let is_nan = |value: f64| value.is_nan().then_some(Typed::NotANumber);
        match column {
            Column::Boolean(_) => None,
            Column::Int32(typed) => self.typed_integer((*typed.values.get(index)?).into(), zone, bytes),
            Column::Int64(typed) => self.typed_integer(*typed.values.get(index)?, zone, bytes),
            Column::Int96(typed) => {
                let time = typed.values.get(index)?.to_nanos();
                Some(Typed::Timestamp { time, per_second: 1_000_000_000, zone: None })
            }
            Column::Float(typed) => is_nan((*typed.values.get(index)?).into()),
            Column::Double(typed) => is_nan(*typed.values.get(index)?),
            Column::Bytes(typed) => self.typed_bytes(typed.values.get(index)?.data()),
            Column::FixedBytes(typed) => self.typed_bytes(typed.values.get(index)?.as_bytes()),
        }
    }

    fn typed_integer<'a>(
        self,
        time: i64,
        zone: Option<&'a str>,
        bytes: &'a mut [u8; 8],
    ) -> Option<Typed<'a>> {
        *bytes = time.to_be_bytes();
        match self {
            Self::Decimal(scale) => Some(Typed::Decimal { bytes, scale }),
            Self::Date => Some(Typed::Date(time)),
            Self::Time(per_second) => Some(Typed::Time { time, per_second }),
            Self::Timestamp { per_second, is_utc } => {
                let zone = is_utc.then_some(zone.unwrap_or("UTC"));
                Some(Typed::Timestamp { time, per_second, zone })
            }
            Self::Duration(per_second) => Some(Typed::Duration { time, per_second }),
            _ => None,
        }
    }

    fn typed_bytes(self, bytes: &[u8]) -> Option<Typed<'_>> {
        match (self, bytes) {
            (Self::Text | Self::Json | Self::Null, _) => None,
            (Self::Decimal(scale), _) => {
                (bytes.len() <= LARGEST_DECIMAL_BYTES).then_some(Typed::Decimal { bytes, scale })
            }
            (Self::Float16, &[low, high]) => {
                half::f16::from_le_bytes([low, high]).is_nan().then_some(Typed::NotANumber)
            }
            (Self::Uuid, _) if bytes.len() == 16 => Some(Typed::Uuid(bytes)),
            _ => Some(Typed::Bytes(bytes)),
        }
    }

    /// Writes the leaf's next value.
    fn write(self, leaf: &mut Leaf, out: &mut Vec<u8>) -> Result<(), RowFault> {
        let (column, index) = leaf.take_value();
        let missing = || (AfterError::Lost, corrupt("a value is missing"));
        match column {
            Column::Boolean(typed) => {
                let value = *typed.values.get(index).ok_or_else(missing)?;
                out.extend_from_slice(if value { b"true" } else { b"false" });
            }
            Column::Int32(typed) => {
                let value = *typed.values.get(index).ok_or_else(missing)?;
                match self {
                    Self::Unsigned => write_integer(value.cast_unsigned(), out),
                    _ => self.write_integer(value.into(), out),
                }
            }
            Column::Int64(typed) => {
                let value = *typed.values.get(index).ok_or_else(missing)?;
                match self {
                    Self::Unsigned => write_integer(value.cast_unsigned(), out),
                    _ => self.write_integer(value, out),
                }
            }
            Column::Int96(typed) => {
                // The legacy type of timestamps: nanoseconds of a day, and the day.
                let value = typed.values.get(index).ok_or_else(missing)?;
                write_timestamp(value.to_nanos(), 1_000_000_000, false, out);
            }
            Column::Float(typed) => {
                write_float((*typed.values.get(index).ok_or_else(missing)?).into(), out);
            }
            Column::Double(typed) => write_float(*typed.values.get(index).ok_or_else(missing)?, out),
            Column::Bytes(typed) => {
                let value = typed.values.get(index).ok_or_else(missing)?;
                if !matches!(self, Self::Text | Self::Json) {
                    self.write_bytes(value.data(), out);
                    return Ok(());
                }
                if let Err(fault) = write_text(value.data(), self == Self::Json, out) {
                    return Err((AfterError::Readable, fault.describe(&leaf.name())));
                }
            }
            Column::FixedBytes(typed) => {
                let value = typed.values.get(index).ok_or_else(missing)?;
                self.write_bytes(value.as_bytes(), out);
            }
        }
        Ok(())
    }

    fn write_integer(self, value: i64, out: &mut Vec<u8>) {
        match self {
            Self::Decimal(scale) => write_decimal(&value.to_be_bytes(), scale, out),
            Self::Date => write_date(value, out),
            Self::Time(per_second) => write_time(value, per_second, out),
            Self::Timestamp { per_second, is_utc } => write_timestamp(value, per_second, is_utc, out),
            Self::Duration(_) => write_duration(value, out),
            _ => write_integer(value, out),
        }
    }

    fn write_bytes(self, value: &[u8], out: &mut Vec<u8>) {
        match (self, value) {
            (Self::Decimal(scale), _) => write_decimal(value, scale, out),
            (Self::Float16, &[low, high]) => {
                write_float(half::f16::from_le_bytes([low, high]).into(), out);
            }
            (Self::Uuid, _) if value.len() == 16 => write_uuid(value, out),
            (Self::Null, _) => write_unknown(out),
            _ => write_bytes(value, out),
        }
    }
}
