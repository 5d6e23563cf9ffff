//! The column of texts, and columns in messages.

use parquet::basic::Type;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescPtr;

use super::leaf::Leaf;
use super::rows::holds_json;
use crate::format::columns::shown;

/// Finds the leaf of strings whose path is `name`: its name, or those of the structs around it and its own, with dots
/// between them. None: the text is, or is inside of, the JSON that a column holds. The file has `size` bytes.
pub(super) fn find(metadata: &ParquetMetaData, name: &str, size: u64) -> Result<Option<Leaf>, String> {
    let columns = metadata.file_metadata().schema_descr().columns();
    let expected = format!("expected a column of strings named {name:?}");
    let is_around = |column: &ColumnDescPtr| {
        let inside = name.strip_prefix(&column.path().string());
        inside.is_some_and(|inside| inside.starts_with('.')) && column.max_rep_level() == 0
    };
    let Some(index) = columns.iter().position(|column| column.path().string() == name) else {
        if columns.iter().any(|column| is_around(column) && holds_json(column.self_type())) {
            return Ok(None);
        }
        return Err(format!("{expected}, found {}; set text_field=", names(columns)));
    };
    let other = match columns[index].physical_type() {
        _ if columns[index].max_rep_level() > 0 => "lists".to_owned(),
        _ if holds_json(columns[index].self_type()) => return Ok(None),
        Type::BYTE_ARRAY => return Leaf::new(metadata, index, size).map(Some),
        other => format!("{other} values"),
    };
    Err(format!("{expected}, found one of {other}; set text_field="))
}

/// Columns of a file, for a message.
pub(super) fn names(columns: &[ColumnDescPtr]) -> String {
    shown(columns.iter().map(|column| column.path().string()))
}
