//! Text: the output of jinja2, one construct a test. The expected texts are jinja2's; `tests/chat_templates` compares
//! more of them at random.

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, ErrorKind, Limits, NoneFields, Value};

const MESSAGES: &[u8] = br#"[
    {"role": "system", "content": " Be <b>kind</b>. "},
    {"role": "user", "content": "Hi \u00e9\ud83c\udf89", "n": 12345678901234567890, "x": 1e-05, "none": null},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "items": 3}
]"#;

fn render(source: &str) -> Result<String, (ErrorKind, String)> {
    let kwargs = Value::Object(vec![
        ("text".into(), Value::Str("  some Text\n".into())),
        ("list".into(), Value::List(vec![Value::Int(3), Value::Int(1), Value::Int(2)])),
    ]);
    let chat = Chat {
        kwargs: Some(Data::Value(&kwargs)),
        date: DateTime::parse("2026-11-05 09:07:03"),
        ..Chat::new(Data::Json(MESSAGES))
    };
    let template = ChatTemplate::new(source).map_err(|error| (error.kind(), error.to_string()))?;
    match template.render(&chat) {
        Ok(rendering) => Ok(rendering.into_text()),
        Err(error) => Err((error.kind(), error.to_string())),
    }
}

/// Checks templates against jinja2's texts.
fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(render(source).as_deref(), Ok(*expected), "{source}");
    }
}

/// Checks that each template fails with this kind of error.
fn check_fails(kind: ErrorKind, sources: &[&str]) {
    for source in sources {
        assert_eq!(render(source).map_err(|(kind, _)| kind), Err(kind), "{source}");
    }
}

#[test]
fn white_space_around_tags_is_trimmed() {
    check(&[
        ("a\n{% if true %}\nb\n{% endif %}\nc\n", "a\nb\nc"),
        ("a  {%- if true -%}  b  {%- endif -%}  c", "abc"),
        ("  {% if true %}x{% endif %}", "x"),
        ("  {%+ if true %}x{% endif %}", "  x"),
        ("a {{- 'b' -}} c", "abc"),
        ("{# comment #}\nx{#- gone -#} y", "xy"),
        ("{% raw %}{{ x }}{% endraw %}\n.", "{{ x }}."),
        ("a\r\nb\rc\n\n", "a\nb\nc\n"),
    ]);
}

#[test]
fn values_print_as_in_python() {
    check(&[
        (
            "{{ messages[1].n }} {{ messages[1].x }} {{ 1e16 }} {{ 0.1 }} {{ 3.0 }}",
            "12345678901234567890 1e-05 1e+16 0.1 3.0",
        ),
        ("{{ none }} {{ true }} {{ undefined_name }}|", "None True |"),
        ("{{ ['a', \"it's\", 1, none, {'k': (1,)}] }}", "['a', \"it's\", 1, None, {'k': (1,)}]"),
        (
            "{{ '\\x00\\x1c\u{e9}\u{200b}' ~ ['\\x00\\x1c\u{e9}\u{200b}'] }}",
            "\u{0}\u{1c}\u{e9}\u{200b}['\\x00\\x1c\u{e9}\\u200b']",
        ),
        (
            "{{ range(3) }} {{ {'a': 1}.items() }} {{ namespace(a=1) }}",
            "range(0, 3) dict_items([('a', 1)]) <Namespace {'a': 1}>",
        ),
        (
            "{{ 9223372036854775807 + 1 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 70 }} {{ 7 / 2 }}",
            "9223372036854775808 -4 2 1180591620717411303424 3.5",
        ),
    ]);
}

#[test]
fn json_is_that_of_json_dumps() {
    check(&[
        (
            "{{ messages[1]|tojson }}",
            "{\"role\": \"user\", \"content\": \"Hi é🎉\", \"n\": 12345678901234567890, \"x\": 1e-05}",
        ),
        (
            "{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
        ),
        ("{{ '<é\\n\\x7f>'|tojson(ensure_ascii=true) }}", "\"<\\u00e9\\n\\u007f>\""),
        ("{{ {'b': 1, 'a': none}|tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":null,\"b\":1}"),
    ]);
    check_fails(ErrorKind::Runtime, &["{{ nothing|tojson }}", "{{ range(2)|tojson }}"]);
}

