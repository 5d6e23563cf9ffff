//! Where each byte comes from, through filters, operators, macros and blocks.

use gristmill_chat_template::{Chat, ChatTemplate, Data, Rendering, Source, Value};

const MESSAGES: &[u8] = br#"[
    {"role": "user", "content": "  Hello, World ", "parts": [{"text": "one"}, {"text": "two"}], "n": 7},
    {"role": "assistant", "content": "Answer", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, "y"]}}}]}
]"#;

fn render(source: &str) -> Rendering {
    let kwargs = Value::Object(vec![("option".into(), Value::Str("on".into()))]);
    let tools = br#"[{"name": "search"}]"#;
    let chat = Chat {
        kwargs: Some(Data::Value(&kwargs)),
        tools: Some(Data::Json(tools)),
        ..Chat::new(Data::Json(MESSAGES))
    };
    let tokens = vec![("bos_token".to_owned(), Value::Str("<s>".into()))];
    let template = ChatTemplate::new(source).expect("the template is supported").with_special_tokens(tokens);
    template.render(&chat).expect("the conversation renders")
}

/// The text with each span's path behind it, as `text(path)`; the template's own text as it is.
fn described(source: &str) -> String {
    let rendering = render(source);
    let spans = rendering.spans();
    let describe = spans.iter().map(|span| {
        let text = &rendering.text()[span.start..span.end];
        match span.source {
            Source::Template => text.to_owned(),
            _ => format!("{text}({})", rendering.path(span)),
        }
    });
    describe.collect()
}

#[test]
fn origins_survive_operators_and_filters() {
    let content = "messages[0].content";
    for (source, expected) in [
        ("<{{ messages[0].content }}>", format!("<  Hello, World ({content})>")),
        ("{{ '<' + messages[0].content|trim + '>' }}", format!("<Hello, World({content})>")),
        ("{{ '<' ~ messages[0]['content'].strip().upper() ~ '>' }}", format!("<HELLO, WORLD({content})>")),
        ("{{ messages[0].content.split(',')[1] }}", format!(" World ({content})")),
        ("{{ messages[0].content[2:7] }}{{ messages[0].content[6:1:-1] }}", format!("HelloolleH({content})")),
        ("{{ messages[0].content.replace('World', '!')|trim }}", format!("Hello, ({content})!")),
        ("{{ ('[' ~ messages[1].content ~ ']')[1:4] }}", "Ans(messages[1].content)".to_owned()),
        ("{{ ('[' ~ messages[1].content ~ ']')[::-1] }}", "]rewsnA(messages[1].content)[".to_owned()),
        ("{{ ('[' ~ messages[1].content ~ ']').upper() }}", "[ANSWER(messages[1].content)]".to_owned()),
        ("{{ messages[0].n }} {{ messages[0].n + 1 }}", "7(messages[0].n) 8(messages[0].n)".to_owned()),
        ("{{ messages[1].content|length }}", "6".to_owned()),
        ("{{ '%s!' % messages[1].content }}", "Answer(messages[1].content)!".to_owned()),
        ("{{ '{}!'.format(messages[1].content) }}", "Answer(messages[1].content)!".to_owned()),
        ("{{ messages[1].content|indent(1, true) }}", " Answer(messages[1].content)".to_owned()),
        ("{{ (messages[1].content|safe) + '<' }}", "Answer(messages[1].content)&lt;".to_owned()),
    ] {
        assert_eq!(described(source), expected, "{source}");
    }
}

#[test]
fn origins_survive_lists_and_structures() {
    for (source, expected) in [
        (
            "{{ messages[0].parts|map(attribute='text')|join('+') }}",
            "one(messages[0].parts[0].text)+two(messages[0].parts[1].text)",
        ),
        (
            "{{ messages[1].tool_calls[0].function.arguments|tojson }}",
            "{\"x\": [1, \"y\"]}(messages[1].tool_calls[0].function.arguments)",
        ),
        (
            "{{ {'a': messages[1].content, 'b': option}|tojson }}",
            "{\"a\": \"Answer\"(messages[1].content), \"b\": \"on\"(kwargs.option)}",
        ),
        (
            "{% for key in messages[1].tool_calls[0].function.arguments %}{{ key }}{% endfor %}",
            "x(messages[1].tool_calls[0].function.arguments.x)",
        ),
        ("{{ [messages[1].content] }}", "['Answer'(messages[1].content)]"),
        ("{{ tools[0] }}{{ tools[0].name }}", "{'name': 'search'}(tools[0])search(tools[0].name)"),
        ("{{ bos_token }}{{ option }}", "<s>(bos_token)on(kwargs.option)"),
    ] {
        assert_eq!(described(source), expected, "{source}");
    }
}

