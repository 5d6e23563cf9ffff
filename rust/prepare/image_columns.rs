//! The images of records with keys: in the record itself, or in files of their own.
//!
//! ```text
//! {"image": {"bytes": ..., "path": "a.jpg"}}     Parquet and Arrow, as `datasets` writes images
//! {"images": ["coco/a.jpg", "s3://b/c.png"]}     files beside the shard, or under a root, or in a store
//! {"image": "data:image/png;base64,iVBO..."}     the image itself, as text
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use gristmill_json::Typed;

use super::field::Field;
use crate::error::Error;
use crate::format::{self, Content, Medium, SizeOf, Step, Values, View};
use crate::image::Place;
use crate::store::{Access, Shard, is_remote, local_path, read_exact_at};

/// The first bytes that are read of an image file; where its header is longer, eight times as many, and so on.
const FIRST_BYTES: u64 = 4 << 10;
/// More are not read: the thumbnails and profiles in front of a JPEG's size are far smaller.
const LONGEST_HEADER: u64 = 16 << 20;
/// A longer string is an image in base64: no path is as long.
const LONGEST_PATH: usize = 4 << 10;
/// No image in base64 is shorter.
const SHORTEST_BASE64: usize = 40;
/// The first characters of JPEG, PNG, GIF and WebP in base64. BMP has two, with which names begin too.
const BEGINS: [&str; 4] = ["/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR"];
/// The characters of a name that are shown.
const SHOWN: usize = 200;

const BASE64: GeneralPurpose = base64_of(&alphabet::STANDARD);
const URL_SAFE: GeneralPurpose = base64_of(&alphabet::URL_SAFE);

/// The images of records with keys.
#[derive(Debug, Clone)]
pub struct ImageColumns {
    /// The keys of images, or of lists of them.
    pub keys: Vec<Field>,
    /// The keys of other media, which are not read.
    pub unseen: Vec<Field>,
    /// Whether the user named the images, so that a text without one is a bad record.
    pub are_named: bool,
    /// The kind of these images.
    pub kind: ImageKind,
    /// Where relative paths start. None: in the folder of the shard.
    pub root: Option<String>,
}

/// The access to the files of images.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// How paths and URLs are opened.
    pub access: &'a Access,
    /// The shard of the record.
    pub shard: &'a Shard,
    /// The number of the record in it.
    pub record: u64,
    /// Set when nobody waits any longer.
    pub stop: &'a Arc<AtomicBool>,
    /// The most bytes of an image.
    pub longest: u64,
}

impl Files<'_> {
    /// The bytes of an image.
    pub(super) fn read(self, place: &Place) -> Result<Vec<u8>, Missing> {
        let (file, offset, bytes) = match place {
            Place::Memory(bytes) => return Ok(bytes.to_vec()),
            Place::Shard { offset, bytes } => (self.shard, *offset, *bytes),
            Place::File { file, offset, bytes } => (&**file, *offset, *bytes),
        };
        let outage =
            |reason: String| self.access.outage().map_or_else(|| Missing::Bad(reason), Missing::Failed);
        let mut source = self.access.open(file, self.stop).map_err(|error| match error {
            Error::Shard(error) => outage(error.reason),
            other => Missing::Failed(other),
        })?;
        let mut read = vec![0; bytes as usize];
        read_exact_at(&mut *source, offset, &mut read)
            .map_err(|error| outage(format!("expected {bytes} bytes, found: {error}")))?;
        Ok(read)
    }

    /// The image that a file is, or some bytes of it, of which the header is read.
    pub(super) fn image(
        self,
        name: &str,
        file: Shard,
        part: Range<u64>,
        of: ImageKind,
    ) -> Result<Found, Missing> {
        let bad = |reason: String| of.bad(name, &file.path, &reason);
        let length = part.end.saturating_sub(part.start);
        if length > self.longest {
            return Err(bad(format!(
                "expected {} of at most {} bytes, found one of {length}; raise max_document_bytes= to read it",
                of.medium.one(),
                self.longest,
            )));
        }
        let mut source = self.access.open(&file, self.stop).map_err(|error| self.failed(error, bad))?;
        let (mut header, mut wanted) = (Vec::new(), FIRST_BYTES);
        let size = loop {
            let (read, end) = (header.len(), wanted.min(length));
            header.resize(end as usize, 0);
            read_exact_at(&mut *source, part.start + read as u64, &mut header[read..]).map_err(|error| {
                let reason = format!("expected {length} bytes, found: {error}");
                self.access.outage().map_or_else(|| bad(reason), Missing::Failed)
            })?;
            match (of.size)(&header) {
                Err(_) if end < length && wanted < LONGEST_HEADER => wanted *= 8,
                size => break size.map_err(bad)?,
            }
        };
        let place = Place::File { file: Arc::new(file), offset: part.start, bytes: length };
        Ok(Found { name: name.to_owned(), place, size })
    }

    /// Why a file cannot be opened, or the error that ends the run: on another machine it might be there.
    fn failed(self, error: Error, bad: impl FnOnce(String) -> Missing) -> Missing {
        match error {
            Error::Shard(error) => self.access.outage().map_or_else(|| bad(error.reason), Missing::Failed),
            other => Missing::Failed(other),
        }
    }
}