#[test]
fn strings_have_the_methods_of_python() {
    check(&[
        ("{{ text.strip() }}|{{ text.lstrip() }}|{{ 'xxaxx'.strip('x') }}", "some Text|some Text\n|a"),
        ("{{ '\\x1ca\\x1f'.strip() }}|{{ '\\u00a0a\\u3000'|trim }}", "a|a"),
        (
            "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.rsplit(none, 1) }}",
            "['a', 'b', '', 'c'] ['a', 'b'] ['a b', 'c']",
        ),
        (
            "{{ 'ßa'.upper() }} {{ 'ÀB'.lower() }} {{ 'ǆ ﬁx'.title() }} {{ 'ßX'.capitalize() }}",
            "SSA àb ǅ Fix Ssx",
        ),
        ("{{ 'é🎉x'[1] }}{{ 'é🎉x'[::-1] }}{{ 'é🎉x'[-2:] }}", "🎉x🎉é🎉x"),
        ("{{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }} {{ 'abc'.find('c') }}", "bba -a-b- 2"),
        ("{{ '{}-{x}'.format(1, x='y') }} {{ '%s|%5.1f|%-3d|' % ('a', 2.25, 7) }}", "1-y a|  2.2|7  |"),
        (
            "{{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'a-b'.partition('-') }}",
            "True True ('a', '-', 'b')",
        ),
        ("{{ ', '.join(['a', 'b']) }} {{ 'ab' * 2 }} {{ 'a' 'b' }}", "a, b abab ab"),
    ]);
}

#[test]
fn dict_methods_hide_keys_of_the_same_name() {
    check(&[
        ("{% for k, v in {'a': 1, 'items': 2}.items() %}{{ k }}{{ v }} {% endfor %}", "a1 items2 "),
        (
            "{{ messages[2]['items'] }} {{ messages[2].get('items') }} {{ {}.get('a') }} {{ {}.get('a', 5) }}",
            "3 3 None 5",
        ),
        ("{{ messages[0].missing }}|{{ none.x }}|{{ 5['x'] }}", "||"),
    ]);
    check_fails(ErrorKind::Unsupported, &["{{ messages[2].items }}"]);
    check_fails(ErrorKind::Runtime, &["{{ dict(nothing) }}", "{{ namespace(nothing, a=1).a }}"]);
    check_fails(
        ErrorKind::Runtime,
        &["{{ messages.append(1) }}", "{{ messages[0].pop('role') }}", "{{ a.b }}"],
    );
}

#[test]
fn loops_know_where_they_are() {
    check(&[
        (
            "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
            "1TrueFalse3 2FalseFalse3 3FalseTrue3 ",
        ),
        ("{% for x in list if x > 1 %}{{ x }}{{ loop.length }}{{ loop.nextitem }},{% endfor %}", "322,22,"),
        ("{% for x in [] %}a{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, 2] %}{% continue %}{% else %}all{% endfor %}", "all"),
        ("{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "3"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}{{ a }}", "3"),
    ]);
    check_fails(
        ErrorKind::Runtime,
        &["{% for x in none %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}"],
    );
}

