//! Images in tars: found by their headers, one to a member or in pickled lists.

use _core::format::{FoundImage, GroupImages, ImageParts, Medium};
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
        projection: named.with_images(ImageParts {
            extensions,
            are_named,
            medium: Medium::Image,
            are_columns: false,
            size,
            kind,
            is_decoded,
        }),
        ..ReadOptions::clone(&super::options(limit))
    })
}

/// The records as JSON, and their images; or errors.
fn records(bytes: &[u8], options: &Arc<ReadOptions>) -> Vec<Result<(String, GroupImages), String>> {
    let source = Box::new(bytes.to_vec());
    let mut reader = RecordReader::from_source(&"s.tar".into(), source, options, &Arc::default()).unwrap();
    let mut records = Vec::new();
    loop {
        match reader.next_raw() {
            Ok(Some(record)) => {
                let json = String::from_utf8(record.bytes.to_vec()).unwrap();
                records.push(Ok((json, record.images.unwrap().clone())));
            }
            Ok(None) => return records,
            Err(error) => records.push(Err(error.to_string())),
        }
    }
}

/// The images of the first record.
fn images(bytes: &[u8], extensions: &[&str]) -> Vec<FoundImage> {
    records(bytes, &options(extensions, 1 << 20)).remove(0).unwrap().1.images
}

fn image(member: &str, offset: u64, bytes: u64, size: Result<(u32, u32), &str>) -> FoundImage {
    FoundImage { member: member.to_owned(), offset, bytes, size: size.map_err(ToOwned::to_owned) }
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
    let mut found = records(&shard, &options(&["jpg", "png", "gif"], 1 << 20)).into_iter().flatten();
    let (json, group) = found.next().unwrap();
    let expected = concat!(
        r#"{"10.jpg":{"bytes":3,"width":5,"height":6},"2.JPG":{"bytes":7,"width":3,"height":4},"txt":"text","#,
        r#""1.png":{"bytes":8},"seg.png":{"bytes":9002,"width":1,"height":1},"gif":{"bytes":0}}"#,
    );
    assert_eq!(json, expected);
    let expected = GroupImages {
        key: "a".to_owned(),
        missing: None,
        unseen: None,
        images: vec![
            image("1.png", 3584, 8, Err("expected an image, found 8 bytes")),
            image("2.JPG", 1536, 7, Ok((3, 4))),
            image("10.jpg", 512, 3, Ok((5, 6))),
            image("gif", 14336, 0, Err("expected an image, found 0 bytes")),
            image("seg.png", 4608, 9002, Ok((1, 1))),
        ],
    };
    assert_eq!(group, expected);
    let (json, group) = found.next().unwrap();
    assert_eq!((json.as_str(), group.key.as_str()), (r#"{"txt":"none"}"#, "b"));
    assert!(group.missing.unwrap().starts_with("expected an image under \"jpg\", "));
    assert_eq!(images(&shard, &["1.png"]).len(), 1);
    assert_eq!(images(&shard, &["seg.png", "jpg"]).len(), 3);
    let limited = records(&shard, &options(&["seg.png"], 9001)).remove(0).unwrap().1.images.remove(0).size;
    let limited = limited.unwrap_err();
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
        found.into_iter().map(|record| record.unwrap().1.missing)
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
    let found = records(&shard, &options_of(&["jpg"], false, 1 << 20)).remove(3).unwrap().1;
    let found = found.images[0].size.clone().unwrap_err();
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
        let expected = [
            image("jpgs", at(b"I\x02\x03xyz") as u64, 6, Ok((2, 3))),
            image("jpgs", at(b"I\x04\x05") as u64, 3, Ok((4, 5))),
        ];
        assert_eq!(images(&shard, &["jpgs"]), expected);
    }
    let one = images(&archive(&[("a.jpgs", b"\x80\x04]\x94C\x03I\x04\x05\x94a.")]), &["jpgs"]);
    assert_eq!(one.len(), 1);
    assert_eq!(images(&archive(&[("a.jpgs", b"\x80\x04]\x94.")]), &["jpgs"]), []);
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
        let [FoundImage { size: Err(error), .. }] = &found[..] else { panic!("{found:?}") };
        assert!(error.starts_with("expected a pickled list of bytes") && error.contains(expected), "{error}");
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
        prop_assert!(found[1].as_ref().unwrap().0.contains("after"));
        for FoundImage { offset, bytes: length, .. } in &found[0].as_ref().unwrap().1.images {
            prop_assert!(*offset >= 512 && offset + length <= 512 + bytes.len() as u64);
        }
    }
}
