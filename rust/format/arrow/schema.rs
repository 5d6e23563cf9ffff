//! The schema of a file: its columns and their types.

use super::flatbuffer::{Damaged, Table};

/// The deepest and the largest accepted schema: it is walked recursively, and its tables may be shared.
const DEEPEST: usize = 64;
const MOST_FIELDS: usize = 100_000;

/// A column, or a part of one.
#[derive(Debug, Clone)]
pub(in crate::format) struct Field {
    pub(in crate::format) name: String,
    pub(in crate::format) kind: Kind,
    pub(in crate::format) children: Vec<Field>,
    /// The number of the dictionary that holds its values, and the width of their indices.
    pub(in crate::format) dictionary: Option<(i64, Integer)>,
    /// The time zone of timestamps.
    pub(in crate::format) zone: Option<String>,
    /// Whether its strings are JSON.
    pub(super) is_json: bool,
}

/// The extension types of strings that are JSON, and of 16 bytes that are a UUID.
const JSON: &str = "arrow.json";
const UUID: &str = "arrow.uuid";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::format) struct Integer {
    /// Bytes.
    pub(in crate::format) width: usize,
    pub(in crate::format) is_signed: bool,
}

/// The type of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::format) enum Kind {
    Null,
    Integer(Integer),
    /// Bytes of a float.
    Float(usize),
    Boolean,
    Decimal {
        width: usize,
        scale: i32,
    },
    /// Days, or milliseconds in whole days.
    Date {
        in_milliseconds: bool,
    },
    Time {
        width: usize,
        per_second: i64,
    },
    Timestamp {
        per_second: i64,
        is_utc: bool,
    },
    Duration {
        per_second: i64,
    },
    FixedBytes(usize),
    Uuid,
    /// Strings, or bytes; with offsets of 4 or 8 bytes.
    Bytes {
        is_text: bool,
        offset: usize,
    },
    /// The same, by views.
    View {
        is_text: bool,
    },
    /// With offsets of 4 or 8 bytes.
    List(usize),
    FixedList(usize),
    Map,
    Struct,
    /// One that is not read, with its number of buffers.
    Other {
        name: &'static str,
        buffers: usize,
    },
}

/// Reads the fields of a schema.
pub(super) fn fields(schema: Table<'_>) -> Result<Vec<Field>, Damaged> {
    let mut left = MOST_FIELDS;
    fields_of(schema, 1, 0, &mut left)
}

fn fields_of(table: Table<'_>, slot: usize, depth: usize, left: &mut usize) -> Result<Vec<Field>, Damaged> {
    let Some(children) = table.vector(slot, 4)? else { return Ok(Vec::new()) };
    if depth > DEEPEST || children.length > *left {
        return Err(Damaged);
    }
    *left -= children.length;
    children.tables().map(|child| field(child?, depth, left)).collect()
}

fn field(table: Table<'_>, depth: usize, left: &mut usize) -> Result<Field, Damaged> {
    let children = fields_of(table, 5, depth + 1, left)?;
    let extension = extension(table)?;
    let kind = match kind(table)? {
        Kind::FixedBytes(16) if extension == Some(UUID) => Kind::Uuid,
        kind => kind,
    };
    let expected = match kind {
        Kind::List(_) | Kind::FixedList(_) | Kind::Map => Some(1),
        Kind::Struct | Kind::Other { .. } => None,
        _ => Some(0),
    };
    let is_map = |child: &Field| child.kind == Kind::Struct && child.children.len() == 2;
    if expected.is_some_and(|expected| expected != children.len())
        || kind == Kind::Map && !children.iter().all(is_map)
    {
        return Err(Damaged);
    }
    let zone = match (kind, table.table(3)?) {
        (Kind::Timestamp { is_utc: true, .. }, Some(kind)) => kind.text(1)?.map(str::to_owned),
        _ => None,
    };
    let dictionary = match table.table(4)? {
        Some(encoding) => {
            let index = match encoding.table(1)? {
                Some(index) => integer(index)?,
                None => Integer { width: 4, is_signed: true },
            };
            Some((encoding.i64(0)?, index))
        }
        None => None,
    };
    let name = table.text(0)?.unwrap_or_default().to_owned();
    let is_text = matches!(kind, Kind::Bytes { is_text: true, .. } | Kind::View { is_text: true });
    Ok(Field { name, kind, children, dictionary, zone, is_json: is_text && extension == Some(JSON) })
}

/// The name of a field's extension type.
fn extension(field: Table<'_>) -> Result<Option<&str>, Damaged> {
    let Some(metadata) = field.vector(6, 4)? else { return Ok(None) };
    for pair in metadata.tables() {
        let pair = pair?;
        if pair.text(0)? == Some("ARROW:extension:name") {
            return pair.text(1);
        }
    }
    Ok(None)
}

