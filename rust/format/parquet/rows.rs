//! Rows as packed objects: for filters, and for records of several columns, of any types.

use std::ops::Range;

use gristmill_json::Packer;
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

/// Some columns of a file.
pub(super) struct Rows {
    /// The name of each column, and its values.
    columns: Vec<(String, Node)>,
    leaves: Vec<Leaf>,
    /// The row that was read last.
    row: Packer,
    longest: u64,
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
    /// The name of each member, and its values.
    Struct(Vec<(String, Node)>),
    /// The key and value of a map's item.
    Pair(Vec<Node>),
    List {
        /// The definition level from which on it has items.
        definition: i16,
        /// The repetition level at which another item follows.
        repetition: i16,
        item: Box<Node>,
    },
}

/// How a value is packed.
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
    /// than `longest` bytes as JSON is not packed.
    pub(super) fn new(
        metadata: &ParquetMetaData,
        size: u64,
        longest: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let schema = metadata.file_metadata().schema_descr();
        let mut rows = Self { columns: Vec::new(), leaves: Vec::new(), row: Packer::default(), longest };
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

    /// Ends the current row group. Returns whether no leaf has more rows of it.
    pub(super) fn close(&mut self) -> Result<bool, String> {
        self.leaves.iter_mut().try_fold(true, |ends, leaf| Ok(leaf.close()? && ends))
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

    /// Takes what the schema that Arrow stores says beyond Parquet's own.
    fn refine(&mut self, metadata: &ParquetMetaData) {
        let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let stored = pairs.filter(|pair| pair.key == "ARROW:schema").find_map(|pair| pair.value.as_deref());
        let fields = stored.and_then(stored_fields).unwrap_or_default();
        for (name, node) in &mut self.columns {
            if let Some(field) = fields.iter().find(|field| *name == field.name) {
                node.refine(field);
            }
        }
    }

    /// The row that was read last, as a packed object.
    pub(super) fn pack(&mut self) -> Result<&[u8], RowFault> {
        let Self { columns, leaves, row, longest } = self;
        row.clear();
        pack_members(columns, &mut Writer { leaves, out: row, longest: *longest })?;
        if leaves.iter().all(Leaf::is_taken) { Ok(row.bytes()) } else { Err(inconsistent()) }
    }
}

fn inconsistent() -> RowFault {
    (AfterError::Lost, corrupt("columns of one struct or list have different numbers of values in a row"))
}

/// How many leaves a part of the schema has.
fn count_leaves(field: &SchemaType) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|field| count_leaves(field)).sum() }
}

