//! A key of records, which may lead into objects.

use std::borrow::Cow;

use crate::format::{self, Path, Step, Values, View};

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
        Self::of_paths(key, meanings(key), paths, columns)
    }

    /// The same for the first of some members that a record has: each is a name, and keys that lead into its JSON.
    pub fn first_of(
        key: &str,
        members: &[Vec<String>],
        paths: &mut Vec<Path>,
        columns: &mut Vec<String>,
    ) -> Self {
        let meanings = members.iter().flat_map(|member| exact(member)).collect();
        Self::of_paths(key, meanings, paths, columns)
    }

    fn of_paths(key: &str, meanings: Vec<Path>, paths: &mut Vec<Path>, columns: &mut Vec<String>) -> Self {
        let mut indices = Vec::new();
        for path in meanings {
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
    pub fn of<'a>(&self, values: &Values<'a>) -> Option<View<'a>> {
        self.paths.iter().find_map(|path| values.get(*path))
    }

    /// The string of a record. The error says what was expected and found.
    pub fn text<'a>(&self, values: &Values<'a>) -> Result<Cow<'a, str>, String> {
        let found = self.of(values).ok_or("no such key").and_then(format::text);
        found.map_err(|found| format!("expected a string under the key {:?}, found {found}", self.key))
    }

    /// The string of a record under the key that an argument of the sample names. The error says so where there is none.
    pub fn text_of<'a>(&self, values: &Values<'a>, argument: &str) -> Result<Cow<'a, str>, String> {
        if self.of(values).is_none() {
            return Err(self.missing(values, "a string", argument));
        }
        self.text(values)
    }

    /// The error of a record without the key that an argument of the sample names.
    pub fn missing(&self, values: &Values<'_>, what: &str, argument: &str) -> String {
        let found = values.keys().map(|keys| format!(", but an object {keys}")).unwrap_or_default();
        format!(
            "expected {what} under the key {:?}, found no such key{found}; name another one with {argument}=",
            self.key
        )
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

/// The paths that a member and the keys into it may mean: a number is a key of an object, or an index of a list.
fn exact(member: &[String]) -> Vec<Path> {
    let mut found = vec![Path::new()];
    for (number, key) in member.iter().enumerate() {
        let index = key.parse().ok().filter(|_| number > 0).map(Step::Index);
        let steps: Vec<Step> = std::iter::once(Step::Key(key.clone())).chain(index).collect();
        let with = |path: &Path| {
            steps.iter().map(|step| [&**path, std::slice::from_ref(step)].concat()).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(with).collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_is_its_whole_name() {
        let key = |name: &str| Step::Key(name.to_owned());
        let member = ["json", "a.b", "0"].map(str::to_owned);
        let expected =
            vec![vec![key("json"), key("a.b"), key("0")], vec![key("json"), key("a.b"), Step::Index(0)]];
        assert_eq!(exact(&member), expected);
        let (mut paths, mut columns) = (Vec::new(), Vec::new());
        let members = [vec!["gt.txt".to_owned()], member.to_vec()];
        let field = Field::first_of("caption", &members, &mut paths, &mut columns);
        assert_eq!(field.paths, [0, 1, 2]);
        assert_eq!(columns, ["gt.txt", "json", "json"]);
    }

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
