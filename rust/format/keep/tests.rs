//! Operations on values of all types, extraction against `serde_json`, and programs that no compiler made.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::format::{Path, Position, Projection, RawKind, RawRecord, Scratch};

/// The operands that a program leaves on the stack for a line, in words.
fn evaluate(line: &str, paths: Vec<Path>, program: Vec<Instruction>) -> Vec<String> {
    let (projection, program) = (Projection::text("text").with_paths(paths), Expression(program));
    let record = RawRecord::new(RawKind::Line, Position::default(), line.as_bytes());
    let mut found = Vec::new();
    let take = |values: &Values<'_>| {
        found = program.evaluate(values, &Texts::default()).iter().map(words).collect();
        false
    };
    let (mut text, mut scratch) = (String::new(), Scratch::default());
    projection.extract_if(&Arc::from("shard"), record, &mut text, &mut scratch, take).unwrap();
    found
}

fn words(operand: &Operand<'_>) -> String {
    match operand {
        Operand::Nothing => "nothing".into(),
        Operand::Boolean(value) => value.to_string(),
        Operand::Number(number) => number.to_string(),
        Operand::Text(text) | Operand::Label(text) => format!("{text:?}"),
        Operand::Array(_) => "array".into(),
        Operand::Object(_) => "object".into(),
    }
}

fn key(key: &str) -> Step {
    Step::Key(key.into())
}

#[test]
fn values_of_paths() {
    let line = r#"{"a": {"b": [1, 2, {"c": null}], "b": [3, "\u00e9", {"c": 1e999}, []]}, "t": "\ud800", "text": "x",
        "a\u0062": true, "e": {}, "a ": {"b": 1}}"#;
    for (path, expected) in [
        (vec![key("a"), key("b"), Step::Index(0)], "3"),
        (vec![key("a"), key("b"), Step::Index(1)], "\"é\""),
        (vec![key("a"), key("b"), Step::Index(-2), key("c")], "inf"),
        (vec![key("a"), key("b"), Step::Index(-1)], "array"),
        (vec![key("a"), key("b"), Step::Index(-5)], "nothing"),
        (vec![key("a"), key("b"), Step::Index(4)], "nothing"),
        (vec![key("a"), key("b"), key("c")], "nothing"),
        (vec![key("a"), Step::Index(0)], "nothing"),
        (vec![key("t")], "nothing"),
        (vec![key("text")], "\"x\""),
        (vec![key("text"), key("x")], "nothing"),
        (vec![key("ab")], "true"),
        (vec![key("e")], "object"),
        (vec![key("none")], "nothing"),
    ] {
        // Also beside other paths, which share its nodes.
        let others = [vec![key("a")], vec![key("a"), key("b")], vec![key("text")], vec![key("t")]];
        for others in [&others[..], &[]] {
            let mut paths = vec![path.clone()];
            paths.extend(others.iter().filter(|other| **other != path).cloned());
            assert_eq!(evaluate(line, paths, vec![Instruction::Path(0)]), [expected], "{path:?}");
        }
    }
}

#[test]
fn earlier_of_equal_keys_is_forgotten_with_all_that_it_holds() {
    for line in [
        r#"{"a": {"b": 1}, "a": {"c": 2}}"#,
        r#"{"a": {"b": 1}, "\u0061": 3}"#,
        r#"{"a": {"b": 1, "b": null}}"#,
        r#"{"a": {"b": 1}, "a": [{"b": 1}]}"#,
    ] {
        assert_eq!(evaluate(line, vec![vec![key("a"), key("b")]], vec![Instruction::Path(0)]), ["nothing"]);
    }
}

#[test]
fn json_in_strings_has_values() {
    let line =
        r#"{"m": "{\"a\": [1, {\"b\": \"\\u00e9\"}], \"n\": \"[2]\"}", "o": {"a": 5}, "t": "{", "x": 1}"#;
    for (path, steps, expected) in [
        ("m", vec![vec![key("a"), Step::Index(0)]], "1"),
        ("m", vec![vec![key("a"), Step::Index(1), key("b")]], "\"é\""),
        ("m", vec![vec![]], "object"),
        ("m", vec![vec![key("n")], vec![Step::Index(0)]], "2"),
        ("o", vec![vec![key("a")]], "5"),
        ("t", vec![vec![]], "nothing"),
        ("x", vec![vec![]], "1"),
        ("x", vec![vec![key("a")]], "nothing"),
        ("none", vec![vec![]], "nothing"),
    ] {
        let program = [Instruction::Path(0)].into_iter().chain(steps.into_iter().map(Instruction::Json));
        assert_eq!(evaluate(line, vec![vec![key(path)]], program.collect()), [expected], "{path}");
    }
}