#[test]
fn variables_are_scoped_as_jinja2_compiles_them() {
    check(&[
        ("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21"),
        ("{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1"),
        (
            "{% set ns = namespace(x=1) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
            "7",
        ),
        (
            "{% macro m(a, b='B') %}{{ a }}{{ b }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m(1) }}",
            "1BL",
        ),
        ("{% macro m() %}<{{ caller(2) }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "<2>"),
        ("{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}", "1"),
        ("{% set t %}a{{ 1 }}{% endset %}{{ t }}{% filter upper %}b{% endfilter %}", "a1B"),
        ("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}", "(1,){'a': 2}"),
    ]);
}

#[test]
fn filters_and_tests_are_those_of_jinja2() {
    check(&[
        (
            "{{ list|sort|join('-') }} {{ list|first }} {{ list|last }} {{ list|length }} {{ list|sum }}",
            "1-2-3 3 2 3 6",
        ),
        ("{{ messages|selectattr('role', 'eq', 'user')|map(attribute='content')|list }}", "['Hi é🎉']"),
        ("{{ [1, none, 'a']|select|list }} {{ ['a', 'A']|unique|list }} {{ list|max }}", "[1, 'a'] ['a'] 3"),
        ("{{ '3.7'|int }} {{ 'x'|int(5) }} {{ '2'|float }}", "3 5 2.0"),
        (
            "{{ 747526608712544.25 }} {{ [747526608712544.75]|tojson }}",
            "747526608712544.2 [747526608712544.8]",
        ),
        (
            "{{ {'b': 1, 'A': 2}|dictsort }} {{ x|default('d') }} {{ ''|default('d', true) }}",
            "[('A', 2), ('b', 1)] d d",
        ),
        ("{{ ('<a>'|safe) + '<b>' }} {{ '<'|e }} {{ ('<'|safe) ~ '<' }}", "<a>&lt;b&gt; &lt; <<"),
        (
            "{{ 1 is number }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ none is iterable }}",
            "TrueTrueTrueTrueFalse",
        ),
        (
            "{{ x is defined }}{{ 'a' is sequence }}{{ 3 is odd }}{{ 1 is true }}{{ 'a' is in 'abc' }}",
            "FalseTrueTrueFalseTrue",
        ),
        ("{{ 'a\\nb'|indent(2) }}|{{ 'a-b c'|title }}", "a\n  b|A-B C"),
    ]);
}

#[test]
fn dates_are_fixed() {
    check(&[(
        "{{ strftime_now('%d %b %Y, %A %-d/%m %H:%M:%S %j %U %V') }}",
        "05 Nov 2026, Thursday 5/11 09:07:03 309 44 45",
    )]);
    let template = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap();
    assert!(template.uses_date());
    let error = template.render(&Chat::new(Data::Json(MESSAGES))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Date);
}

#[test]
fn unsupported_constructs_are_refused_at_compilation() {
    for source in [
        "{% include 'x' %}",
        "{{ x|pprint }}",
        "{{ x.encode('utf-8') }}",
        "{{ self }}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ cycler(1) }}",
        "{{ x.__class__ }}",
        "{{ '{:>5}'.format(1) }}",
        "{{ x|map('urlize') }}",
        "{{ x.center(8) }}",
        "{{ x.ljust(8) }}",
        "{{ x.rjust(8) }}",
        "{{ x.zfill(8) }}",
        "{{ x.swapcase() }}",
        "{{ x|batch(2) }}",
        "{{ x|center }}",
        "{{ x|forceescape }}",
        "{{ x|map('round') }}",
        "{{ x|slice(2) }}",
        "{{ x|truncate(9) }}",
        "{{ x|wordcount }}",
    ] {
        assert_eq!(ChatTemplate::new(source).unwrap_err().kind(), ErrorKind::Unsupported, "{source}");
    }
}

#[test]
fn broken_templates_are_refused_with_their_line() {
    for (source, line) in [
        ("a\n{% if x %}", 2),
        ("\n\n{{ 1 + }}", 3),
        ("{{ x|nosuch }}", 1),
        ("{% break %}", 1),
        ("\n{{ 'a }}", 2),
        ("{% for loop in x %}{% endfor %}", 1),
        ("{% endif %}", 1),
        ("{{ (1] }}", 1),
    ] {
        let error = ChatTemplate::new(source).unwrap_err();
        assert_eq!((error.kind(), error.line()), (ErrorKind::Syntax, Some(line)), "{source}");
    }
}

#[test]
fn raised_errors_say_their_message_and_line() {
    let (kind, text) = render("a\n{{ raise_exception('No ' ~ 'way') }}").unwrap_err();
    assert_eq!((kind, text.as_str()), (ErrorKind::Raised, "line 2 of the template: No way"));
}

#[test]
fn bounds_are_errors() {
    let cases = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a' * 999999999999 }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% for a in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 999 }}{% endfor %}",
    ];
    for source in cases {
        let limits = Limits { steps: 3_000_000, memory: 1 << 26, output: 1 << 22, ..Limits::default() };
        let template = ChatTemplate::new(source).unwrap().with_limits(limits);
        let error = template.render(&Chat::new(Data::Json(MESSAGES))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{source}: {error}");
    }
}

#[test]
fn deep_nesting_is_refused_not_run() {
    let sources = [
        format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)),
        format!("{{{{ {} }}}}", "not ".repeat(5000)),
        format!("{{{{ x{} }}}}", ".a".repeat(5000)),
        format!("{{{{ x{} }}}}", "|trim".repeat(5000)),
        format!("{{{{ 1{} }}}}", " - 1".repeat(5000)),
        format!("{}{}", "{% if x %}".repeat(5000), "{% endif %}".repeat(5000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(5000)),
    ];
    for source in sources {
        assert_eq!(ChatTemplate::new(&source).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let deep = format!("[{}]", "[".repeat(9000) + &"]".repeat(9000));
    let error = ChatTemplate::new("x").unwrap().render(&Chat::new(Data::Json(deep.as_bytes()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[test]
fn inputs_are_checked() {
    let template = ChatTemplate::new("{{ messages|length }}").unwrap();
    for messages in
        ["[]", "{}", "null", "[1]", "[{\"a\": }]", "[{\"a\": 1}", "[{\"a\": \"\\ud800\"}]", "\"\u{1}\"", ""]
    {
        let error = template.render(&Chat::new(Data::Json(messages.as_bytes()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{messages}: {error}");
    }
    let kwargs = Value::Object(vec![("messages".into(), Value::Null)]);
    let chat = Chat { kwargs: Some(Data::Value(&kwargs)), ..Chat::new(Data::Json(MESSAGES)) };
    assert_eq!(template.render(&chat).unwrap_err().kind(), ErrorKind::Input);
}

#[test]
fn json_is_read_as_python_reads_it() {
    let template = ChatTemplate::new("{{ messages[0] }}").unwrap();
    for (json, expected) in [
        (r#"[{"a": 1, "b": 2, "a": 3}]"#, "{'a': 3, 'b': 2}"),
        (r#" [ {"a" : -0, "b": -0.0, "c": 1E2, "d": 1e999} ] "#, "{'a': 0, 'b': -0.0, 'c': 100.0, 'd': inf}"),
        (
            r#"[{"a": "\u00e9\ud83c\udf89\n\/", "b": [true, false, {}]}]"#,
            "{'a': 'é🎉\\n/', 'b': [True, False, {}]}",
        ),
        (r#"[{"a": 123456789012345678901234567890}]"#, "{'a': 123456789012345678901234567890}"),
    ] {
        let rendering = template.render(&Chat::new(Data::Json(json.as_bytes()))).unwrap();
        assert_eq!(rendering.text(), expected);
    }
}

#[test]
fn none_fields_and_reasoning_follow_the_version_of_transformers() {
    let template = ChatTemplate::new("{{ messages[0] }}").unwrap();
    let json = br#"[{"role": "assistant", "content": null, "thinking": "T", "x": {"y": null}}]"#;
    let mut chat = Chat::new(Data::Json(json));
    let dropped = "{'thinking': 'T', 'role': 'assistant', 'x': {'y': None}, 'reasoning_content': 'T'}";
    assert_eq!(template.render(&chat).unwrap().text(), dropped);
    chat.none_fields = NoneFields::Keep;
    let kept = "{'role': 'assistant', 'content': None, 'thinking': 'T', 'x': {'y': None}}";
    assert_eq!(template.render(&chat).unwrap().text(), kept);
}
