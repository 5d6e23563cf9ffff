//! The column of texts, and columns in messages.

use parquet::basic::Type;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescPtr;

use super::leaf::Leaf;
use crate::format::columns::shown;

/// Finds the leaf of strings whose path is `name`: its name, or those of the structs around it and its own, with dots
/// between them. The file has `size` bytes.
pub(super) fn find(metadata: &ParquetMetaData, name: &str, size: u64) -> Result<Leaf, String> {
    let columns = metadata.file_metadata().schema_descr().columns();
    let expected = format!("expected a column of strings named {name:?}");
    let Some(index) = columns.iter().position(|column| column.path().string() == name) else {
        return Err(format!("{expected}, found {}; set text_field=", names(columns)));
    };
    let other = match columns[index].physical_type() {
        _ if columns[index].max_rep_level() > 0 => "lists".to_owned(),
        Type::BYTE_ARRAY => return Leaf::new(metadata, index, size),
        other => format!("{other} values"),
    };
    Err(format!("{expected}, found one of {other}; set text_field="))
}

/// Columns of a file, for a message.
pub(super) fn names(columns: &[ColumnDescPtr]) -> String {
    shown(columns.iter().map(|column| column.path().string()))
}
