//! Paths: where a value is in a record.

/// A step from a value into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To an object's member with this key; the last of several.
    Key(String),
    /// To an array's item; negative indices count from the end.
    Index(i64),
    /// To each item of an array.
    All,
}

/// Steps from a record to a value.
pub type Path = Vec<Step>;