#[test]
fn labels_are_texts_and_numbers() {
    let label = || Operand::Label("7.0".into());
    for (other, order) in [
        (Operand::Number(7.0), "equal"),
        (Operand::Number(8.0), "less"),
        (Operand::Text("7.0".into()), "equal"),
        (Operand::Text("6".into()), "greater"),
        (Operand::Boolean(true), "greater"),
        (Operand::Nothing, ""),
    ] {
        let holds = |comparison: Comparison| comparison.holds(&label(), &other);
        assert_eq!(holds(Comparison::Equal), order == "equal");
        assert_eq!(holds(Comparison::Less), order == "less");
        assert_eq!(holds(Comparison::Greater), order == "greater");
    }
    let constants = |numbers, texts| Constants::new(numbers, texts);
    assert_eq!(label().is_one_of(&constants(vec![7.0], vec![])), Some(true));
    assert_eq!(label().is_one_of(&constants(vec![], vec!["7.0".into()])), Some(true));
    assert_eq!(label().is_one_of(&constants(vec![8.0], vec!["7".into()])), Some(false));
    assert!(Operand::Label("nan".into()).as_number().is_none());
}

#[test]
fn aggregates_ignore_missing_values() {
    let line =
        r#"{"a": [{"n": [1, 2]}, {}, {"n": null}, {"n": [4, null]}], "e": [], "mixed": [1, "x"], "n": 3}"#;
    let aggregate = |array: &str, items: Vec<Step>, reduction| {
        let aggregate = Instruction::Aggregate { reduction, items, body: 1 };
        let program = vec![Instruction::Path(0), aggregate, Instruction::Item(vec![])];
        evaluate(line, vec![vec![key(array)]], program)
    };
    let nested = || vec![Step::All, key("n"), Step::All];
    let all = [Reduction::Sum, Reduction::Mean, Reduction::Length, Reduction::Count];
    let [smallest, largest] = [Extreme::Smallest, Extreme::Largest].map(Reduction::Extreme);
    let of = |array, items: fn() -> Vec<Step>| {
        [&all[..], &[smallest, largest]]
            .concat()
            .into_iter()
            .map(|r| aggregate(array, items(), r).concat())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("a", || vec![Step::All, key("n"), Step::All]),
        ["7", (7.0f64 / 3.0).to_string().as_str(), "3", "3", "1", "4"]
    );
    assert_eq!(of("e", || vec![Step::All]), ["0", "nothing", "0", "0", "nothing", "nothing"]);
    assert_eq!(of("mixed", || vec![Step::All]), ["nothing", "nothing", "2", "2", "nothing", "nothing"]);
    assert_eq!(of("n", || vec![Step::All]), ["nothing"; 6]);
    assert_eq!(of("none", || vec![Step::All]), ["nothing"; 6]);
    assert_eq!(aggregate("a", nested(), Reduction::List), ["1", "2", "4", "nothing"]);
}

#[test]
fn division_is_towards_minus_infinity_and_by_zero_nothing() {
    for (left, right, quotient, rest) in [
        (7.0, 2.0, "3", "1"),
        (-7.0, 2.0, "-4", "1"),
        (7.0, -2.0, "-4", "-1"),
        (-7.0, -2.0, "3", "-1"),
        (1.0, 0.1, "9", "0.09999999999999995"),
        (5.0, f64::INFINITY, "0", "5"),
        (-5.0, f64::INFINITY, "-1", "inf"),
        (f64::INFINITY, 2.0, "nothing", "nothing"),
        (1.0, 0.0, "nothing", "nothing"),
        (1.0, -0.0, "nothing", "nothing"),
    ] {
        let apply =
            |operation: Arithmetic| words(&operation.apply(&Operand::Number(left), &Operand::Number(right)));
        assert_eq!(apply(Arithmetic::FloorDivide), quotient, "{left} // {right}");
        assert_eq!(apply(Arithmetic::Modulo), rest, "{left} % {right}");
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::sample::select(vec!["a", "b", "text", "é\n"]).prop_map(key),
        2 => (-3i64..4).prop_map(Step::Index),
    ]
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        (-9i64..10).prop_map(|number| number.to_string()),
        any::<i16>().prop_map(|number| (f64::from(number) / 8.0).to_string()),
        "[a-c]{0,2}".prop_map(|text| format!("{text:?}")),
        Just(r#""\ud83d\ude00\t""#.to_owned()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let keys = prop::sample::select(vec![r#""a""#, r#""b""#, r#""\u0061""#, r#""text""#, r#""é\n""#]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec((keys, inner), 0..4).prop_map(|members| {
                let members: Vec<String> =
                    members.into_iter().map(|(key, value)| format!("{key} :{value}")).collect();
                format!("{{ {} }}", members.join(","))
            }),
        ]
    })
}

