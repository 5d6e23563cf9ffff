//! Packed values against the JSON that they are, and the JSON of types that it lacks.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{Packer, base64};
use crate::path::Step;
use crate::value::Value;
use crate::view::{Content, View};
use crate::write::{write_exact, write_json};

fn packed(pack: impl FnOnce(&mut Packer)) -> Packer {
    let mut packer = Packer::default();
    pack(&mut packer);
    packer
}

/// The JSON of a value, whose bytes were counted.
fn written(pack: impl FnOnce(&mut Packer)) -> String {
    let packer = packed(pack);
    let mut json = Vec::new();
    write_json(View::packed(packer.bytes()), &mut json);
    let json = String::from_utf8(json).unwrap();
    assert_eq!(packer.json_bytes(), json.len() as u64 + 1, "{json}");
    json
}

/// The same as Python is to have it, and whether there is a type that JSON lacks.
fn exact(pack: impl FnOnce(&mut Packer)) -> (String, bool) {
    let mut out = Vec::new();
    let has_typed = write_exact(View::packed(packed(pack).bytes()), &mut out);
    (String::from_utf8(out).unwrap(), has_typed)
}

fn pack_json(value: &Json, packer: &mut Packer) {
    match value {
        Json::Null => packer.null(),
        Json::Bool(value) => packer.boolean(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => packer.integer(number),
            None => packer.float(number.as_f64().unwrap()),
        },
        Json::String(text) => packer.text(text.as_bytes(), false).ok().unwrap(),
        Json::Array(items) => {
            let opened = packer.open_list();
            for item in items {
                pack_json(item, packer);
            }
            packer.close(opened);
        }
        Json::Object(members) => {
            let opened = packer.open_object();
            for (key, value) in members {
                packer.key(key);
                pack_json(value, packer);
            }
            packer.close(opened);
        }
    }
}

#[test]
fn decimals_have_all_digits() {
    let decimal = |number: i128, scale| written(|out| out.decimal(&number.to_be_bytes(), scale));
    let cases = [
        (0, 0, "0"),
        (0, 2, "0.00"),
        (5, 3, "0.005"),
        (-5, 3, "-0.005"),
        (12345, 2, "123.45"),
        (-12345, 0, "-12345"),
        (7, -3, "7000"),
        (0, -3, "0"),
        (i128::MIN, 1, "-17014118346046923173168730371588410572.8"),
    ];
    for (number, scale, expected) in cases {
        assert_eq!(decimal(number, scale), expected);
    }
    assert_eq!(written(|out| out.decimal(&[0xff], 1)), "-0.1");
    assert_eq!(written(|out| out.decimal(&[], 0)), "0");
    assert_eq!(written(|out| out.decimal(&[0; 33], 0)), "null");
    assert_eq!(written(|out| out.decimal(&[1], i32::MIN)), "null");
}

#[test]
fn times_are_iso_8601() {
    let stamp = |time, per_second, zone| written(|out| out.timestamp(time, per_second, zone));
    assert_eq!(stamp(0, 1, Some("Asia/Tokyo")), "\"1970-01-01T00:00:00+00:00\"");
    assert_eq!(stamp(-1, 1000, None), "\"1969-12-31T23:59:59.999000\"");
    assert_eq!(stamp(951_782_400_000_000_001, 1_000_000_000, None), "\"2000-02-29T00:00:00.000000001\"");
    for extreme in [i64::MIN, i64::MAX] {
        assert!(!stamp(extreme, 1, None).is_empty());
        assert!(!written(|out| out.date(extreme)).is_empty());
        assert!(!written(|out| out.time(extreme, 1000)).is_empty());
    }
    assert_eq!(written(|out| out.date(11_016)), "\"2000-02-29\"");
    assert_eq!(written(|out| out.date(-719_162)), "\"0001-01-01\"");
    assert_eq!(written(|out| out.time(86_399_000_500, 1_000_000)), "\"23:59:59.000500\"");
    assert_eq!(written(|out| out.duration(-7, 1000)), "-7");
}

#[test]
fn numbers_are_exact() {
    for number in [0, 1, -1, 9, 10, -10, i64::MAX.into(), i64::MIN.into(), u64::MAX.into(), i128::MIN] {
        assert_eq!(written(|out| out.integer(number)), number.to_string());
    }
    assert_eq!(written(|out| out.float(f64::from(0.1_f32))), "0.10000000149011612");
    assert_eq!(written(|out| out.float(f64::NEG_INFINITY)), "-1e999");
    assert_eq!(written(|out| out.float(f64::NAN)), "null");
}

#[test]
fn bytes_and_uuids_are_strings() {
    let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
    assert_eq!(written(|out| out.uuid(&uuid)), "\"00010203-0405-0607-0809-0a0b0c0d0eff\"");
    assert_eq!(written(|out| out.binary(b"a\xff\n")), "\"a\u{fffd}\\n\"");
}

