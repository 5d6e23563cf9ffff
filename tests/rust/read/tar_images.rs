//! Images in tars: found by their headers, one to a member or in pickled lists.

use _core::format::{IMAGES_KEY, ImageParts};
use proptest::prelude::*;

use super::tar::{archive, entry};
use super::*;

/// The size of an image of these tests: `I`, width, height, and then anything.
fn size(bytes: &[u8]) -> Result<(u32, u32), String> {
    match bytes {
        [b'I', width, height, ..] => Ok(((*width).into(), (*height).into())),
        [b'W', far, ..] if bytes.len() > 100 * usize::from(*far) => Ok((1, 1)),
        _ => Err(format!("expected an image, found {} bytes", bytes.len())),
    }
}

/// The format of an image of these tests, of which `T` has no size.
fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [b'I', ..] => Some("known"),
        [b'T', ..] => Some("other"),
        _ => None,
    }
}

fn is_decoded(bytes: &[u8]) -> bool {
    bytes.starts_with(b"I")
}

fn options(extensions: &[&str], limit: u64) -> Arc<ReadOptions> {
    options_of(extensions, true, limit)
}

fn options_of(extensions: &[&str], are_named: bool, limit: u64) -> Arc<ReadOptions> {
    let extensions = extensions.iter().map(|extension| (*extension).to_owned()).collect();
    let named = Projection::named(vec!["txt".to_owned(), "1.png".to_owned()]);
    Arc::new(ReadOptions {
        projection: named.with_images(ImageParts { extensions, are_named, size, kind, is_decoded }),
        ..ReadOptions::clone(&super::options(limit))
    })
}

/// The records as JSON.
fn records(bytes: &[u8], options: &Arc<ReadOptions>) -> Vec<String> {
    let source = Box::new(bytes.to_vec());
    let mut reader = RecordReader::from_source(&"s.tar".into(), source, options, &Arc::default()).unwrap();
    let mut records = Vec::new();
    loop {
        match reader.next_raw() {
            Ok(Some(record)) => records.push(String::from_utf8(record.bytes.to_vec()).unwrap()),
            Ok(None) => return records,
            Err(error) => records.push(error.to_string()),
        }
    }
}