/// Whether images are images or videos, and how their sizes are found.
#[derive(Debug, Clone, Copy)]
pub struct ImageKind {
    /// Whether they are images or videos.
    pub medium: Medium,
    /// The function that finds sizes.
    pub size: SizeOf,
}

impl ImageKind {
    /// The fault of an image file with a name, at a path.
    fn bad(self, name: &str, path: &str, reason: &str) -> Missing {
        let at = if path == name { String::new() } else { format!(" at {:?}", shown(path)) };
        Missing::Bad(format!("the {} {:?}{at}: {reason}", self.medium.kind(), shown(name)))
    }
}

/// An image of a record.
#[derive(Debug)]
pub(super) struct Found {
    /// Its path, if it has one.
    pub name: String,
    /// Where its bytes are.
    pub place: Place,
    /// Width and height.
    pub size: (u32, u32),
}

/// Why an image is not found.
#[derive(Debug)]
pub enum Missing {
    /// The record is bad: what was expected and found.
    Bad(String),
    /// The run stops: on another machine, or at another time, it may be found.
    Failed(Error),
}

impl From<String> for Missing {
    fn from(reason: String) -> Self {
        Self::Bad(reason)
    }
}

impl ImageColumns {
    /// The images of a record, in the order of the keys.
    pub(super) fn of(&self, values: &Values<'_>, files: Files<'_>) -> Result<Vec<Found>, Missing> {
        let mut found = Vec::new();
        for key in &self.keys {
            let Some(value) = key.of(values) else { continue };
            let located = |missing, number| match missing {
                Missing::Bad(reason) => {
                    let kind = self.kind.medium.kind();
                    Missing::Bad(format!("{kind} {number} under the key {:?}: {reason}", key.key()))
                }
                failed @ Missing::Failed(_) => failed,
            };
            let items: Vec<View<'_>> = if value.is_array() { value.items().collect() } else { vec![value] };
            for (number, item) in items.into_iter().enumerate() {
                if item.typed().is_some() || item.content() != Content::Null {
                    found.push(self.one(item, files).map_err(|missing| located(missing, number))?);
                }
            }
        }
        Ok(found)
    }

    /// The image that a part of a message names: a path, a URL, or an image in base64 as a data URL.
    pub(super) fn named(&self, name: &str, files: Files<'_>) -> Result<Found, Missing> {
        if let Some(data) = inline(name)? {
            return self.in_memory(String::new(), data);
        }
        self.file(name, files)
    }

    /// Why a text of a record with these values may not be trained on without an image, if it may not. `needs_images`: not
    /// even where nothing says that it has one.
    pub(super) fn missing(&self, values: &Values<'_>, needs_images: bool) -> Option<String> {
        let (one, kind) = (self.kind.medium.one(), self.kind.medium.kind());
        if self.are_named && needs_images {
            let keys: Vec<&str> = self.keys.iter().map(Field::key).collect();
            return Some(format!(
                "expected {one} under {keys:?}, as fields[\"{kind}s\"] says, found none; add it, or leave such records out \
                 with keep="
            ));
        }
        self.unread(values).map(|key| {
            format!(
                "expected {one}, found none but {key:?}: {}, and the text would be trained on alone; leave such records out \
                 with keep=, or name the {kind}s in fields=",
                self.kind.medium.unseen()
            )
        })
    }

