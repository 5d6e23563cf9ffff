//! Where an object is: its URL, taken apart.

/// A store, and the key of an object in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Scheme and authority: `gs://bucket`. Objects with the same are in one store. For the hub it has the repository,
    /// too: `hf://datasets/owner/name@revision`.
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
        if let Some((_, host)) = authority.rsplit_once('@').filter(|_| scheme.starts_with("http")) {
            return Err(format!(
                "{scheme}://{host}/{key}: expected a URL without a name and password, which are not sent; download the \
                 object, or use a signed URL"
            ));
        }
        Ok(Self { root: format!("{scheme}://{authority}"), key: key.to_owned() })
    }

    /// The URL of an object at a server of the web, as it is sent: what is escaped stays so, and a query is one. None: it is in
    /// another store.
    pub(crate) fn web_address(&self) -> Option<String> {
        if !self.root.starts_with("http://") && !self.root.starts_with("https://") {
            return None;
        }
        let mut address = format!("{}/", self.root);
        let mut rest = self.key.as_str();
        // Parsers of URLs leave out white space of lines.
        while let Some(at) = rest.find(['%', '#', '\t', '\n', '\r']) {
            address.push_str(&rest[..at]);
            let (found, after) = (rest.as_bytes()[at], &rest[at + 1..]);
            let is_escape = after.len() >= 2 && after.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
            if found == b'%' && is_escape {
                address.push('%');
            } else {
                address.extend(format!("%{found:02X}").chars());
            }
            rest = after;
        }
        address.push_str(rest);
        Some(address)
    }

    fn of_hub(url: &str, rest: &str) -> Result<Self, String> {
        let found = rest.strip_prefix("datasets/").and_then(|rest| {
            // A name without an owner has a revision, or else would be an owner.
            let has_owner = !rest.split('/').next()?.contains('@');
            let (slash, _) = rest.match_indices('/').nth(usize::from(has_owner))?;
            let (repository, key) = rest.split_at(slash);
            repository.split('/').all(|part| !part.is_empty()).then_some((repository, key))
        });
        let (repository, key) =
            found.ok_or_else(|| format!("{url}: expected hf://datasets/owner/name@revision/path"))?;
        Ok(Self { root: format!("hf://datasets/{repository}"), key: key[1..].to_owned() })
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
        let refused = parsed("https://name:p@ss@h/a@b").unwrap_err();
        assert!(refused.starts_with("https://h/a@b: expected a URL without"), "{refused}");
        assert_eq!(parsed("https://h/a@b"), Ok(("https://h".into(), "a@b".into())));
        assert_eq!(parsed("hf://datasets/o/n@0f/a/b"), Ok(("hf://datasets/o/n@0f".into(), "a/b".into())));
        assert_eq!(parsed("hf://datasets/o/n/a@b"), Ok(("hf://datasets/o/n".into(), "a@b".into())));
        assert_eq!(parsed("hf://datasets/n@0f/a/b"), Ok(("hf://datasets/n@0f".into(), "a/b".into())));
        let address = |url| Location::parse(url).unwrap().web_address();
        assert_eq!(address("gs://b/a?b"), None);
        for (url, expected) in [
            ("https://h/a/b.jsonl?sig=a%2Bb%2Fc%3D%3D&x=1", "https://h/a/b.jsonl?sig=a%2Bb%2Fc%3D%3D&x=1"),
            ("http://h:80/a%20b/c+d%25.jsonl", "http://h:80/a%20b/c+d%25.jsonl"),
            ("http://h/a b/é/100%.x#1%2", "http://h/a b/é/100%25.x%231%252"),
            ("http://h/a\tb\n", "http://h/a%09b%0A"),
            ("http://h", "http://h/"),
        ] {
            assert_eq!(address(url).as_deref(), Some(expected));
        }
        for url in ["hf://models/o/n/a", "hf://datasets/o/n", "hf://datasets//n/a"] {
            assert!(parsed(url).unwrap_err().contains("datasets/owner/name@revision"), "{url}");
        }
    }
}
