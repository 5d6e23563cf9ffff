//! Where an object is: its URL, taken apart.

/// A store, and the key of an object in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Scheme and authority: `gs://bucket`. Objects with the same are in one store. Of the hub the repository, too:
    /// `hf://datasets/owner/name@revision`.
    pub root: String,
    /// The rest, without a slash at the start, as it is spelled: the store encodes what a request must encode.
    pub key: String,
}

impl Location {
    /// Takes a URL apart. The error says what it lacks.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("{url}: expected a URL"))?;
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if scheme == "hf" {
            return Self::of_hub(url, rest);
        }
        if authority.is_empty() {
            return Err(format!(
                "{url}: expected a {} behind {scheme}://",
                if scheme.starts_with("http") { "host" } else { "bucket" }
            ));
        }
        Ok(Self { root: format!("{scheme}://{authority}"), key: key.to_owned() })
    }

    fn of_hub(url: &str, rest: &str) -> Result<Self, String> {
        let mut parts = rest.splitn(4, '/');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some("datasets"), Some(owner), Some(name), Some(key)]
                if !owner.is_empty() && !name.is_empty() =>
            {
                Ok(Self { root: format!("hf://datasets/{owner}/{name}"), key: key.to_owned() })
            }
            _ => Err(format!("{url}: expected hf://datasets/owner/name@revision/path")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_store_and_key() {
        let parsed = |url| Location::parse(url).map(|found| (found.root, found.key));
        assert_eq!(parsed("gs://b/a/é x.gz"), Ok(("gs://b".into(), "a/é x.gz".into())));
        assert_eq!(parsed("http://[::1]:80/a"), Ok(("http://[::1]:80".into(), "a".into())));
        assert_eq!(parsed("s3://b"), Ok(("s3://b".into(), String::new())));
        assert!(parsed("s3:///a").unwrap_err().contains("bucket"));
        assert_eq!(parsed("hf://datasets/o/n@0f/a/b"), Ok(("hf://datasets/o/n@0f".into(), "a/b".into())));
        for url in ["hf://models/o/n/a", "hf://datasets/o/n", "hf://datasets//n/a"] {
            assert!(parsed(url).unwrap_err().contains("datasets/owner/name@revision"), "{url}");
        }
    }
}
