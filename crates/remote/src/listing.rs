//! A page of a listing, as stores with the interfaces of S3, Google and Azure answer it, before it is parsed.
//!
//! The parser refuses a page with one key that it cannot name, and takes a page that was cut off for the last one. So such
//! keys are taken out of the page, and a page that ends early is an error.

use bytes::Bytes;
use object_store::path::Path;

use crate::retries::{Attempt, Kind};

/// The elements of objects and of folders, with the element inside that holds the key.
const ELEMENTS: [(&str, &str); 4] =
    [("Contents", "Key"), ("CommonPrefixes", "Prefix"), ("Blob", "Name"), ("BlobPrefix", "Name")];

/// The elements around all others.
const ROOTS: [&str; 2] = ["<ListBucketResult", "<EnumerationResults"];

/// Keys of a page that no request can name. Keys of folders end in a slash.
#[derive(Debug, Clone, Default)]
pub(crate) struct OddKeys(pub(crate) Vec<String>);

/// A page without the keys that no request can name, and these. The error says that the page is not whole, or no page.
pub(crate) fn page(body: Bytes) -> Result<(Bytes, OddKeys), Attempt> {
    let mut odd = OddKeys::default();
    let xml = std::str::from_utf8(&body).unwrap_or_default();
    if !ROOTS.iter().any(|root| xml.contains(root)) {
        let start = String::from_utf8_lossy(&body[..body.len().min(100)]);
        return Err(Attempt { kind: Kind::Odd, reason: format!("no listing in XML, but {start:?}") });
    }
    if inside(xml, "IsTruncated") == Some("true")
        && inside(xml, "NextContinuationToken").is_none_or(str::is_empty)
    {
        let reason = "expected the token of the next page of a listing (NextContinuationToken), found a page that is cut off \
                    (IsTruncated) without one: the store knows only the first version of S3's listings; name its objects one \
                    by one, without globs";
        return Err(Attempt { kind: Kind::Refused, reason: reason.to_owned() });
    }
    let (mut kept, mut rest) = (String::new(), xml);
    while let Some((before, element, after)) = next(rest) {
        let key = ELEMENTS.iter().find(|(name, _)| element.starts_with(&format!("<{name}>")));
        let key = key.and_then(|(_, key)| inside(element, key)).map(unescaped).unwrap_or_default();
        let is_folder = element.starts_with("<CommonPrefixes>") || element.starts_with("<BlobPrefix>");
        kept.push_str(before);
        // An object whose key ends in a slash stands for an empty folder.
        let is_marker = !is_folder && key.ends_with('/');
        if !is_marker && is_plain(&key) {
            kept.push_str(element);
        } else if !is_marker || !is_plain(&key) {
            odd.0.push(key);
        }
        rest = after;
    }
    kept.push_str(rest);
    Ok((if kept.len() == xml.len() { body } else { kept.into() }, odd))
}

/// Whether requests can name a key.
fn is_plain(key: &str) -> bool {
    !key.starts_with('/') && Path::parse(key).is_ok()
}

/// The next element of an object or folder, with what is before it and after it.
fn next(xml: &str) -> Option<(&str, &str, &str)> {
    let starts = ELEMENTS.iter().filter_map(|(name, _)| Some((xml.find(&format!("<{name}>"))?, *name)));
    let (start, name) = starts.min()?;
    let close = format!("</{name}>");
    let end = start + xml[start..].find(&close)? + close.len();
    Some((&xml[..start], &xml[start..end], &xml[end..]))
}

/// The text of the first element of this name.
fn inside<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = xml.find(&open)? + open.len();
    Some(&xml[start..start + xml[start..].find(&close)?])
}

/// A text without the references of XML.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        let (name, after) = rest[at + 1..].split_once(';').unwrap_or(("", &rest[at + 1..]));
        let code = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        let found = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => name.strip_prefix('#').and_then(|digits| match digits.strip_prefix('x') {
                Some(digits) => code(digits, 16),
                None => code(digits, 10),
            }),
        };
        plain.push(found.unwrap_or('&'));
        rest = if found.is_some() { after } else { &rest[at + 1..] };
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[&str], rest: &str) -> Bytes {
        let contents: String = keys
            .iter()
            .map(|key| match key.strip_prefix("folder ") {
                Some(folder) => format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"),
                None => format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"),
            })
            .collect();
        format!("<ListBucketResult>{rest}{contents}</ListBucketResult>").into()
    }

    #[test]
    fn odd_keys_are_taken_out() {
        let good = ["a b/%20.jsonl", "d/x&amp;y", "folder d/", ".hidden/x", "folder é/"];
        let odd = [
            ("d//", "d//"),
            ("d//x", "d//x"),
            ("d/./x", "d/./x"),
            ("..", ".."),
            ("d/tab&#x9;x&#1;", "d/tab\tx\u{1}"),
            ("/lead", "/lead"),
            ("folder d//", "d//"),
            ("folder /", "/"),
        ];
        let all: Vec<&str> = good.into_iter().chain(odd.iter().map(|(key, _)| *key)).collect();
        let (found, keys) = page(listed(&all, "")).unwrap();
        assert_eq!(found, listed(&good, ""));
        assert_eq!(keys.0, odd.map(|(_, key)| key));
        // Objects that stand for empty folders.
        let (found, keys) = page(listed(&["d/", "d/x"], "")).unwrap();
        assert_eq!((found, keys.0.len()), (listed(&["d/x"], ""), 0));
        let azure = "<EnumerationResults><Blobs><Blob><Name>a//b</Name></Blob><Blob><Name>a</Name></Blob><BlobPrefix>\
                     <Name>c//</Name></BlobPrefix></Blobs><NextMarker/></EnumerationResults>";
        let (found, keys) = page(azure.into()).unwrap();
        assert!(found.starts_with(b"<EnumerationResults><Blobs><Blob><Name>a</Name></Blob></Blobs>"));
        assert_eq!(keys.0, ["a//b", "c//"]);
    }

    #[test]
    fn pages_that_are_cut_off_have_a_token() {
        let truncated = "<IsTruncated>true</IsTruncated>";
        for rest in ["", "<NextContinuationToken></NextContinuationToken>", "<NextMarker>a</NextMarker>"] {
            let error = page(listed(&["a"], &format!("{truncated}{rest}"))).unwrap_err();
            assert!(error.reason.contains("first version of S3's listings"), "{error}");
        }
        let token = "<NextContinuationToken>t</NextContinuationToken>";
        assert!(page(listed(&["a"], &format!("{truncated}{token}"))).is_ok());
        assert!(page(listed(&["a"], "<IsTruncated>false</IsTruncated>")).is_ok());
        for other in ["", "<html><body>Log in</body></html>"] {
            assert_eq!(page(other.into()).unwrap_err().kind, Kind::Odd);
        }
    }
}