/// The value of a path as `serde_json` finds it, in words.
fn expected(line: &str, path: &[Step]) -> String {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    for step in path {
        let next = match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.as_array().and_then(|items| {
                let from = if *index < 0 { items.len() as i64 } else { 0 };
                items.get(usize::try_from(index + from).ok()?)
            }),
            Step::All => None,
        };
        value = next.cloned().unwrap_or_default();
    }
    match value {
        serde_json::Value::Null => "nothing".into(),
        serde_json::Value::Bool(value) => value.to_string(),
        serde_json::Value::Number(number) => number.as_f64().unwrap().to_string(),
        serde_json::Value::String(text) => format!("{text:?}"),
        serde_json::Value::Array(_) => "array".into(),
        serde_json::Value::Object(_) => "object".into(),
    }
}

fn instruction() -> impl Strategy<Value = Instruction> {
    use Instruction as I;
    let steps = || prop::collection::vec(prop_oneof![step(), Just(Step::All)], 0..3);
    let reductions = vec![
        Reduction::Sum,
        Reduction::Mean,
        Reduction::Extreme(Extreme::Smallest),
        Reduction::Length,
        Reduction::Count,
        Reduction::List,
    ];
    prop_oneof![
        any::<f64>().prop_map(I::Number),
        "[a-c]{0,2}".prop_map(I::Text),
        any::<bool>().prop_map(I::Boolean),
        (0usize..5).prop_map(I::Path),
        steps().prop_map(I::Item),
        prop::sample::select(vec![
            Arithmetic::Add,
            Arithmetic::Divide,
            Arithmetic::FloorDivide,
            Arithmetic::Modulo
        ])
        .prop_map(I::Arithmetic),
        Just(I::Negate),
        prop::sample::select(vec![Comparison::Less, Comparison::Equal, Comparison::NotEqual])
            .prop_map(I::Compare),
        (0usize..6).prop_map(|skip| I::Chain(Comparison::Less, skip)),
        any::<bool>().prop_map(|negated| I::In { negated }),
        any::<bool>().prop_map(|negated| I::OneOf {
            negated,
            constants: Constants::new(vec![1.0, -0.0], vec!["a".into()])
        }),
        any::<bool>().prop_map(|negated| I::IsNothing { negated }),
        Just(I::Not),
        (0usize..9).prop_map(I::And),
        prop_oneof![0usize..9, Just(usize::MAX)].prop_map(I::Or),
        Just(I::Length),
        (0usize..4).prop_map(|count| I::Extreme(Extreme::Largest, count)),
        (prop::sample::select(reductions), steps(), 0usize..6)
            .prop_map(|(reduction, items, body)| I::Aggregate { reduction, items, body }),
        steps().prop_map(I::Json),
        "[a-c]{0,2}".prop_map(I::Hive),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn paths_find_the_same_values_as_serde_json(
        values in prop::collection::vec(json(), 1..4),
        steps in prop::collection::vec(prop::collection::vec(step(), 0..4), 1..5),
    ) {
        let members: Vec<String> =
            ["a", "text", "a"].iter().zip(&values).map(|(key, value)| format!("\"{key}\": {value}")).collect();
        let line = format!("{{{}}}", members.join(","));
        let mut paths: Vec<Path> = Vec::new();
        for steps in steps {
            for first in ["a", "text"] {
                let path = [vec![key(first)], steps.clone()].concat();
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        let program = (0..paths.len()).map(Instruction::Path).collect();
        let expected: Vec<String> = paths.iter().map(|path| expected(&line, path)).collect();
        prop_assert_eq!(evaluate(&line, paths, program), expected, "{}", line);
    }

    #[test]
    fn any_program_ends_without_a_panic(
        line in json().prop_map(|value| format!("{{\"a\": {value}}}")),
        program in prop::collection::vec(instruction(), 0..12),
    ) {
        let paths = vec![vec![key("a")], vec![key("a"), key("b")], vec![key("a"), Step::Index(-1)], vec![key("b")]];
        evaluate(&line, paths, program);
    }
}
