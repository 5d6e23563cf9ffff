//! A key of records, which may lead into objects.

use crate::format::{Path, Step, Value, Values};

/// A key whose value is wanted of each record: that of the key itself, or for one with dots, of a key inside of an
/// object. `a.b` is the key `a.b`, or else `b` of the object under `a`.
#[derive(Debug, Clone)]
pub struct Field {
    /// The indices in the projection of the paths that it may mean, the first that is there counts.
    paths: Vec<usize>,
    key: String,
}

impl Field {
    /// Adds what a projection needs for a key: paths, each of which it has once, and columns.
    pub fn add(key: &str, paths: &mut Vec<Path>, columns: &mut Vec<String>) -> Self {
        let mut indices = Vec::new();
        for path in meanings(key) {
            if let Some(Step::Key(column)) = path.first() {
                columns.push(column.clone());
            }
            let known = paths.iter().position(|known| *known == path);
            indices.push(known.unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            }));
        }
        Self { paths: indices, key: key.to_owned() }
    }

    /// The value of a record.
    pub fn of<'a>(&self, values: &Values<'a>) -> Option<Value<'a>> {
        self.paths.iter().find_map(|path| values.get(*path))
    }

    /// The key, for messages.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The paths that a key may mean: itself, and what is behind each dot as a key of the object under what is before.
fn meanings(key: &str) -> Vec<Path> {
    let mut found = vec![vec![Step::Key(key.to_owned())]];
    if let Some((outer, inner)) = key.split_once('.') {
        for mut path in meanings(inner) {
            path.insert(0, Step::Key(outer.to_owned()));
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_dots_is_itself_or_leads_into_objects() {
        let key = |name: &str| Step::Key(name.to_owned());
        let paths = vec![vec![key("a.b.c")], vec![key("a"), key("b.c")], vec![key("a"), key("b"), key("c")]];
        assert_eq!(meanings("a.b.c"), paths);
        let (mut paths, mut columns) = (vec![vec![key("a"), key("b")]], Vec::new());
        let field = Field::add("a.b", &mut paths, &mut columns);
        assert_eq!((field.paths, paths.len()), (vec![1, 0], 2), "each path once");
        assert_eq!(columns, ["a.b", "a"]);
    }
}