    /// The first key of another medium under which a record has something.
    fn unread(&self, values: &Values<'_>) -> Option<&str> {
        let has = |key: &&Field| {
            key.of(values).is_some_and(|value| match value.content() {
                Content::Null => value.typed().is_some(),
                Content::Text(text) => !text.is_empty(),
                _ => !value.is_array() || value.items().next().is_some(),
            })
        };
        self.unseen.iter().find(has).map(Field::key)
    }

    fn one(&self, item: View<'_>, files: Files<'_>) -> Result<Found, Missing> {
        let inside = |name: &str| {
            let value = item.step(&Step::Key(name.to_owned()))?;
            (value.typed().is_some() || value.content() != Content::Null).then_some(value)
        };
        match (item.typed(), item.content()) {
            (Some(Typed::Bytes(bytes)), _) => self.in_memory(String::new(), bytes.to_vec()),
            (None, Content::Text(name)) => self.named(&name, files),
            (None, Content::Object) => {
                let path = ["path", "url", "image", "file_name"].into_iter().find_map(inside);
                let path = path.map(format::text).transpose();
                let path = path.map_err(|found| format!("expected a path as a string, found {found}"))?;
                match inside("bytes") {
                    Some(bytes) => {
                        let data = match (bytes.typed(), bytes.content()) {
                            (Some(Typed::Bytes(bytes)), _) => bytes.to_vec(),
                            (None, Content::Text(text)) => from_base64(&text)?,
                            (_, other) => {
                                return Err(format!(
                                    "expected bytes, or a string in base64, under \"bytes\", found {}",
                                    other.name()
                                )
                                .into());
                            }
                        };
                        self.in_memory(path.unwrap_or_default().into_owned(), data)
                    }
                    None => match path {
                        Some(path) => self.named(&path, files),
                        None => Err("expected \"bytes\" or a \"path\", found neither".to_owned().into()),
                    },
                }
            }
            (_, other) => Err(format!(
                "expected bytes, a path, a URL, a data URL, or an object with bytes or a path, found {}",
                other.name()
            )
            .into()),
        }
    }

    fn in_memory(&self, name: String, data: Vec<u8>) -> Result<Found, Missing> {
        let size = (self.kind.size)(&data)?;
        Ok(Found { name, place: Place::Memory(data.into()), size })
    }

    fn file(&self, name: &str, files: Files<'_>) -> Result<Found, Missing> {
        let path = self.path(name, files.shard)?;
        let bad = |reason: String| self.kind.bad(name, &path, &reason);
        if !is_remote(&path) && !files.access.folder.join(&*path).exists() {
            let advice = "set image_root= to the folder or store that paths start from";
            return Err(bad(format!("expected {} file, found none; {advice}", self.kind.medium.one())));
        }
        let file = files.access.find(&path, files.stop).map_err(|error| files.failed(error, bad))?;
        let whole = 0..file.size;
        files.image(name, file, whole, self.kind)
    }

    /// Where a path leads: a URL and an absolute one as they are, another one from the root. `file:///a/b` is `/a/b`.
    fn path<'a>(&self, name: &'a str, shard: &Shard) -> Result<Cow<'a, str>, String> {
        if is_remote(name) || Path::new(name).is_absolute() {
            return Ok(Cow::Borrowed(name));
        }
        if let Some(path) = local_path(name) {
            return Ok(Cow::Owned(path));
        }
        if let Some((scheme, _)) = name.split_once("://") {
            return Err(format!(
                "expected a path, file:///path, or a URL of {}, found one of {scheme}: {:?}",
                crate::store::SCHEMES.join(", "),
                shown(name)
            ));
        }
        if name.is_empty() {
            return Err(format!("expected the path of {}, found an empty string", self.kind.medium.one()));
        }
        let folder = match &self.root {
            Some(root) => root,
            None => shard.path.rfind('/').map_or("", |slash| &shard.path[..=slash]),
        };
        let between = if folder.is_empty() || folder.ends_with('/') { "" } else { "/" };
        Ok(Cow::Owned(format!("{folder}{between}{}", name.strip_prefix("./").unwrap_or(name))))
    }
}

