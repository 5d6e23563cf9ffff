//! Messages with images: `<image>` in what they say becomes a part of type image, as chat templates have it.
//!
//! ```text
//! {"role": "user", "content": "<image>What is it?"}
//! {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
//! ```

use serde_json::value::RawValue;

use super::image_text::{PLACEHOLDER, mismatch};
use super::json_pairs::{Pairs, write_pairs};

const IMAGE_PART: &str = r#"{"type":"image"}"#;

/// A list of messages with a part for each image. `images_first`: the images of a message come before its text, whose parts
/// are stripped of spaces. The error says what was expected and found.
pub(super) fn with_parts(messages: &str, images_first: bool, images: usize) -> Result<String, String> {
    let list: Vec<Pairs<'_>> = serde_json::from_str(messages)
        .map_err(|error| format!("expected a list of messages that are objects: {error}"))?;
    let (mut written, mut found) = (String::with_capacity(messages.len() + 64), 0);
    for (number, Pairs(pairs)) in list.iter().enumerate() {
        written.push(if number == 0 { '[' } else { ',' });
        write_pairs(&mut written, pairs, |key, value| {
            if key != "content" {
                return Ok(None);
            }
            let (count, content) = content_with_parts(value, images_first).map_err(|error| {
                format!("message {number}: expected text or parts as its content: {error}")
            })?;
            found += count;
            Ok(content)
        })?;
    }
    written.push_str(if list.is_empty() { "[]" } else { "]" });
    if found == images { Ok(written) } else { Err(mismatch(found, images)) }
}

/// How many images the content of a message has, and the content, if it is another one with parts.
fn content_with_parts(content: &RawValue, images_first: bool) -> serde_json::Result<(usize, Option<String>)> {
    match content.get().as_bytes().first() {
        Some(b'"') => {
            let text: String = serde_json::from_str(content.get())?;
            let images = text.matches(PLACEHOLDER).count();
            let parts = if images > 0 { Some(parts_of_text(&text, images_first)?) } else { None };
            Ok((images, parts))
        }
        Some(b'[') => {
            let parts: Vec<&RawValue> = serde_json::from_str(content.get())?;
            let is_image = |part: &&&RawValue| is_image(part);
            let images = parts.iter().filter(is_image).count();
            if !images_first || images == 0 {
                return Ok((images, None));
            }
            let (first, rest): (Vec<&RawValue>, Vec<&RawValue>) =
                parts.iter().partition(|part| is_image(part));
            let joined: Vec<&str> = first.iter().chain(&rest).map(|part| part.get()).collect();
            Ok((images, Some(format!("[{}]", joined.join(",")))))
        }
        _ => Ok((0, None)),
    }
}

fn is_image(part: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Part<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<std::borrow::Cow<'a, str>>,
    }
    serde_json::from_str::<Part<'_>>(part.get())
        .is_ok_and(|part| part.kind.is_some_and(|kind| kind == "image" || kind == "image_url"))
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

    #[test]
    fn placeholders_become_parts_in_place() {
        let messages =
            r#"[{"role":"user","content":"a <image> b","id":1e400},{"role":"assistant","content":"c"}]"#;
        assert_eq!(
            with_parts(messages, false, 1).unwrap(),
            r#"[{"role":"user","content":[{"type":"text","text":"a "},{"type":"image"},{"type":"text","text":" b"}],"id":1e400},{"role":"assistant","content":"c"}]"#
        );
        assert_eq!(with_parts("[]", false, 0).unwrap(), "[]");
    }

    #[test]
    fn images_come_first_and_texts_without_spaces() {
        let messages =
            r#"[{"content":"a <image> b"},{"content":[{"type":"text","text":" c "},{"type":"image"}]}]"#;
        assert_eq!(
            with_parts(messages, true, 2).unwrap(),
            r#"[{"content":[{"type":"image"},{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"content":[{"type":"image"},{"type":"text","text":" c "}]}]"#
        );
    }

    #[test]
    fn each_image_needs_a_placeholder() {
        for (messages, images) in [
            (r#"[{"content":"a"}]"#, 1),
            (r#"[{"content":"<image>"}]"#, 0),
            (r#"[{"content":"<image><image>"}]"#, 1),
            (r#"[{"content":[{"type":"image"}]},{"content":"<image>"}]"#, 1),
        ] {
            let error = with_parts(messages, false, images).unwrap_err();
            assert!(error.contains("expected a placeholder for each image"), "{error}");
        }
        let error = with_parts("[3]", false, 0).unwrap_err();
        assert!(error.contains("expected a list of messages that are objects"), "{error}");
    }
}
