//! Names: the key and the extension of a member, by the rules of `WebDataset` and Energon.

/// A name divided into the key of its group and its extension: at the first dot of the base name, or before a base
/// name that begins with one. None: the member belongs to no group.
///
/// ```text
/// d/x.y/k.seg.png   d/x.y/k + seg.png        README         none
/// d/.hidden         d/ + hidden              .hidden        none
///                                            __meta__/x.y   none
/// ```
pub(super) fn divide(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if is_metadata(name) {
        return None;
    }
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].iter().position(|&byte| byte == b'.')?;
    if dot > base {
        return Some((&name[..dot], &name[dot + 1..]));
    }
    // The key is the folder, unless its name has a dot.
    let folder = name[..base].strip_suffix(b"/")?;
    let folder = folder.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    (!folder.contains(&b'.')).then_some((&name[..base], &name[dot + 1..]))
}

/// Whether the first step of the path is `__...__`: `WebDataset`'s own entries.
fn is_metadata(name: &[u8]) -> bool {
    let first = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_divided_as_by_the_pattern_of_webdataset() {
        let cases = [
            ("a.txt", Some(("a", "txt"))),
            ("d/x.y/k.seg.PNG", Some(("d/x.y/k", "seg.PNG"))),
            ("./a b.", Some(("./a b", ""))),
            ("a..b", Some(("a", ".b"))),
            ("d/.hidden", Some(("d/", "hidden"))),
            ("a.b/d/.x.y", Some(("a.b/d/", "x.y"))),
            ("/.x", Some(("/", "x"))),
            ("d//.x", Some(("d//", "x"))),
            ("__key__.json", Some(("__key__", "json"))),
            ("x/__meta__/a.b", Some(("x/__meta__/a", "b"))),
            ("___/a.b", Some(("___/a", "b"))),
            ("a.b/.x", None),
            ("./.x", None),
            (".x", None),
            ("a.b/c", None),
            ("README", None),
            ("d/", None),
            ("", None),
            ("__meta__/a.b", None),
            ("__a.b__", None),
            ("____", None),
        ];
        for (name, expected) in cases {
            let expected = expected.map(|(key, part)| (key.as_bytes(), part.as_bytes()));
            assert_eq!(divide(name.as_bytes()), expected, "{name}");
        }
    }
}