/// The bytes of an image that a string holds itself: a data URL, or base64 that is too long for a path or begins as an image.
fn inline(text: &str) -> Result<Option<Vec<u8>>, String> {
    if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        return match text[5..].split_once(',') {
            Some((kind, data)) if kind.ends_with(";base64") => from_base64(data).map(Some),
            _ => {
                Err(format!("expected a data URL such as data:image/png;base64,..., found {:?}", shown(text)))
            }
        };
    }
    if text.len() > LONGEST_PATH {
        return from_base64(text).map(Some);
    }
    let is_image = text.len() >= SHORTEST_BASE64 && BEGINS.iter().any(|begin| text.starts_with(begin));
    Ok(if is_image { from_base64(text).ok() } else { None })
}

/// The bytes of base64, of either alphabet, with or without padding and line ends.
fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    let spaces = |byte: &u8| byte.is_ascii_whitespace();
    let text: Cow<'_, [u8]> = if text.bytes().any(|byte| spaces(&byte)) {
        text.bytes().filter(|byte| !spaces(byte)).collect()
    } else {
        text.as_bytes().into()
    };
    let is_url_safe = text.iter().any(|byte| matches!(byte, b'-' | b'_'));
    let decoded = if is_url_safe { URL_SAFE.decode(&text) } else { BASE64.decode(&text) };
    decoded.map_err(|error| format!("expected an image in base64, found: {error}"))
}

const fn base64_of(alphabet: &alphabet::Alphabet) -> GeneralPurpose {
    let any_padding = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, any_padding)
}

/// A name, for a message.
fn shown(name: &str) -> &str {
    name.char_indices().nth(SHOWN).map_or(name, |(end, _)| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_in_all_its_forms() {
        for text in ["AP/+", "AP_-", "AP/\n+", " AP/+ "] {
            assert_eq!(from_base64(text).unwrap(), [0, 255, 254], "{text:?}");
        }
        for text in ["AP8=", "AP8"] {
            assert_eq!(from_base64(text).unwrap(), [0, 255], "{text:?}");
        }
        assert!(from_base64("A").unwrap_err().contains("expected an image in base64"));
        assert_eq!(inline("data:image/png;base64,AP8=").unwrap().unwrap(), [0, 255]);
        assert!(inline("data:image/svg+xml,%3Csvg").unwrap_err().contains("expected a data URL"));
        assert_eq!(inline("DATA:image/png;base64,AP8=").unwrap().unwrap(), [0, 255]);
        assert_eq!(inline("a/b.png").unwrap(), None);
        let gif = format!("R0lGODlh{}", "A".repeat(40));
        assert_eq!(inline(&gif).unwrap().unwrap()[..6], *b"GIF89a");
        for path in
            ["R0lGODlh/a.gif".to_owned(), format!("{gif}.gif"), format!("/9j/{}.jpg", "a/".repeat(30))]
        {
            assert_eq!(inline(&path).unwrap(), None, "{path}");
        }
    }

    #[test]
    fn paths_start_at_the_root_or_beside_the_shard() {
        let columns = |root: Option<&str>| ImageColumns {
            keys: Vec::new(),
            unseen: Vec::new(),
            are_named: false,
            kind: ImageKind { medium: Medium::Image, size: |_| Ok((1, 1)) },
            root: root.map(str::to_owned),
        };
        let shard = Shard::whole("s3://b/sets/x.jsonl", 1);
        for (root, name, expected) in [
            (None, "a/b.png", "s3://b/sets/a/b.png"),
            (None, "./b.png", "s3://b/sets/b.png"),
            (Some("gs://c"), "b.png", "gs://c/b.png"),
            (Some("images/"), "b.png", "images/b.png"),
            (Some("images"), "/data/b.png", "/data/b.png"),
            (Some("images"), "file:///data/b%20c.png", "/data/b c.png"),
            (Some("images"), "https://h/b.png", "https://h/b.png"),
            (Some("images"), "file:///a%20b/%c3%a9%%2.png%+f", "/a b/é%%2.png%+f"),
            (None, "file://localhost/b.png", "/b.png"),
        ] {
            assert_eq!(columns(root).path(name, &shard).unwrap(), expected);
        }
        assert_eq!(columns(None).path("b.png", &Shard::whole("x.jsonl", 1)).unwrap(), "b.png");
        assert!(columns(None).path("ftp://h/b.png", &shard).unwrap_err().contains("found one of ftp"));
        assert!(
            columns(None)
                .path("file://host/b.png", &shard)
                .unwrap_err()
                .contains("expected a path, file:///path")
        );
        assert!(columns(None).path("", &shard).is_err());
    }
}
