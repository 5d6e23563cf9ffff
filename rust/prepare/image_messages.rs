//! Messages with images: `<image>` in what they say becomes a part of type image, as chat templates have it.
//!
//! ```text
//! {"role": "user", "content": "<image>What is it?"}
//! {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
//! ```
//!
//! A part may name the member that is its image: `{"type": "image", "image": "left.jpg"}`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::image_text::{PLACEHOLDER, check_seen, mismatch};
use super::json_pairs::{Pairs, write_pairs};

const IMAGE_PART: &str = r#"{"type":"image"}"#;
/// The keys of a part of type image that name its member, as strings or in an object.
const NAMES: [&str; 8] = ["image", "image_url", "url", "path", "image_path", "file", "file_name", "filename"];
/// The keys that hold the image itself.
const INLINE: [&str; 5] = ["data", "base64", "b64_json", "bytes", "source"];
/// The keys that would change its size.
const SIZES: [&str; 4] = ["min_pixels", "max_pixels", "resized_height", "resized_width"];
/// No name of a member is as long.
const LONGEST_NAME: usize = 512;

/// A list of messages with a part for each image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WithParts {
    pub(super) messages: String,
    /// The names that the parts give to their images, in order.
    pub(super) names: Vec<Option<String>>,
}

/// A list of messages with a part for each image. `images_first`: the images of a message come before its text, whose parts
/// are stripped of spaces. The error says what was expected and found.
pub(super) fn with_parts(messages: &str, images_first: bool) -> Result<WithParts, String> {
    let list: Vec<Pairs<'_>> = serde_json::from_str(messages)
        .map_err(|error| format!("expected a list of messages that are objects: {error}"))?;
    let (mut written, mut names) = (String::with_capacity(messages.len() + 64), Vec::new());
    for (number, Pairs(pairs)) in list.iter().enumerate() {
        written.push(if number == 0 { '[' } else { ',' });
        write_pairs(&mut written, pairs, |key, value| {
            if key != "content" {
                return Ok(None);
            }
            content_with_parts(value, images_first, &mut names)
                .map_err(|error| format!("message {number}: {error}"))
        })?;
    }
    written.push_str(if list.is_empty() { "[]" } else { "]" });
    Ok(WithParts { messages: written, names })
}

/// The index of each part among the images of a sample: by its name, or in order where parts have none. The images are
/// given by the members that they are in. The error says what was expected and found.
pub(super) fn order(names: &[Option<String>], key: &str, members: &[&str]) -> Result<Vec<usize>, String> {
    let known: Vec<&String> = names.iter().flatten().collect();
    if known.is_empty() {
        let counts = (names.len(), members.len());
        return if counts.0 == counts.1 {
            Ok((0..counts.0).collect())
        } else {
            Err(mismatch(counts.0, counts.1))
        };
    }
    if known.len() < names.len() {
        return Err(format!(
            "expected the name of a member in each part of type image, or in none, found {} names in {} parts",
            known.len(),
            names.len()
        ));
    }
    let base = key.rsplit('/').next().unwrap_or_default();
    let is = |name: &str, member: &str| {
        let of = |key: &str| name.strip_prefix(key).and_then(|rest| rest.strip_prefix('.')) == Some(member);
        name == member || of(base) || of(key)
    };
    let mut order = Vec::with_capacity(known.len());
    for name in known {
        let mut found = (0..members.len()).filter(|at| is(name, members[*at]));
        let (Some(first), None) = (found.next(), found.next()) else {
            return Err(format!(
                "expected parts of type image to name one image of the sample, of {members:?}, found {name:?}; name a member, \
                 or leave all names out to take images in order"
            ));
        };
        order.push(first);
    }
    match (0..members.len()).find(|at| !order.contains(at)) {
        None => Ok(order),
        Some(unused) => Err(format!(
            "expected a part of type image for each image, found none that names {:?}",
            members[unused]
        )),
    }
}

/// The content of a message, if it is another one with parts. Adds the names of its images, which may have none.
fn content_with_parts(
    content: &RawValue,
    images_first: bool,
    names: &mut Vec<Option<String>>,
) -> Result<Option<String>, String> {
    let wrong = |error| format!("expected text or parts as its content: {error}");
    match content.get().as_bytes().first() {
        Some(b'"') => {
            let text: String = serde_json::from_str(content.get()).map_err(wrong)?;
            check_seen(&text)?;
            let images = text.matches(PLACEHOLDER).count();
            names.extend(std::iter::repeat_n(None, images));
            if images > 0 { parts_of_text(&text, images_first).map(Some).map_err(wrong) } else { Ok(None) }
        }
        Some(b'[') => {
            let parts: Vec<&RawValue> = serde_json::from_str(content.get()).map_err(wrong)?;
            let (mut first, mut rest) = (Vec::new(), Vec::new());
            for part in parts {
                match Part::of(part)? {
                    Part::Image(name) => {
                        names.push(name);
                        first.push(part.get());
                    }
                    Part::Other => rest.push(part.get()),
                }
            }
            if !images_first || first.is_empty() {
                return Ok(None);
            }
            first.append(&mut rest);
            Ok(Some(format!("[{}]", first.join(","))))
        }
        _ => Ok(None),
    }
}

