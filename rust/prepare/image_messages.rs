//! Messages with images: `<image>` in what they say becomes a part of type image, as chat templates have it.
//!
//! ```text
//! {"role": "user", "content": "<image>What is it?"}
//! {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
//! ```
//!
//! A part may name the member that is its image, `{"type": "image", "image": "left.jpg"}`, or have its index among the
//! images of the sample, `{"type": "image", "index": 1}`.

use gristmill_chat_template::MEDIA_KEYS;

use super::image_text::{ImageTokens, TAGS, mismatch};
use super::message::{self, Members, get, given, shown};
use crate::format::{Medium, Value};

/// The keys of a part of type image that name its member, as strings or in an object.
const NAMES: [&str; 10] = [
    "image",
    "image_url",
    "video",
    "video_url",
    "url",
    "path",
    "image_path",
    "file",
    "file_name",
    "filename",
];
/// The keys that hold the image itself.
const INLINE: [&str; 5] = ["data", "base64", "b64_json", "bytes", "source"];
/// The keys that would change its size, or the frames that are taken of a video.
const SIZES: [&str; 18] = [
    "min_pixels",
    "max_pixels",
    "total_pixels",
    "resized_height",
    "resized_width",
    "fps",
    "sample_fps",
    "nframes",
    "num_frames",
    "min_frames",
    "max_frames",
    "video_start",
    "video_end",
    "start",
    "end",
    "start_time",
    "end_time",
    "raw_fps",
];
/// Words in the types of parts that are neither images nor media, and that templates know.
const OTHER_KINDS: [&str; 6] = ["text", "think", "reason", "tool", "function", "refusal"];
/// No name of a member is as long.
const LONGEST_NAME: usize = 512;

/// The image that a part of a message says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// A member, a path or a URL.
    Of(String),
    /// An index among the images of the sample.
    At(usize),
}

/// The images that the parts of messages say they are, in order.
pub(super) type Names = Vec<Option<Name>>;

/// A list of messages with a part for each image, and the names of these. `images_first`: the images of a message come before its
/// text, whose parts are stripped of spaces. `are_references`: names may be paths, URLs and data URLs, and do not stay in the
/// parts. The error says what was expected and found.
pub(super) fn with_parts<'a>(
    list: Value<'a>,
    images_first: bool,
    are_references: bool,
    tokens: &ImageTokens,
) -> Result<(Value<'a>, Names), String> {
    let rules = Rules { images_first, are_references, tokens };
    let mut names = Names::new();
    let mut messages = message::all_members(list)?;
    for (number, message) in messages.iter_mut().enumerate() {
        check_beside(message, tokens.medium).map_err(|error| format!("message {number}: {error}"))?;
        for (_, content) in message.iter_mut().filter(|(key, _)| key == "content") {
            let parts = content_with_parts(std::mem::replace(content, Value::Null), rules, &mut names);
            *content = parts.map_err(|error| format!("message {number}: {error}"))?;
        }
    }
    Ok((Value::List(messages.into_iter().map(Value::Object).collect()), names))
}

/// The index of each part among the images of a sample: by its name, or in order where parts have none. The images are
/// given by the members that they are in. The error says what was expected and found.
pub(super) fn order(
    names: &[Option<Name>],
    key: &str,
    members: &[&str],
    medium: Medium,
) -> Result<Vec<usize>, String> {
    let kind = medium.kind();
    let known: Vec<&Name> = names.iter().flatten().collect();
    if known.is_empty() {
        let counts = (names.len(), members.len());
        return if counts.0 == counts.1 {
            Ok((0..counts.0).collect())
        } else {
            Err(mismatch(medium, counts.0, counts.1))
        };
    }
    if known.len() < names.len() {
        return Err(format!(
            "expected the name of a member in each part of type {kind}, or in none, found {} names in {} parts",
            known.len(),
            names.len()
        ));
    }
    let mut order = Vec::with_capacity(known.len());
    for name in known {
        let name = match name {
            Name::Of(name) => name,
            Name::At(at) if *at < members.len() => {
                order.push(*at);
                continue;
            }
            Name::At(at) => {
                return Err(format!(
                    "expected \"index\" of a part of type {kind} below {}, the number of {kind}s of the sample, found {at}; \
                     count them from 0",
                    members.len()
                ));
            }
        };
        let mut found = (0..members.len()).filter(|at| is_member(name, key, members[*at]));
        let (Some(first), None) = (found.next(), found.next()) else {
            return Err(format!(
                "expected parts of type {kind} to name one {kind} of the sample, of {members:?}, found {name:?}; name a \
                 member, or leave all names out to take {kind}s in order"
            ));
        };
        order.push(first);
    }
    match (0..members.len()).find(|at| !order.contains(at)) {
        None => Ok(order),
        Some(unused) => Err(format!(
            "expected a part of type {kind} for each {kind}, found none that names {:?}, {kind} {unused}",
            members[unused]
        )),
    }
}