/// The list of images of a record.
fn images(bytes: &[u8], extensions: &[&str]) -> String {
    let found = records(bytes, &options(extensions, 1 << 20)).remove(0);
    let at = found.find(IMAGES_KEY).unwrap();
    let described = &found[at + IMAGES_KEY.len() + 2..found.len() - 1];
    let (_, list) = described.split_once(r#","images":"#).unwrap();
    list.strip_suffix('}').unwrap().to_owned()
}

#[test]
fn images_are_listed_in_natural_order() {
    let far = [b"W\x50".to_vec(), vec![0; 9000]].concat();
    let shard = archive(&[
        ("a.10.jpg", b"I\x05\x06"),
        ("a.2.JPG", b"I\x03\x04...."),
        ("a.txt", b"text"),
        ("a.1.png", b"no image"),
        ("a.seg.png", &far),
        ("a.gif", b""),
        ("b.txt", b"none"),
    ]);
    let found = records(&shard, &options(&["jpg", "png", "gif"], 1 << 20));
    let expected = concat!(
        r#"{"10.jpg":{"bytes":3,"width":5,"height":6},"2.JPG":{"bytes":7,"width":3,"height":4},"txt":"text","#,
        r#""1.png":{"bytes":8},"seg.png":{"bytes":9002,"width":1,"height":1},"gif":{"bytes":0},"/images":{"key":"a","images":["#,
        r#"{"part":"1.png","offset":3584,"bytes":8,"error":"expected an image, found 8 bytes"},"#,
        r#"{"part":"2.JPG","offset":1536,"bytes":7,"width":3,"height":4},"#,
        r#"{"part":"10.jpg","offset":512,"bytes":3,"width":5,"height":6},"#,
        r#"{"part":"gif","offset":14336,"bytes":0,"error":"expected an image, found 0 bytes"},"#,
        r#"{"part":"seg.png","offset":4608,"bytes":9002,"width":1,"height":1}]}}"#
    );
    assert_eq!(found[0], expected);
    assert!(
        found[1].starts_with(
            r#"{"txt":"none","/images":{"key":"b","missing":"expected an image under \"jpg\", "#
        )
    );
    assert_eq!(images(&shard, &["1.png"]).matches("part").count(), 1);
    assert_eq!(images(&shard, &["seg.png", "jpg"]).matches("part").count(), 3);
    let limited = records(&shard, &options(&["seg.png"], 9001)).remove(0);
    assert!(limited.contains("expected an image of at most 9001 bytes, found one of 9002"), "{limited}");
}

#[test]
fn groups_without_the_image_that_they_should_have_say_so() {
    let shard = archive(&[
        ("a.txt", b"no image"),
        ("b.txt", b"under another extension"),
        ("b.img", b"T.."),
        ("c.txt", b"beside a known one"),
        ("c.jpg", b"I\x01\x02"),
        ("c.img", b"T.."),
        ("d.txt", b"of another format"),
        ("d.jpg", b"T.."),
        ("e.1.png", b"I in a member that the filter reads\0"),
        ("f.jpgs", b"\x80\x04]\x94."),
    ]);
    let missing = |are_named| {
        let found = records(&shard, &options_of(&["jpg", "jpgs"], are_named, 1 << 20));
        found.into_iter().map(|record| {
            let found = record.split_once(r#","missing":""#)?.1.split_once(r#"","images""#)?.0;
            Some(found.replace('\\', ""))
        })
    };
    let named: Vec<_> = missing(true).collect();
    let expected = r#"expected an image under "jpg", "jpgs", as fields["images"] says, found "txt""#;
    assert!(named[0].as_ref().unwrap().starts_with(expected), "{named:?}");
    assert_eq!(
        named.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false, false, true, false]
    );
    let all: Vec<_> = missing(false).collect();
    assert_eq!(all.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, false, true, false]);
    assert!(all[1].as_ref().unwrap().contains(r#"found the other image "img" and no other; rename it"#));
    let found = records(&shard, &options_of(&["jpg"], false, 1 << 20)).remove(3);
    assert!(found.contains(r"found 3 bytes, or say which members are images in fields="), "{found}");
}

#[test]
fn other_shards_have_no_images() {
    let compressed = gzip(&archive(&[("a.jpg", b"I\x01\x01")]));
    for (name, bytes) in [("s.tar.gz", compressed), ("s.jsonl", b"{}\n".to_vec())] {
        let options = options(&["jpg"], 1 << 20);
        let opened = RecordReader::from_source(&name.into(), Box::new(bytes), &options, &Arc::default());
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("expected a tar that is not compressed"), "{error}");
    }
}

/// The list of `bytes` of two images as Python's protocols 3 to 5 write it.
const LISTS: [&[u8]; 3] = [
    b"\x80\x03]q\x00(C\x06I\x02\x03xyzq\x01C\x03I\x04\x05q\x02e.",
    b"\x80\x04\x95\x12\x00\x00\x00\x00\x00\x00\x00]\x94(C\x06I\x02\x03xyz\x94C\x03I\x04\x05\x94e.",
    b"\x80\x05]\x94(B\x06\x00\x00\x00I\x02\x03xyz\x94\x8e\x03\x00\x00\x00\x00\x00\x00\x00I\x04\x05\x94e.",
];

#[test]
fn pickled_lists_are_read_without_unpickling() {
    for list in LISTS {
        let shard = archive(&[("a.jpgs", list), ("a.txt", b"text")]);
        let at = |image: &[u8]| shard.windows(image.len()).position(|window| window == image).unwrap();
        let expected = format!(
            r#"[{{"part":"jpgs","offset":{},"bytes":6,"width":2,"height":3}},{{"part":"jpgs","offset":{},"bytes":3,"width":4,"height":5}}]"#,
            at(b"I\x02\x03xyz"),
            at(b"I\x04\x05")
        );
        assert_eq!(images(&shard, &["jpgs"]), expected);
    }
    let one = images(&archive(&[("a.jpgs", b"\x80\x04]\x94C\x03I\x04\x05\x94a.")]), &["jpgs"]);
    assert_eq!(one.matches("width").count(), 1);
    assert_eq!(images(&archive(&[("a.jpgs", b"\x80\x04]\x94.")]), &["jpgs"]), "[]");
}

#[test]
fn other_pickles_are_refused() {
    for (pickle, expected) in [
        (&b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94."[..], "another pickle, with the opcode 0x8c"),
        (b"\x80\x04]\x94(K\x01K\x02e.", "with the opcode 0x4b"),
        (b"\x80\x04]\x94C\x03I\x04\x05\x94.", "with the opcode 0x2e"),
        (b"\x80\x04]\x94(C\x03I\x04\x05\x94h\x01e.", "with the opcode 0x68"),
        (b"\x80\x04]\x94(B\xff\xff\xff\xffI", "found its end before the list's: it was cut"),
        (b"\x80", "it was cut"),
        (b"\x80\x04]\x94(", "it was cut"),
    ] {
        let found = images(&archive(&[("a.jpgs", pickle), ("b.txt", b"")]), &["jpgs"]);
        assert!(
            found.contains("\"error\":\"expected a pickled list of bytes") && found.contains(expected),
            "{found}"
        );
        assert_eq!(found.matches("part").count(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_pickles_end_without_a_panic(
        list in 0..3_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = LISTS[list].to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let shard = [entry(b'0', b"a.jpgs", &bytes), archive(&[("b.txt", b"after")])].concat();
        let found = records(&shard, &options(&["jpgs"], 1 << 20));
        prop_assert_eq!(found.len(), 2);
        prop_assert!(found[1].contains("after"));
        let described: serde_json::Value = serde_json::from_str(&found[0]).unwrap();
        for image in described[IMAGES_KEY]["images"].as_array().unwrap() {
            let [offset, length] = ["offset", "bytes"].map(|name| image[name].as_u64().unwrap());
            prop_assert!(offset >= 512 && offset + length <= 512 + bytes.len() as u64);
        }
    }
}