/// A part of what a message says.
enum Part {
    /// An image, and the name of its member if it has one.
    Image(Option<String>),
    Other,
}

impl Part {
    fn of(part: &RawValue) -> Result<Self, String> {
        if let Some(text) = string(part) {
            return check_seen(&text).map(|()| Self::Other);
        }
        let Ok(part) = serde_json::from_str::<Pairs<'_>>(part.get()) else { return Ok(Self::Other) };
        // Some templates know a part by its key alone.
        let kind = match part.get("type").and_then(string) {
            Some(kind) => kind,
            None => Cow::Borrowed(
                ["image", "image_url", "video", "audio"]
                    .into_iter()
                    .find(|key| part.get(key).is_some_and(|value| value.get() != "null"))
                    .unwrap_or_default(),
            ),
        };
        if kind.contains("video") || kind.contains("audio") {
            return Err(format!(
                "expected parts of texts and images, found one of type {kind:?}: videos and audio are not read"
            ));
        }
        if kind.contains("image") {
            return name_of(&part).map(Self::Image);
        }
        if let Some(text) = part.get("text").and_then(string) {
            check_seen(&text)?;
        }
        Ok(Self::Other)
    }
}

/// The name of the member that a part of type image, or an object in it, names.
fn name_of(Pairs(pairs): &Pairs<'_>) -> Result<Option<String>, String> {
    let mut found: Option<String> = None;
    for (key, value) in pairs {
        let json = value.get();
        let is_empty = matches!(json, "null" | r#""""#);
        if SIZES.contains(&&**key) && !is_empty {
            return Err(format!(
                "expected a part of type image without {key:?}: gm.ImageModel has the sizes of all images; leave it out"
            ));
        }
        if INLINE.contains(&&**key) && !is_empty && (key != "source" || json.starts_with('{')) {
            return Err(inline(key));
        }
        if !NAMES.contains(&&**key) || is_empty {
            continue;
        }
        let name = match (string(value), serde_json::from_str::<Pairs<'_>>(json)) {
            (Some(name), _) => Some(name.into_owned()),
            (None, Ok(object)) => name_of(&object)?,
            (None, Err(_)) => {
                return Err(format!(
                    "expected the name of a member under {key:?} in a part of type image, found {json:.80}"
                ));
            }
        };
        let Some(name) = name else { continue };
        if name.starts_with("data:") || name.len() > LONGEST_NAME {
            return Err(inline(key));
        }
        if name.contains("://") {
            return Err(format!(
                "expected the name of a member under {key:?} in a part of type image, found the URL {name:?}: nothing is \
                 fetched; write the image as a member of the tar and name that, or leave the name out"
            ));
        }
        if let Some(other) = found.replace(name.clone()).filter(|other| *other != name) {
            return Err(format!("expected one name in a part of type image, found {other:?} and {name:?}"));
        }
    }
    Ok(found)
}

fn inline(key: &str) -> String {
    format!(
        "expected the name of a member in a part of type image, found an image itself under {key:?}: write it as a member of \
         the tar and name that, or leave the name out"
    )
}

/// A value that is a string.
fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    #[serde(transparent)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    if !value.get().starts_with('"') {
        return None;
    }
    serde_json::from_str::<Text<'_>>(value.get()).ok().map(|text| text.0)
}