/// Whether a name is that of a member of the sample with this key: its extension, or all of it.
pub(super) fn is_member(name: &str, key: &str, member: &str) -> bool {
    let base = key.rsplit('/').next().unwrap_or_default();
    let of = |key: &str| name.strip_prefix(key).and_then(|rest| rest.strip_prefix('.')) == Some(member);
    name == member || of(base) || of(key)
}

/// Messages whose images come before what the user says first, if no message says where they are.
pub(super) fn in_front(list: Value<'_>, images: usize, medium: Medium) -> Result<Value<'_>, String> {
    let mut messages = message::all_members(list)?;
    let says = |message: &Members<'_>| get(message, "content").and_then(Value::as_str).map(str::to_owned);
    let placeholder = medium.placeholder();
    let is_placed =
        messages.iter().any(|message| says(message).is_some_and(|text| text.contains(placeholder)));
    let of_user =
        messages.iter_mut().find(|message| get(message, "role").and_then(Value::as_str) == Some("user"));
    if let (false, Some(message)) = (is_placed, of_user)
        && let Some(text) = says(message)
        && let Some((_, content)) = message.iter_mut().find(|(key, _)| key == "content")
    {
        *content = (placeholder.repeat(images) + &text).into();
    }
    Ok(Value::List(messages.into_iter().map(Value::Object).collect()))
}

/// How parts of messages become images.
#[derive(Clone, Copy)]
struct Rules<'a> {
    images_first: bool,
    are_references: bool,
    tokens: &'a ImageTokens,
}

/// The content of a message, with parts for its images. Adds the names of these, which may have none.
fn content_with_parts<'a>(
    content: Value<'a>,
    rules: Rules<'_>,
    names: &mut Names,
) -> Result<Value<'a>, String> {
    let Rules { images_first, are_references, tokens } = rules;
    let medium = tokens.medium;
    match content {
        Value::Str(text) => {
            tokens.check(&text)?;
            let images = text.matches(medium.placeholder()).count();
            names.extend(std::iter::repeat_n(None, images));
            Ok(if images > 0 { parts_of_text(&text, images_first, medium) } else { Value::Str(text) })
        }
        Value::List(parts) => {
            let (mut first, mut rest) = (Vec::new(), Vec::new());
            for part in parts {
                match Part::of(&part, are_references, tokens)? {
                    Part::Image(name) => {
                        names.push(name);
                        let list = if images_first { &mut first } else { &mut rest };
                        list.push(if are_references { part_of(medium) } else { part });
                    }
                    Part::Other => rest.push(part),
                }
            }
            first.append(&mut rest);
            Ok(Value::List(first))
        }
        other => Ok(other),
    }
}

/// A part of what a message says.
enum Part {
    /// An image, and what it says it is.
    Image(Option<Name>),
    Other,
}

impl Part {
    fn of(part: &Value<'_>, are_references: bool, tokens: &ImageTokens) -> Result<Self, String> {
        let medium = tokens.medium;
        let part = match part {
            Value::Str(text) => return tokens.check(text).map(|()| Self::Other),
            Value::Object(part) => part,
            _ => return Ok(Self::Other),
        };
        // Some templates know a part by its key alone.
        let kind = get(part, "type").and_then(Value::as_str).unwrap_or_else(|| {
            let known = ["image", "image_url", "video", "audio"];
            known.into_iter().find(|key| given(part, key).is_some()).unwrap_or_default()
        });
        let unseen = TAGS.iter().any(|(tagged, _)| *tagged != medium.kind() && kind.contains(tagged));
        if unseen {
            return Err(format!(
                "expected parts of texts and {}s, found one of type {kind:?}: {}",
                medium.kind(),
                medium.unseen()
            ));
        }
        if kind.contains(medium.kind()) {
            if get(part, "text").is_some_and(|text| !is_empty(text)) {
                return Err(format!(
                    "expected a part of type {} without \"text\", of which templates write nothing: write it as a part of type \
                     text",
                    medium.kind()
                ));
            }
            let name = if are_references { reference_of(part, medium) } else { name_of(part, medium) }?;
            return with_index(name, part, medium).map(Self::Image);
        }
        if !kind.is_empty() && !OTHER_KINDS.iter().any(|known| kind.contains(known)) {
            return Err(format!(
                "expected parts of texts and {}s, found one of type {kind:?}, of which templates write nothing: write it as a \
                 part of type text, or leave it out",
                medium.kind()
            ));
        }
        check_beside(part, medium)?;
        match get(part, "text").and_then(Value::as_str) {
            Some(text) => tokens.check(text)?,
            None if kind == "text" => {
                return Err("expected a string under \"text\" in a part of type text, found none".to_owned());
            }
            None => {}
        }
        Ok(Self::Other)
    }
}

