//! Values in the names of folders, as Hive, Spark and others write them: `data/lang=en/year=2024/part.parquet`.

use std::borrow::Cow;

/// The name of a value that is null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The value of the last folder `key=value` in the path of a shard. None: there is none, or it is null.
pub(super) fn value<'a>(shard: &'a str, key: &str) -> Option<Cow<'a, str>> {
    let (folders, _) = shard.rsplit_once('/')?;
    let pairs = folders.rsplit('/').filter_map(|folder| folder.split_once('='));
    let mut values = pairs.filter(|(name, _)| unescaped(name) == key).map(|(_, value)| unescaped(value));
    values.next().filter(|value| *value != NULL)
}

/// A name without the escapes of its characters, such as `%3A`; one that is no valid text then stays as it is.
fn unescaped(name: &str) -> Cow<'_, str> {
    if !name.contains('%') {
        return Cow::Borrowed(name);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.first_chunk().filter(|_| first == b'%').and_then(|digits: &[u8; 2]| {
            let both =
                digits.iter().all(u8::is_ascii_hexdigit).then(|| std::str::from_utf8(digits).ok())??;
            u8::from_str_radix(both, 16).ok()
        });
        bytes.push(digits.unwrap_or(first));
        rest = if digits.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(name), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_values() {
        let shard =
            "s3://b/lang=de/year=2024/lang=en/day%20=a%3Ab=c%/n=__HIVE_DEFAULT_PARTITION__/x=1.parquet[0:5]";
        let found = |key| value(shard, key);
        assert_eq!(found("lang").as_deref(), Some("en"));
        assert_eq!(found("year").as_deref(), Some("2024"));
        assert_eq!(found("day ").as_deref(), Some("a:b=c%"));
        assert_eq!([found("n"), found("x"), found(""), value("x=1", "x")], [const { None }; 4]);
        assert_eq!(value("a=%ff/x", "a").as_deref(), Some("%ff"));
    }
}