fn parts_of_text(text: &str, images_first: bool) -> serde_json::Result<String> {
    let (mut images, mut parts) = (Vec::new(), Vec::new());
    for (number, piece) in text.split(PLACEHOLDER).enumerate() {
        if number > 0 {
            let list = if images_first { &mut images } else { &mut parts };
            list.push(IMAGE_PART.to_owned());
        }
        if !piece.is_empty() {
            let piece = if images_first { piece.trim_matches(' ') } else { piece };
            parts.push(format!(r#"{{"type":"text","text":{}}}"#, serde_json::to_string(piece)?));
        }
    }
    images.append(&mut parts);
    Ok(format!("[{}]", images.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages_of(messages: &str, images_first: bool) -> String {
        with_parts(messages, images_first).unwrap().messages
    }

    #[test]
    fn placeholders_become_parts_in_place() {
        let messages =
            r#"[{"role":"user","content":"a <image> b","id":1e400},{"role":"assistant","content":"c"}]"#;
        assert_eq!(
            messages_of(messages, false),
            r#"[{"role":"user","content":[{"type":"text","text":"a "},{"type":"image"},{"type":"text","text":" b"}],"id":1e400},{"role":"assistant","content":"c"}]"#
        );
        assert_eq!(messages_of("[]", false), "[]");
    }

    #[test]
    fn images_come_first_and_texts_without_spaces() {
        let messages =
            r#"[{"content":"a <image> b"},{"content":[{"type":"text","text":" c "},{"type":"image"}]}]"#;
        assert_eq!(
            messages_of(messages, true),
            r#"[{"content":[{"type":"image"},{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"content":[{"type":"image"},{"type":"text","text":" c "}]}]"#
        );
    }

    #[test]
    fn each_image_needs_a_placeholder() {
        for (messages, images) in [
            (r#"[{"content":"a"}]"#, &["0.jpg"][..]),
            (r#"[{"content":"<image>"}]"#, &[]),
            (r#"[{"content":"<image><image>"}]"#, &["0.jpg"]),
            (r#"[{"content":[{"type":"image"}]},{"content":"<image>"}]"#, &["0.jpg"]),
        ] {
            let names = with_parts(messages, false).unwrap().names;
            let error = order(&names, "k", images).unwrap_err();
            assert!(error.contains("expected a placeholder for each image"), "{error}");
        }
        let error = with_parts("[3]", false).unwrap_err();
        assert!(error.contains("expected a list of messages that are objects"), "{error}");
    }

    #[test]
    fn names_of_members_decide_which_image_a_part_is() {
        let members = ["2.jpg", "10.jpg", "x.left.png"];
        let all = |given: &str| {
            let messages =
                format!(r#"[{{"content":[{given}]}},{{"content":[{{"type":"image","path":"2.jpg"}}]}}]"#);
            with_parts(&messages, true).and_then(|found| order(&found.names, "d/k", &members))
        };
        let named = r#"{"type":"image","image":"x.left.png"},{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"k.10.jpg","detail":"low"}},{"image":"d/k.2.jpg","text":null}"#;
        assert_eq!(all(named).unwrap(), [2, 1, 0, 0]);
        for (given, expected) in [
            (r#"{"type":"image","image":"x.left.png"}"#, r#"found none that names "10.jpg""#),
            (
                r#"{"type":"image","image":"3.jpg"}"#,
                r#"to name one image of the sample, of ["2.jpg", "10.jpg", "x.left.png"], found "3.jpg""#,
            ),
            (r#"{"type":"image"}"#, "or in none, found 1 names in 2 parts"),
            (
                r#"{"type":"image","url":"https://x.y/2.jpg"}"#,
                r#"message 0: expected the name of a member under "url""#,
            ),
            (
                r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}}"#,
                r#"found an image itself under "url""#,
            ),
            (r#"{"type":"image","source":{"type":"base64"}}"#, r#"found an image itself under "source""#),
            (r#"{"type":"image","image":3}"#, r#"under "image" in a part of type image, found 3"#),
            (
                r#"{"type":"image","image":"2.jpg","path":"10.jpg"}"#,
                "expected one name in a part of type image",
            ),
            (r#"{"type":"image","image":"2.jpg","max_pixels":9}"#, r#"without "max_pixels""#),
        ] {
            let error = all(given).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let pickled = [Some("jpgs".to_owned()), Some("jpgs".to_owned())];
        assert!(order(&pickled, "k", &["jpgs", "jpgs"]).is_err(), "a list has no names");
        let unnamed = r#"[{"content":[{"type":"image","image":null},{"text":"a","image":null},{"type":"image","url":""}]}]"#;
        let found = with_parts(unnamed, false).unwrap().names;
        assert_eq!(order(&found, "k", &["a.jpg", "b.jpg"]).unwrap(), [0, 1]);
    }

    #[test]
    fn videos_and_audio_are_refused() {
        for content in [
            r#""<video>What?""#,
            r#""What is <audio>said?""#,
            r#"[{"type":"video"}]"#,
            r#"[{"type":"input_audio","input_audio":{}}]"#,
            r#"[{"video":"a.mp4"}]"#,
            r#"[{"type":"text","text":"<video>"}]"#,
            r#"["<audio>"]"#,
        ] {
            let error = with_parts(&format!(r#"[{{"content":{content}}}]"#), false).unwrap_err();
            assert!(
                error.contains("message 0") && error.contains("videos and audio are not read"),
                "{error}"
            );
        }
    }
}