fn kind(field: Table<'_>) -> Result<Kind, Damaged> {
    let number = field.u8(2)?;
    // Types without fields may be left out.
    let table = field.table(3)?;
    let i16 = |slot, default| table.map_or(Ok(default), |table| table.i16(slot, default));
    let i32 = |slot, default| table.map_or(Ok(default), |table| table.i32(slot, default));
    let width = |slot| usize::try_from(i32(slot, 0)?).map_err(|_| Damaged);
    Ok(match number {
        1 => Kind::Null,
        2 => Kind::Integer(table.map_or(Err(Damaged), integer)?),
        3 => Kind::Float(match i16(0, 0)? {
            0 => 2,
            1 => 4,
            2 => 8,
            _ => return Err(Damaged),
        }),
        4 => Kind::Bytes { is_text: false, offset: 4 },
        5 => Kind::Bytes { is_text: true, offset: 4 },
        6 => Kind::Boolean,
        7 => match i32(2, 128)? {
            bits @ (32 | 64 | 128 | 256) => Kind::Decimal { width: bits as usize / 8, scale: i32(1, 0)? },
            _ => return Err(Damaged),
        },
        8 => Kind::Date { in_milliseconds: i16(0, 1)? == 1 },
        9 => match i32(1, 32)? {
            bits @ (32 | 64) => Kind::Time { width: bits as usize / 8, per_second: per_second(i16(0, 1)?)? },
            _ => return Err(Damaged),
        },
        10 => {
            let zone = table.map_or(Ok(None), |table| table.text(1))?;
            Kind::Timestamp {
                per_second: per_second(i16(0, 0)?)?,
                is_utc: zone.is_some_and(|zone| !zone.is_empty()),
            }
        }
        11 => Kind::Other { name: "interval", buffers: 2 },
        12 => Kind::List(4),
        13 => Kind::Struct,
        // Sparse unions have types, dense ones offsets, too.
        14 => Kind::Other { name: "union", buffers: 1 + usize::from(i16(0, 0)? == 1) },
        15 => Kind::FixedBytes(width(0)?),
        16 => Kind::FixedList(width(0)?),
        17 => Kind::Map,
        18 => Kind::Duration { per_second: per_second(i16(0, 1)?)? },
        19 => Kind::Bytes { is_text: false, offset: 8 },
        20 => Kind::Bytes { is_text: true, offset: 8 },
        21 => Kind::List(8),
        22 => Kind::Other { name: "run-end encoded", buffers: 0 },
        23 => Kind::View { is_text: false },
        24 => Kind::View { is_text: true },
        25 | 26 => Kind::Other { name: "list view", buffers: 3 },
        _ => return Err(Damaged),
    })
}

fn integer(table: Table<'_>) -> Result<Integer, Damaged> {
    match table.i32(0, 0)? {
        bits @ (8 | 16 | 32 | 64) => Ok(Integer { width: bits as usize / 8, is_signed: table.boolean(1)? }),
        _ => Err(Damaged),
    }
}

fn per_second(unit: i16) -> Result<i64, Damaged> {
    match unit {
        0 => Ok(1),
        1 => Ok(1000),
        2 => Ok(1_000_000),
        3 => Ok(1_000_000_000),
        _ => Err(Damaged),
    }
}

impl Field {
    /// Whether it is of strings by views, or holds such.
    pub(super) fn has_views(&self) -> bool {
        let mut found = false;
        self.for_each(&mut |field| found |= matches!(field.kind, Kind::View { .. }));
        found
    }

    /// The field without its dictionary: that of the dictionary's values.
    pub(super) fn of_values(&self) -> Self {
        Self { dictionary: None, ..self.clone() }
    }

    /// Calls `each` with this field and all inside it.
    pub(super) fn for_each<'a>(&'a self, each: &mut impl FnMut(&'a Field)) {
        each(self);
        self.children.iter().for_each(|child| child.for_each(each));
    }

    /// The type for a person.
    pub(super) fn type_name(&self) -> String {
        let children = || self.children.iter().map(|child| format!("{}: {}", child.name, child.type_name()));
        let item = || self.children.first().map(Field::type_name).unwrap_or_default();
        let name = match self.kind {
            Kind::Null => "null".to_owned(),
            Kind::Integer(Integer { width, is_signed }) => {
                format!("{}int{}", if is_signed { "" } else { "u" }, 8 * width)
            }
            Kind::Float(width) => format!("float{}", 8 * width),
            Kind::Boolean => "bool".to_owned(),
            Kind::Decimal { .. } => "decimal".to_owned(),
            Kind::Date { .. } => "date".to_owned(),
            Kind::Time { .. } => "time".to_owned(),
            Kind::Timestamp { .. } => "timestamp".to_owned(),
            Kind::Duration { .. } => "duration".to_owned(),
            Kind::FixedBytes(width) => format!("binary[{width}]"),
            Kind::Uuid => "uuid".to_owned(),
            _ if self.is_json => "json".to_owned(),
            Kind::Bytes { is_text: true, .. } | Kind::View { is_text: true } => "string".to_owned(),
            Kind::Bytes { .. } | Kind::View { .. } => "binary".to_owned(),
            Kind::List(_) => format!("list<{}>", item()),
            Kind::FixedList(length) => format!("list<{}>[{length}]", item()),
            Kind::Map => format!("map<{}>", item()),
            Kind::Struct => format!("struct<{}>", children().collect::<Vec<_>>().join(", ")),
            Kind::Other { name, .. } => name.to_owned(),
        };
        if self.dictionary.is_some() { format!("dictionary<{name}>") } else { name }
    }
}