/// A message has nothing under a key of media beside its content, and neither has a part of another type.
fn check_beside(members: &Members<'_>, medium: Medium) -> Result<(), String> {
    match members.iter().find(|(key, value)| MEDIA_KEYS.contains(&&**key) && !is_empty(value)) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "expected {kind}s as parts of type {kind} in the content, found {key:?}, of which nothing is read: write it as such a \
             part",
            kind = medium.kind()
        )),
    }
}

/// Whether a value says nothing: a struct of Parquet has all keys of all others.
fn is_empty(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Str(text) => text.is_empty(),
        Value::List(items) => items.iter().all(is_empty),
        Value::Object(members) => members.iter().all(|(_, value)| is_empty(value)),
        _ => false,
    }
}

/// The image that a part says it is: by its name, or else by its index.
fn with_index(name: Option<String>, part: &Members<'_>, medium: Medium) -> Result<Option<Name>, String> {
    let kind = medium.kind();
    match (name, given(part, "index")) {
        (name, None) => Ok(name.map(Name::Of)),
        (None, Some(Value::Int(at))) if *at >= 0 => Ok(Some(Name::At(*at as usize))),
        (None, Some(other)) => Err(format!(
            "expected \"index\" of a part of type {kind} to be the number of one of the sample's {kind}s, counted from 0, \
             found {}",
            shown(other)
        )),
        (Some(name), Some(index)) => Err(format!(
            "expected a name or an index in a part of type {kind}, found {:?} and {}; leave one of them out",
            name.chars().take(LONGEST_NAME).collect::<String>(),
            shown(index)
        )),
    }
}

/// The name of the member that a part of type image, or an object in it, names.
fn name_of(members: &Members<'_>, medium: Medium) -> Result<Option<String>, String> {
    let kind = medium.kind();
    let mut found: Option<String> = None;
    for (key, value) in members {
        let is_empty = *value == Value::Null || value.as_str() == Some("");
        if SIZES.contains(&&**key) && !is_empty {
            return Err(with_size(key, medium));
        }
        if INLINE.contains(&&**key) && !is_empty && (key != "source" || matches!(value, Value::Object(_))) {
            return Err(inline(key, medium));
        }
        if !NAMES.contains(&&**key) || is_empty {
            continue;
        }
        let name = match value {
            Value::Str(name) => Some(name.to_string()),
            Value::Object(members) => name_of(members, medium)?,
            other => {
                return Err(format!(
                    "expected the name of a member under {key:?} in a part of type {kind}, found {}",
                    shown(other)
                ));
            }
        };
        let Some(name) = name else { continue };
        if name.starts_with("data:") || name.len() > LONGEST_NAME {
            return Err(inline(key, medium));
        }
        if name.contains("://") {
            return Err(format!(
                "expected the name of a member under {key:?} in a part of type {kind}, found the URL {name:?}: nothing is \
                 fetched; write the image as a member of the tar and name that, or leave the name out"
            ));
        }
        if let Some(other) = found.replace(name.clone()).filter(|other| *other != name) {
            return Err(format!("expected one name in a part of type {kind}, found {other:?} and {name:?}"));
        }
    }
    Ok(found)
}

/// The path, URL or data URL of a part of type image, or of an object in it. Inline data count before a path.
fn reference_of(members: &Members<'_>, medium: Medium) -> Result<Option<String>, String> {
    let kind = medium.kind();
    let mut found: Option<String> = None;
    for (key, value) in members {
        let is_empty = *value == Value::Null || value.as_str() == Some("");
        if is_empty {
            continue;
        }
        if SIZES.contains(&&**key) {
            return Err(with_size(key, medium));
        }
        let (is_name, is_inline) = (NAMES.contains(&&**key), INLINE.contains(&&**key));
        let name = match value {
            Value::Object(members) if is_name || key == "source" => reference_of(members, medium)?,
            Value::Str(data) if is_inline && key != "source" => {
                let data =
                    if data.starts_with("data:") { data.to_string() } else { format!("data:;base64,{data}") };
                return Ok(Some(data));
            }
            Value::Str(name) if is_name => Some(name.to_string()),
            _ if is_name || is_inline => {
                return Err(format!(
                    "expected a path, a URL or base64 under {key:?} in a part of type {kind}, found {}; put bytes in a column of \
                     {kind}s beside the messages",
                    shown(value)
                ));
            }
            _ => None,
        };
        let Some(name) = name else { continue };
        if let Some(other) = found.replace(name.clone()).filter(|other| *other != name) {
            return Err(format!("expected one name in a part of type {kind}, found {other:?} and {name:?}"));
        }
    }
    Ok(found)
}

