//! JSON objects as lists of keys and values, in their order, with values as they are written.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object.
pub(super) struct Pairs<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Pairs<'a> {
    /// The value of a key; of one that is there twice the last, as JSON parsers have it.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    pairs.push((key, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A key, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Writes an object, with other values where `instead` has some.
pub(super) fn write_pairs(
    out: &mut String,
    pairs: &[(Cow<'_, str>, &RawValue)],
    mut instead: impl FnMut(&str, &RawValue) -> Result<Option<String>, String>,
) -> Result<(), String> {
    out.push('{');
    for (number, (key, value)) in pairs.iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        out.push_str(&serde_json::to_string(key).map_err(|error| error.to_string())?);
        out.push(':');
        match instead(key, value)? {
            Some(other) => out.push_str(&other),
            None => out.push_str(value.get()),
        }
    }
    out.push('}');
    Ok(())
}