/// The name of a member, and its values, whose leaves begin at `leaf`. None: it has no leaves. `definition` and
/// `repetition` are the levels of what it is in.
fn member(field: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<(String, Node)> {
    Some((field.name().to_owned(), node(field, leaf, definition, repetition)?))
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

/// A map's key and value.
fn pair(entry: &SchemaType, leaf: &mut usize, definition: i16, repetition: i16) -> Option<Node> {
    let first = *leaf;
    let fields = entry.get_fields().iter();
    let parts = fields.filter_map(|field| node(field, leaf, definition, repetition)).collect();
    (*leaf > first).then_some(Node { leaves: first..*leaf, definition, kind: NodeKind::Pair(parts) })
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

/// A row on its way from levels and values to a packed object.
struct Writer<'a> {
    leaves: &'a mut [Leaf],
    out: &'a mut Packer,
    longest: u64,
}

impl Writer<'_> {
    /// Null, or an empty list: one level of each leaf.
    fn take_absent(&mut self, leaves: Range<usize>) {
        self.leaves[leaves].iter_mut().for_each(Leaf::take_level);
    }
}

fn pack_members(members: &[(String, Node)], writer: &mut Writer<'_>) -> Result<(), RowFault> {
    let opened = writer.out.open_object();
    for (name, node) in members {
        writer.out.key(name);
        node.pack(true, writer)?;
    }
    writer.out.close(opened);
    Ok(())
}

impl Node {
    fn pack(&self, is_member: bool, writer: &mut Writer<'_>) -> Result<(), RowFault> {
        let level = |writer: &Writer<'_>| writer.leaves[self.leaves.start].next_definition();
        let found = level(writer).ok_or_else(inconsistent)?;
        if found < self.definition {
            writer.take_absent(self.leaves.clone());
            if is_member {
                writer.out.filled();
            } else {
                writer.out.null();
            }
            return Ok(());
        }
        match &self.kind {
            NodeKind::Value { kind, zone } => {
                kind.pack(zone.as_deref(), &mut writer.leaves[self.leaves.start], writer.out)?;
                check_row_length(writer.out, writer.longest)
            }
            NodeKind::Struct(members) => pack_members(members, writer),
            NodeKind::Pair(parts) => {
                let opened = writer.out.open_list();
                parts.iter().try_for_each(|part| part.pack(false, writer))?;
                writer.out.close(opened);
                Ok(())
            }
            NodeKind::List { definition, repetition, item } => {
                let is_map = matches!(item.kind, NodeKind::Pair(_));
                let opened = if is_map { writer.out.open_map() } else { writer.out.open_list() };
                if found < *definition {
                    writer.take_absent(self.leaves.clone());
                    writer.out.close(opened);
                    return Ok(());
                }
                loop {
                    item.pack(false, writer)?;
                    check_row_length(writer.out, writer.longest)?;
                    if writer.leaves[self.leaves.start].next_repetition() < *repetition {
                        break;
                    }
                }
                writer.out.close(opened);
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
            NodeKind::Pair(parts) => {
                let fields = field.children.iter();
                parts.iter_mut().zip(fields).for_each(|(node, field)| node.refine(field));
            }
            NodeKind::Struct(_) => {}
            NodeKind::List { item, .. } => field.children.iter().for_each(|field| item.refine(field)),
        }
    }
}

impl Kind {
    /// Packs the leaf's next value.
    fn pack(self, zone: Option<&str>, leaf: &mut Leaf, out: &mut Packer) -> Result<(), RowFault> {
        let (column, index) = leaf.take_value();
        let missing = || (AfterError::Lost, corrupt("a value is missing"));
        match column {
            Column::Boolean(typed) => out.boolean(*typed.values.get(index).ok_or_else(missing)?),
            Column::Int32(typed) => {
                let value = *typed.values.get(index).ok_or_else(missing)?;
                match self {
                    Self::Unsigned => out.integer(value.cast_unsigned()),
                    _ => self.pack_integer(value.into(), zone, out),
                }
            }
            Column::Int64(typed) => {
                let value = *typed.values.get(index).ok_or_else(missing)?;
                match self {
                    Self::Unsigned => out.integer(value.cast_unsigned()),
                    _ => self.pack_integer(value, zone, out),
                }
            }
            Column::Int96(typed) => {
                // The legacy type of timestamps: nanoseconds of a day, and the day.
                let value = typed.values.get(index).ok_or_else(missing)?;
                out.timestamp(value.to_nanos(), 1_000_000_000, None);
            }
            Column::Float(typed) => out.float((*typed.values.get(index).ok_or_else(missing)?).into()),
            Column::Double(typed) => out.float(*typed.values.get(index).ok_or_else(missing)?),
            Column::Bytes(typed) => {
                let value = typed.values.get(index).ok_or_else(missing)?;
                if !matches!(self, Self::Text | Self::Json) {
                    self.pack_bytes(value.data(), out);
                    return Ok(());
                }
                if let Err(fault) = out.text(value.data(), self == Self::Json) {
                    return Err((AfterError::Readable, fault.describe(&leaf.name())));
                }
            }
            Column::FixedBytes(typed) => {
                self.pack_bytes(typed.values.get(index).ok_or_else(missing)?.as_bytes(), out);
            }
        }
        Ok(())
    }

    fn pack_integer(self, value: i64, zone: Option<&str>, out: &mut Packer) {
        match self {
            Self::Decimal(scale) => out.decimal(&value.to_be_bytes(), scale),
            Self::Date => out.date(value),
            Self::Time(per_second) => out.time(value, per_second),
            Self::Timestamp { per_second, is_utc } => {
                out.timestamp(value, per_second, is_utc.then_some(zone.unwrap_or("UTC")));
            }
            Self::Duration(per_second) => out.duration(value, per_second),
            _ => out.integer(value),
        }
    }

    fn pack_bytes(self, value: &[u8], out: &mut Packer) {
        match (self, value) {
            (Self::Decimal(scale), _) => out.decimal(value, scale),
            (Self::Float16, &[low, high]) => out.float(half::f16::from_le_bytes([low, high]).into()),
            (Self::Uuid, _) if value.len() == 16 => out.uuid(value),
            (Self::Null, _) => out.unknown(),
            _ => out.binary(value),
        }
    }
}