#[test]
fn escapes_of_long_strings_are_counted() {
    let text = "\"\u{1}\né".repeat(300);
    assert_eq!(
        written(|out| out.text(text.as_bytes(), false).ok().unwrap()),
        Json::from(text.as_str()).to_string()
    );
}

#[test]
fn json_of_columns_stays_as_it_is() {
    let json = |text: &str| {
        let mut out = Packer::default();
        out.text(text.as_bytes(), true).map_err(|fault| fault.describe("a.b"))?;
        Ok::<_, String>(out)
    };
    let text = "\u{feff} {\"a \\\" b\" : [ 1.50,\t\"\\ud800 \" ,\n null ] }\r";
    let compact = r#"{"a \" b":[1.50,"\ud800 ",null]}"#;
    assert_eq!(written(|out| out.text(text.as_bytes(), true).ok().unwrap()), compact);
    let packer = json(text).unwrap();
    let item = View::packed(packer.bytes()).step(&Step::Key("a \" b".into())).unwrap();
    assert_eq!(item.step(&Step::Index(0)).unwrap().id().unwrap(), "1.50");
    for (text, expected) in [
        ("", "expected JSON in the column \"a.b\": expected a value, found the end of the value"),
        ("{\"a\": 1", "found the end of the value at byte 7 of the value"),
        ("NaN", "found NaN, which is not JSON, at byte 0 of the value"),
        ("1 2", "at byte 2 of the value"),
    ] {
        let error = json(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn python_has_the_types_that_json_lacks() {
    let row = |out: &mut Packer| {
        let opened = out.open_object();
        out.key("a");
        out.binary(b"\x00\xff");
        out.key("b");
        out.float(f64::NAN);
        out.key("c");
        out.decimal(&[110], 2);
        out.key("d");
        let list = out.open_list();
        out.timestamp(-1, 1000, Some("UTC"));
        out.decimal(&[7], -3);
        out.decimal(&[0], -3);
        out.close(list);
        out.close(opened);
    };
    let expected = [
        "{\"a\":{\"\\ud800bytes\":\"AP8=\"},\"b\":NaN,\"c\":{\"\\ud800decimal\":\"1.10\"},",
        "\"d\":[{\"\\ud800timestamp\":[-1,1000,\"UTC\"]},{\"\\ud800decimal\":\"7E3\"},{\"\\ud800decimal\":\"0E3\"}]}",
    ];
    assert_eq!(exact(row), (expected.concat(), true));
    assert_eq!(exact(|out| pack_json(&json!({"a": [1, null]}), out)), ("{\"a\":[1,null]}".into(), false));
}

#[test]
fn base64_is_read_as_written() {
    for length in 0..9 {
        let bytes: Vec<u8> = (0..length).map(|index: u8| index.wrapping_mul(41).wrapping_add(200)).collect();
        let (json, _) = exact(|out| out.binary(&bytes));
        let text = json.split('"').nth(3).unwrap();
        assert_eq!(text.len(), bytes.len().div_ceil(3) * 4);
        assert_eq!(base64(text), bytes);
    }
}

/// `{"a": null, "b": {"c": null, "d": [null]}}`, whose objects are structs.
fn with_filled(out: &mut Packer) {
    let opened = out.open_object();
    out.key("a");
    out.filled();
    out.key("b");
    let inner = out.open_object();
    out.key("c");
    out.filled();
    out.key("d");
    let list = out.open_list();
    out.null();
    out.close(list);
    out.close(inner);
    out.close(opened);
}

#[test]
fn filled_keys_are_left_out_at_any_depth() {
    let packer = packed(with_filled);
    let read = |keeps_filled| View::packed(packer.bytes()).to_value(keeps_filled).unwrap();
    let list = Value::List(vec![Value::Null]);
    let inner = |members| Value::Object(members);
    let dropped = Value::Object(vec![("b".into(), inner(vec![("d".into(), list.clone())]))]);
    assert_eq!(read(false), dropped);
    let kept = inner(vec![("c".into(), Value::Null), ("d".into(), list)]);
    assert_eq!(read(true), Value::Object(vec![("a".into(), Value::Null), ("b".into(), kept)]));
    assert_eq!(written(with_filled), r#"{"a":null,"b":{"c":null,"d":[null]}}"#);
}

/// A map with an item, in an object.
fn with_map(out: &mut Packer, key: impl FnOnce(&mut Packer)) {
    let opened = out.open_object();
    out.key("m");
    let map = out.open_map();
    let pair = out.open_list();
    key(out);
    out.float(f64::NAN);
    out.close(pair);
    out.close(map);
    out.close(opened);
}

#[test]
fn maps_are_lists_of_pairs_for_paths_and_objects_for_templates() {
    let packer = packed(|out| with_map(out, |out| out.text(b"k", false).ok().unwrap()));
    let view = View::packed(packer.bytes());
    let map = view.step(&Step::Key("m".into())).unwrap();
    assert_eq!(map.content(), Content::Array);
    let key = map.step(&Step::Index(0)).unwrap().step(&Step::Index(-2)).unwrap();
    assert_eq!(key.content(), Content::Text("k".into()));
    let map = Value::Object(vec![("k".into(), Value::Typed)]);
    assert_eq!(view.to_value(false).unwrap(), Value::Object(vec![("m".into(), map)]));
    let packer = packed(|out| with_map(out, |out| out.integer(1)));
    let error = View::packed(packer.bytes()).to_value(false).unwrap_err().to_string();
    assert!(error.contains("strings as its keys under \"m\", found another"), "{error}");
}

#[test]
fn deep_values_are_errors_where_they_are_read() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    for (levels, is_read) in [(200, true), (201, false), (100_000, false)] {
        let packer = packed(|out| out.text(deep(levels).as_bytes(), true).ok().unwrap());
        assert_eq!(View::packed(packer.bytes()).to_value(true).is_ok(), is_read);
    }
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        (-100_i64..100).prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[ -~\u{0}-\u{1f}é€😀]{0,20}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::vec(("[a-c\"\n]{0,2}", inner), 0..5)
                .prop_map(|members| members.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

/// Everything that a view shows of a value.
fn seen(value: View<'_>) -> String {
    let items: Vec<_> = value.items().map(seen).collect();
    let inside: Vec<_> = ["a", "b", "ab"].map(|key| value.step(&Step::Key(key.into())).map(seen)).into();
    let last = value.step(&Step::Index(-1)).map(seen);
    format!("{:?} {:?} {items:?} {inside:?} {last:?} {}", value.content(), value.id(), value.has_no_members())
}

proptest! {
    #[test]
    fn packed_values_are_those_of_their_json(value in any_json()) {
        let json = value.to_string();
        prop_assert_eq!(&written(|out| pack_json(&value, out)), &json);
        let packer = packed(|out| pack_json(&value, out));
        let (packed, text) = (View::packed(packer.bytes()), View::written(&json, 0));
        prop_assert_eq!(seen(packed), seen(text));
        prop_assert_eq!(packed.to_value(false).unwrap(), text.to_value(false).unwrap());
    }

    /// Damaged bytes are some value.
    #[test]
    fn damaged_bytes_are_read(value in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let packer = packed(|out| pack_json(&value, out));
        let mut bytes = packer.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for bytes in [&bytes[..], &bytes[..at]] {
            _ = View::packed(bytes).json();
            _ = View::packed(bytes).content();
        }
    }
}

#[test]
fn damaged_json_without_bytes_is_null() {
    let packer = packed(|out| pack_json(&Json::Object(serde_json::Map::new()), out));
    let damaged = [&[super::JSON], &packer.bytes()[1..]].concat();
    assert_eq!(View::packed(&damaged).json(), "null");
    assert_eq!(View::packed(&damaged).content(), Content::Null);
}

#[test]
fn ids_are_appended_as_a_whole_or_not_at_all() {
    let cases = [
        ("[]", Some(vec![])),
        ("[ ]", Some(vec![])),
        ("[0]", Some(vec![0])),
        ("[1,2 , 3,\t2147483647]", Some(vec![1, 2, 3, i32::MAX as u32])),
        ("[1,2147483648]", None),
        ("[1,99999999999999999999]", None),
        ("[1,-1]", None),
        ("[1,1.0]", None),
        ("[1,1e1]", None),
        ("[1,true]", None),
        ("[1,[2]]", None),
        ("[1,null]", None),
        ("{}", None),
        ("\"1\"", None),
        ("1", None),
    ];
    for (text, expected) in cases {
        let written = crate::scan::value(text.as_bytes()).unwrap_or_else(|_| panic!("{text}"));
        let value: Json = serde_json::from_str(text).unwrap_or(Json::Null);
        let packer = packed(|out| pack_json(&value, out));
        for view in [written, View::packed(packer.bytes())] {
            let mut ids = vec![7];
            assert_eq!(view.append_ids(&mut ids), expected.is_some(), "{text}");
            assert_eq!(ids, [vec![7], expected.clone().unwrap_or_default()].concat(), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn lists_of_numbers_are_valid_if_serde_says_so(
        parts in prop::collection::vec(
            // A number may be larger than serde takes, so exponents are negative.
            prop::sample::select(vec!["1", "0", "00", "01", "23", "-4", "5.5", "6e-7", ",", ", ", ",  ", "]", "[", " "]),
            0..12,
        ),
    ) {
        let text = format!("[{}]", parts.concat());
        let is_valid = serde_json::from_str::<Json>(&text).is_ok();
        prop_assert_eq!(crate::scan::value(text.as_bytes()).is_ok(), is_valid, "{}", text);
    }
}