#[test]
fn origins_survive_blocks_and_macros() {
    for (source, expected) in [
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(option) }}", "<on(kwargs.option)>"),
        ("{% set t %}<{{ option }}>{% endset %}{{ t.upper() }}", "<ON(kwargs.option)>"),
        ("{% filter upper %}<{{ option }}>{% endfilter %}", "<ON(kwargs.option)>"),
        (
            "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ option }}{% endcall %}",
            "<on(kwargs.option)>",
        ),
        ("{% set ns = namespace(t='<') %}{% set ns.t = ns.t + option %}{{ ns.t }}>", "<on(kwargs.option)>"),
    ] {
        assert_eq!(described(source), expected, "{source}");
    }
}

#[test]
fn sources_name_the_message_and_its_part() {
    let rendering =
        render("{{ messages[1].tool_calls[0].function.name }}{{ messages[0].role }}|{{ tools[0].name }}");
    let sources: Vec<_> = rendering.spans().into_iter().map(|span| span.source).collect();
    assert_eq!(
        sources,
        [
            Source::Message { message: 1, part: "tool_calls" },
            Source::Message { message: 0, part: "role" },
            Source::Template,
            Source::Tool(0),
        ]
    );
}

#[test]
fn owners_are_the_messages_being_rendered() {
    let owners = |source: &str| -> Vec<(String, Option<usize>)> {
        let rendering = render(source);
        let spans = rendering.spans();
        spans.iter().map(|span| (rendering.text()[span.start..span.end].to_owned(), span.owner)).collect()
    };
    let expected =
        [("B", None), ("<", Some(0)), ("user", Some(0)), (">", Some(0))].map(|(t, o)| (t.to_owned(), o));
    let templates = [
        "B{% for m in messages[:1] %}<{{ m.role }}>{% endfor %}",
        "{% macro r(m) %}<{{ m.role }}>{% endmacro %}B{% for m in messages[:1] %}{{ r(m) }}{% endfor %}",
        "{% macro all() %}{% for m in messages[:1] %}<{{ m.role }}>{% endfor %}{% endmacro %}B{{ all() }}",
        "{% set ns = namespace(l=[]) %}{% for m in messages[:1] %}{% set ns.l = ns.l + [{'r': m.role}] %}{% endfor %}\
         B{% for m in ns.l %}<{{ m.r }}>{% endfor %}",
    ];
    for source in templates {
        assert_eq!(owners(source), expected, "{source}");
    }
    // The outermost loop over messages counts, and none over something else.
    for (source, owner) in [
        (
            "{% for m in messages[:1] %}{% for c in messages[1].tool_calls %}x{% endfor %}{% endfor %}",
            Some(0),
        ),
        ("{% for m in messages[:1] %}{% for o in messages[1:] %}x{% endfor %}{% endfor %}", Some(0)),
        ("{% for c in messages[1].tool_calls %}x{% endfor %}", None),
        (
            "{% for c in messages[1].tool_calls %}{% for m in messages[:1] %}x{% endfor %}{% endfor %}",
            Some(0),
        ),
        ("{% for f in [{'name': messages[1].tool_calls[0].function.name}] %}x{% endfor %}", None),
        ("{% for t in messages[1:]|map(attribute='content') %}x{% endfor %}", Some(1)),
    ] {
        assert_eq!(owners(source), [("x".to_owned(), owner)], "{source}");
    }
}

#[test]
fn data_ranges_cover_the_text_of_messages() {
    let template = ChatTemplate::new(
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}",
    )
    .unwrap();
    let messages = br#"[{"role": "user", "content": "a<|end|>b"}, {"role": "end", "content": "<|"}]"#;
    let rendering = template.render(&Chat::new(Data::Json(messages))).unwrap();
    let data: Vec<_> = rendering.data_ranges().into_iter().map(|range| &rendering.text()[range]).collect();
    assert_eq!(data, ["a<|end|>b", "end", "<|"]);
}