fn with_size(key: &str, medium: Medium) -> String {
    let (kind, rules) = match medium {
        Medium::Image => ("image", "gm.ImageModel has the sizes of all images"),
        Medium::Video => ("video", "gm.VideoModel has the sizes and frames of all videos"),
    };
    format!("expected a part of type {kind} without {key:?}: {rules}; leave it out")
}

fn inline(key: &str, medium: Medium) -> String {
    let (kind, one) = (medium.kind(), medium.one());
    format!(
        "expected the name of a member in a part of type {kind}, found {one} itself under {key:?}: write it as a member of \
         the tar and name that, or leave the name out"
    )
}

/// A part of a medium.
fn part_of(medium: Medium) -> Value<'static> {
    Value::Object(vec![("type".into(), medium.kind().into())])
}

fn parts_of_text(text: &str, images_first: bool, medium: Medium) -> Value<'static> {
    let (mut images, mut parts) = (Vec::new(), Vec::new());
    for (number, piece) in text.split(medium.placeholder()).enumerate() {
        if number > 0 {
            let list = if images_first { &mut images } else { &mut parts };
            list.push(part_of(medium));
        }
        if !piece.is_empty() {
            let piece = if images_first { piece.trim_matches(' ') } else { piece };
            parts.push(Value::Object(vec![
                ("type".into(), "text".into()),
                ("text".into(), piece.to_owned().into()),
            ]));
        }
    }
    images.append(&mut parts);
    Value::List(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Value<'_> {
        Value::read(&mut gristmill_json::Text::new(json), true).unwrap()
    }

    fn with_parts(messages: &str, images_first: bool) -> Result<(Value<'_>, Names), String> {
        super::with_parts(read(messages), images_first, false, &ImageTokens::default())
    }

    fn messages_of(messages: &str, images_first: bool) -> Value<'_> {
        with_parts(messages, images_first).unwrap().0
    }

    #[test]
    fn placeholders_become_parts_in_place() {
        let messages =
            r#"[{"role":"user","content":"a <image> b","id":1e400},{"role":"assistant","content":"c"}]"#;
        assert_eq!(
            messages_of(messages, false),
            read(
                r#"[{"role":"user","content":[{"type":"text","text":"a "},{"type":"image"},{"type":"text","text":" b"}],"id":1e400},{"role":"assistant","content":"c"}]"#
            )
        );
        assert_eq!(messages_of("[]", false), read("[]"));
    }

    #[test]
    fn images_come_first_and_texts_without_spaces() {
        let messages =
            r#"[{"content":"a <image> b"},{"content":[{"type":"text","text":" c "},{"type":"image"}]}]"#;
        assert_eq!(
            messages_of(messages, true),
            read(
                r#"[{"content":[{"type":"image"},{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"content":[{"type":"image"},{"type":"text","text":" c "}]}]"#
            )
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
            let names = with_parts(messages, false).unwrap().1;
            let error = order(&names, "k", images, Medium::Image).unwrap_err();
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
            with_parts(&messages, true).and_then(|found| order(&found.1, "d/k", &members, Medium::Image))
        };
        let indices = r#"{"type":"image","index":2},{"type":"text","text":"a","index":9},{"type":"image","index":1,"image":""}"#;
        assert_eq!(all(indices).unwrap(), [2, 1, 0]);
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
            (r#"{"type":"image","index":3}"#, r#""index" of a part of type image below 3"#),
            (r#"{"type":"image","index":-1}"#, "counted from 0, found -1"),
            (r#"{"type":"image","index":"1"}"#, r#"counted from 0, found "1""#),
            (r#"{"type":"image","index":1,"image":"2.jpg"}"#, "a name or an index in a part of type image"),
            (r#"{"type":"image","text":"b"}"#, r#"a part of type image without "text""#),
        ] {
            let error = all(given).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let pickled = [Some(Name::Of("jpgs".to_owned())), Some(Name::Of("jpgs".to_owned()))];
        assert!(order(&pickled, "k", &["jpgs", "jpgs"], Medium::Image).is_err(), "a list has no names");
        let unnamed = r#"[{"content":[{"type":"image","image":null},{"text":"a","image":null},{"type":"image","url":""}]}]"#;
        let found = with_parts(unnamed, false).unwrap().1;
        assert_eq!(order(&found, "k", &["a.jpg", "b.jpg"], Medium::Image).unwrap(), [0, 1]);
    }

    #[test]
    fn parts_may_be_references() {
        let references = |parts: &str| {
            let messages = format!(r#"[{{"content":[{parts},{{"type":"text","text":"a"}}]}}]"#);
            super::with_parts(read(&messages), false, true, &ImageTokens::default()).map(
                |(messages, names)| {
                    let expected = read(r#"[{"content":[{"type":"image"},{"type":"text","text":"a"}]}]"#);
                    assert_eq!(messages.into_owned(), expected);
                    names
                        .into_iter()
                        .map(|name| match name {
                            Some(Name::Of(name)) => Some(name),
                            _ => None,
                        })
                        .collect::<Vec<_>>()
                },
            )
        };
        for (part, expected) in [
            (r#"{"type":"image"}"#, None),
            (r#"{"type":"image","image":"a/b.png"}"#, Some("a/b.png")),
            (
                r#"{"type":"image_url","image_url":{"url":"https://h/b.png","detail":"low"}}"#,
                Some("https://h/b.png"),
            ),
            (
                r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}"#,
                Some("data:image/png;base64,AA=="),
            ),
            (
                r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}"#,
                Some("data:;base64,AA=="),
            ),
            (r#"{"type":"image","image":{"path":"b.png","bytes":"AA=="}}"#, Some("data:;base64,AA==")),
        ] {
            assert_eq!(references(part).unwrap(), [expected.map(str::to_owned)], "{part}");
        }
        for (part, expected) in [
            (r#"{"type":"image","image":3}"#, "found 3"),
            (r#"{"type":"image","image":"a","max_pixels":9}"#, r#"without "max_pixels""#),
            (r#"{"type":"image","image":"a","path":"b"}"#, "expected one name"),
        ] {
            let error = references(part).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn videos_have_their_own_parts() {
        let found = |content: &str| {
            let messages = format!(r#"[{{"content":{content}}}]"#);
            let tokens = ImageTokens { medium: Medium::Video, ..ImageTokens::default() };
            super::with_parts(read(&messages), false, false, &tokens)
                .map(|(messages, names)| (messages.into_owned(), names))
        };
        let expected = read(r#"[{"content":[{"type":"video"},{"type":"text","text":"a"}]}]"#);
        assert_eq!(found(r#""<video>a""#).unwrap(), (expected, vec![None]));
        let named = found(r#"[{"type":"video","video":"1.mp4"}]"#).unwrap().1;
        assert_eq!(named, [Some(Name::Of("1.mp4".to_owned()))]);
        for content in [r#""<image>a""#, r#"[{"type":"image"}]"#, r#"[{"type":"audio"}]"#] {
            let error = found(content).unwrap_err();
            assert!(error.contains("images and audio are not read beside videos"), "{error}");
        }
        for key in ["fps", "nframes", "max_pixels", "video_start", "start", "end_time"] {
            let error = found(&format!(r#"[{{"type":"video","video":"1.mp4","{key}":2}}]"#)).unwrap_err();
            assert!(
                error.contains(&format!("a part of type video without {key:?}: gm.VideoModel")),
                "{error}"
            );
        }
    }

    #[test]
    fn images_beside_content_are_refused() {
        for message in [
            r#"{"content":"a","images":["1.jpg"]}"#,
            r#"{"content":"a","image":{"path":"1.jpg"}}"#,
            r#"{"content":"a","audio":"1.wav"}"#,
            r#"{"content":[{"type":"text","text":"a","image":"1.jpg"}]}"#,
            r#"{"content":[{"type":"text","text":"a","video_url":{"url":"1.mp4"}}]}"#,
        ] {
            let error = with_parts(&format!("[{message}]"), false).unwrap_err();
            assert!(
                error.starts_with("message 0: expected images as parts of type image in the content"),
                "{error}"
            );
        }
        let empty = r#"[{"content":"a","images":[]},{"content":[{"type":"text","text":"a","image":{"bytes":null,"path":""}}]}]"#;
        assert_eq!(messages_of(empty, false), read(empty));
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
