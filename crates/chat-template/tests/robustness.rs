//! No template and no conversation makes the engine panic, hang, or use memory without bound.

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, Limits, TrainOn, Training};
use proptest::prelude::*;

/// The parts that templates are made of, in any order.
const PARTS: [&str; 96] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{{-",
    "-}}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    " if ",
    " elif ",
    " else ",
    " endif ",
    " for ",
    " in ",
    " endfor ",
    " set ",
    " endset ",
    " macro ",
    " endmacro ",
    " call ",
    " endcall ",
    " filter ",
    " endfilter ",
    " generation ",
    " endgeneration ",
    " recursive ",
    " break ",
    " continue ",
    " with ",
    " endwith ",
    " raw ",
    " endraw ",
    " is ",
    " not ",
    " and ",
    " or ",
    "m",
    "messages",
    "loop",
    "x",
    "ns",
    "namespace(a=1)",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    ":",
    "|",
    "=",
    "==",
    "!=",
    "<",
    "+",
    "-",
    "*",
    "**",
    "/",
    "//",
    "%",
    "~",
    "'a'",
    "\"é\\n\"",
    "'",
    "1",
    "0",
    "-1",
    "1.5",
    "99999999999999999999",
    ".role",
    ".content",
    "['role']",
    "[::-1]",
    "[1:]",
    ".items()",
    ".split('a')",
    ".strip()",
    ".get('x')",
    ".format(1)",
    "|trim",
    "|length",
    "|tojson",
    "|join(',')",
    "|map('upper')",
    "|list",
    "|safe",
    "|sort",
    "range(3)",
    "dict(a=1)",
    "text\n",
    "é🎉",
];

/// Sound templates to break.
const TEMPLATES: [&str; 4] = [
    "{%- for m in messages %}{{- '<|' + m.role + '|>' + (m.content|trim) + '<|end|>\\n' }}{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% set ns = namespace(i=0, t='') %}{% macro r(m, n=1) %}{{ m.content if m.content is string else m|tojson(indent=2) }}{{ caller() if caller }}{% endmacro %}{% for m in messages[1:] if m.role != 'x' %}{% set ns.i = ns.i + loop.index %}{% call r(m) %}{% generation %}{{ loop.last }}{% endgeneration %}{% endcall %}{% else %}{{ ns.i }}{% endfor %}",
    "{% for k, v in messages[0]|dictsort recursive %}{{ k.upper() ~ v|string|replace('a', 'b')|indent(2) }}{{ loop([(1, 2)]) if loop.depth < 3 }}{% endfor %}{% filter upper %}{{ messages|selectattr('role', 'eq', 'user')|map(attribute='content')|join(', ') }}{% endfilter %}",
    "{% set x %}{{ messages[-1]['content'][::-1] }}{% endset %}{% with y = x|safe %}{{ y + '<' }}{{ '%s-%5.2f' % (x, 1.5) }}{{ '{}{a}'.format(x, a=[1, {'b': none}]) }}{% endwith %}",
];

const MESSAGES: &str = r#"[{"role": "user", "content": "Hé 🎉 a<b"}, {"role": "assistant", "content": "A", "n": [1.5, null]},
    {"role": "x", "content": [{"type": "text", "text": "t"}]}]"#;

/// Compiles and renders, within bounds, and looks at what comes out.
fn run(source: &str, messages: &[u8]) {
    let limits = Limits { steps: 100_000, memory: 1 << 22, output: 1 << 20, ..Limits::default() };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let tokens = ["<|end|>".to_owned()];
    let template =
        template.with_limits(limits).with_tokens(&tokens, &[]).expect("one token can be searched for");
    let chat = Chat { date: DateTime::parse("2026-11-05"), ..Chat::new(Data::Json(messages)) };
    for on in [TrainOn::Assistant, TrainOn::All, TrainOn::Template, TrainOn::Roles(vec!["user".to_owned()])] {
        let Ok(trained) = template.render_trained(&chat, &Training::on(on)) else { continue };
        let text = trained.rendering.text();
        let mut at = 0;
        for span in trained.rendering.spans() {
            assert_eq!(span.start, at);
            assert!(span.start < span.end && text.is_char_boundary(span.end));
            trained.rendering.path(&span);
            at = span.end;
        }
        assert_eq!(at, text.len());
        for ranges in [&trained.ranges, &trained.rendering.data_ranges()] {
            assert!(ranges.iter().all(|range| range.start < range.end && range.end <= text.len()));
            assert!(ranges.is_sorted_by(|a, b| a.end < b.start));
            assert!(
                ranges.iter().all(|range| text.get(range.clone()).is_some()),
                "ranges end between characters"
            );
        }
    }
}

proptest! {
    #[test]
    fn random_parts(parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..40)) {
        run(&parts.concat(), MESSAGES.as_bytes());
    }

    #[test]
    fn random_expressions(parts in prop::collection::vec(prop::sample::select(&PARTS[38..]), 1..12)) {
        run(&format!("{{{{ {} }}}}", parts.concat()), MESSAGES.as_bytes());
    }

    #[test]
    fn broken_templates(
        template in prop::sample::select(&TEMPLATES[..]),
        edits in prop::collection::vec((0.0..1.0, 0_usize..30, prop::sample::select(&PARTS[..])), 1..4),
    ) {
        let mut source: Vec<char> = template.chars().collect();
        for (place, length, part) in edits {
            let start = (place * source.len() as f64) as usize;
            let end = (start + length).min(source.len());
            source.splice(start..end, part.chars());
        }
        run(&source.into_iter().collect::<String>(), MESSAGES.as_bytes());
    }

    #[test]
    fn broken_conversations(
        template in prop::sample::select(&TEMPLATES[..]),
        edits in prop::collection::vec((0.0..1.0, 0_usize..12, prop::sample::select(&[
            "{", "}", "[", "]", ",", ":", "\"", "\\", "null", "1e9", "-", "\\ud83d", "\u{0}", "é", "[[[[", "\"a\": ", "true",
        ][..])), 1..4),
    ) {
        let mut json: Vec<char> = MESSAGES.chars().collect();
        for (place, length, part) in edits {
            let start = (place * json.len() as f64) as usize;
            let end = (start + length).min(json.len());
            json.splice(start..end, part.chars());
        }
        run(template, json.into_iter().collect::<String>().as_bytes());
    }
}

#[test]
fn large_inputs_take_time_in_proportion() {
    let turn = r#"{"role": "user", "content": "some words"}, {"role": "assistant", "content": "an answer"}"#;
    let conversation = format!("[{}]", vec![turn; 2000].join(", "));
    let template = ChatTemplate::new(TEMPLATES[0]).expect("the template is sound");
    let template = template.with_tokens(&["<|end|>".to_owned()], &[]).expect("one token can be searched for");
    let chat = Chat::new(Data::Json(conversation.as_bytes()));
    let trained = template.render_trained(&chat, &Training::on(TrainOn::Assistant)).expect("it is sound");
    assert_eq!(trained.ranges.len(), 2000);
    let keys: Vec<String> = (0..50_000).map(|key| format!("\"k{key}\": {key}")).collect();
    let wide = format!("[{{\"role\": \"user\", \"content\": \"\", {}}}]", keys.join(", "));
    let template =
        ChatTemplate::new("{% for k in messages[0] %}{{ messages[0][k] }}{% endfor %}").expect("it is sound");
    let rendering =
        template.render(&Chat::new(Data::Json(wide.as_bytes()))).expect("it is within the bounds");
    assert!(rendering.text().ends_with("49999"));
}
