//! Where an object is: its URL, taken apart.

/// The schemes of stores on the network.
const SCHEMES: [&str; 10] = ["gs", "s3", "s3a", "az", "azure", "abfs", "abfss", "adl", "http", "https"];

/// Whether a name is a URL of a store on the network, and not a path.
pub fn is_remote(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// A store, and the key of an object in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Scheme and authority: `gs://bucket`. Objects with the same are in one store.
    pub root: String,
    /// The rest, without a slash at the start, as it is spelled: the store encodes what a request must encode.
    pub key: String,
}

impl Location {
    /// Takes a URL apart. The error says what it lacks.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("{url}: expected a URL"))?;
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err(format!(
                "{url}: expected a {} behind {scheme}://",
                if scheme.starts_with("http") { "host" } else { "bucket" }
            ));
        }
        Ok(Self { root: format!("{scheme}://{authority}"), key: key.to_owned() })
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
    }

    #[test]
    fn paths_are_not_remote() {
        for path in ["a", "/a/b", "a:b", "c://x", "file:///a", ""] {
            assert!(!is_remote(path), "{path}");
        }
        assert!(is_remote("gs://b/x") && is_remote("https://h/x"));
    }
}
