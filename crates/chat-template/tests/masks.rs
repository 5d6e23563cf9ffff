//! Tests of the bytes that are trained on. Trained text stands between [[ and ]].

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, ErrorKind, Limits, OnLostReasoning, Result, SampleUnit, TrainOn, Training,
    Value,
};

const SPECIAL: [&str; 8] =
    ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<A>", "</s>"];
const OTHERS: [&str; 7] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|START_TEXT|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
];

const TURNS: &str = r#"[{"role": "system", "content": "S"}, {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1"}, {"role": "user", "content": "U2"}, {"role": "assistant", "content": "A2"}]"#;

/// A template as most are: a header with the role, the content, a token, and a line end.
const CHATML: &str = "\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.reasoning_content %}
        {{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + call.function|tojson + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if prefill %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}";

fn trained_with(source: &str, messages: &str, training: &Training, kwargs: &Value<'_>) -> Result<String> {
    let variables = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let variables = variables.map(|(name, token)| (name.to_owned(), Value::Str(token.into())));
    let template = ChatTemplate::new(source)?
        .with_special_tokens(variables.to_vec())
        .with_tokens(&SPECIAL.map(str::to_owned), &OTHERS.map(str::to_owned))?;
    let chat = Chat { kwargs: Some(Data::Value(kwargs)), ..Chat::new(Data::Json(messages.as_bytes())) };
    let trained = template.render_trained(&chat, training)?;
    let mut text = trained.rendering.into_text();
    for range in trained.ranges.iter().rev() {
        text.insert_str(range.end, "]]");
        text.insert_str(range.start, "[[");
    }
    Ok(text)
}

fn trained(source: &str, messages: &str, on: TrainOn) -> Result<String> {
    trained_with(source, messages, &Training::on(on), &Value::Object(Vec::new()))
}

#[test]
fn assistant_turns_are_trained_up_to_their_last_token() {
    assert_eq!(
        trained(CHATML, TURNS, TrainOn::Assistant).unwrap(),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n\
         <|im_start|>assistant\n[[A1<|im_end|>]]\n<|im_start|>user\nU2<|im_end|>\n\
         <|im_start|>assistant\n[[A2<|im_end|>]]\n"
    );
}

#[test]
fn the_last_turn_all_and_roles_can_be_trained_on() {
    assert_eq!(
        trained(CHATML, TURNS, TrainOn::Last).unwrap(),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n\
         <|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nU2<|im_end|>\n\
         <|im_start|>assistant\n[[A2<|im_end|>]]\n"
    );
    let all = trained(CHATML, TURNS, TrainOn::All).unwrap();
    assert!(all.starts_with("[[") && all.ends_with("]]") && all.matches("[[").count() == 1);
    let roles = TrainOn::Roles(vec!["system".to_owned(), "assistant".to_owned()]);
    assert_eq!(
        trained(CHATML, TURNS, roles).unwrap(),
        "<|im_start|>system\n[[S<|im_end|>]]\n<|im_start|>user\nU1<|im_end|>\n\
         <|im_start|>assistant\n[[A1<|im_end|>]]\n<|im_start|>user\nU2<|im_end|>\n\
         <|im_start|>assistant\n[[A2<|im_end|>]]\n"
    );
}

#[test]
fn messages_can_be_taken_out() {
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A1", "train": false},
        {"role": "user", "content": "U"}, {"role": "assistant", "content": "A2", "weight": 0},
        {"role": "user", "content": "U"}, {"role": "assistant", "content": "A3", "weight": 1}]"#;
    let text = trained(CHATML, messages, TrainOn::Assistant).unwrap();
    assert!(text.contains("[[A3<|im_end|>]]") && text.matches("[[").count() == 1, "{text}");
    let text = trained(CHATML, messages, TrainOn::All).unwrap();
    assert!(text.contains("]]<|im_start|>assistant\nA1<|im_end|>\n[["), "{text}");
    assert_eq!(trained(CHATML, messages, TrainOn::Last).unwrap().matches("[[").count(), 1);
}

#[test]
fn flags_that_are_neither_on_nor_off_are_errors() {
    let messages = |flag: &str| format!(r#"[{{"role": "assistant", "content": "A", {flag}}}]"#);
    for on in
        [r#""train": true"#, r#""train": null"#, r#""train": 1"#, r#""weight": 1.0"#, r#""weight": null"#]
    {
        assert!(trained(CHATML, &messages(on), TrainOn::Assistant).unwrap().contains("[[A"), "{on}");
    }
    for off in [r#""train": 0"#, r#""weight": 0.0"#, r#""weight": false"#, r#""train": 1, "weight": 0"#] {
        assert!(!trained(CHATML, &messages(off), TrainOn::Assistant).unwrap().contains("[["), "{off}");
    }
    for neither in
        [r#""train": "no""#, r#""weight": 0.5"#, r#""weight": -1"#, r#""weight": 2"#, r#""train": []"#]
    {
        for on in [TrainOn::Assistant, TrainOn::All, TrainOn::Last] {
            let error = trained(CHATML, &messages(neither), on).unwrap_err();
            assert!(
                error.message().starts_with("messages[0]: expected true, false, 1, 0 or null"),
                "{error}"
            );
        }
    }
}

#[test]
fn reasoning_and_tool_calls_are_trained_unless_left_out() {
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A", "reasoning_content": "R",
        "tool_calls": [{"function": {"name": "f"}}]}]"#;
    let none = Value::Object(Vec::new());
    let with = |reasoning, tool_calls| {
        let training = Training { reasoning, tool_calls, ..Training::on(TrainOn::Assistant) };
        let text = trained_with(CHATML, messages, &training, &none).unwrap();
        text.split_once("assistant\n").unwrap().1.to_owned()
    };
    assert_eq!(
        with(true, true),
        "[[<think>\nR\n</think>\n\nA\n<tool_call>\n{\"name\": \"f\"}\n</tool_call><|im_end|>]]\n"
    );
    assert_eq!(
        with(false, true),
        "<think>\nR\n</think>\n\n[[A\n<tool_call>\n{\"name\": \"f\"}\n</tool_call><|im_end|>]]\n"
    );
    assert_eq!(
        with(true, false),
        "[[<think>\nR\n</think>\n\nA]]\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>[[<|im_end|>]]\n"
    );
}

#[test]
fn a_prompt_that_begins_the_reasoning_is_not_trained() {
    let prefill = Value::Object(vec![("prefill".into(), Value::Bool(true))]);
    let messages = r#"[{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"},
        {"role": "user", "content": "U2"}, {"role": "assistant", "content": "<b>A2", "reasoning_content": "R"}]"#;
    let text = trained_with(CHATML, messages, &Training::on(TrainOn::Assistant), &prefill).unwrap();
    assert_eq!(
        text,
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n[[A1<|im_end|>]]\n\
         <|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n<think>\n[[R\n</think>\n\n<b>A2<|im_end|>]]\n"
    );
}

#[test]
fn templates_without_a_generation_prompt_train_from_the_end_of_the_question() {
    let source = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]\
                  {% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
    assert_eq!(
        trained(source, TURNS, TrainOn::Assistant).unwrap(),
        "<s>[INST] U1[/INST][[ A1</s>]][INST] U2[/INST][[ A2</s>]]"
    );
}

#[test]
fn constant_headers_and_tails_behind_the_loop_are_not_trained() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ '<U>\\n' + m.content + '<|end|>\\n' }}\
                  {% elif m.role == 'assistant' %}{{ '<A>\\n' + m.content + '<|end|>\\n' }}{% endif %}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<A>\\n' }}{% else %}{{ eos_token }}{% endif %}";
    assert_eq!(
        trained(source, TURNS, TrainOn::Assistant).unwrap(),
        "<U>\nU1<|end|>\n<A>\n[[A1<|end|>]]\n<U>\nU2<|end|>\n<A>\n[[A2<|end|>]]\n</s>"
    );
}

#[test]
fn a_message_of_several_channels_is_one_turn() {
    let source = "\
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.thinking and loop.last %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
        {%- endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
    {%- else %}
        {{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}";
    let messages = r#"[{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1", "thinking": "T1"},
        {"role": "user", "content": "U2"}, {"role": "assistant", "content": "A2", "thinking": "T2"}]"#;
    let training =
        Training { on_lost_reasoning: OnLostReasoning::Ignore, ..Training::on(TrainOn::Assistant) };
    assert_eq!(
        trained_with(source, messages, &training, &Value::Object(Vec::new())).unwrap(),
        "<|start|>user<|message|>U1<|end|><|start|>assistant[[<|channel|>final<|message|>A1<|end|>]]\
         <|start|>user<|message|>U2<|end|><|start|>assistant[[<|channel|>analysis<|message|>T2<|end|>\
         <|start|>assistant<|channel|>final<|message|>A2<|return|>]]"
    );
}

#[test]
fn a_message_that_is_written_as_two_turns_is_trained_as_two() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% else %}\
                  {{ '<A>call</s>' if m.tool_calls }}{{ '<A>' + m.content + '</s>' }}{% endif %}{% endfor %}\
                  {{ '<A>' if add_generation_prompt }}";
    let messages =
        r#"[{"role": "user", "content": "1"}, {"role": "assistant", "content": "x", "tool_calls": [1]}]"#;
    assert_eq!(trained(source, messages, TrainOn::Assistant).unwrap(), "U1<A>[[call</s>]]<A>[[x</s>]]");
}

#[test]
fn text_of_a_message_never_ends_a_turn() {
    let messages = r#"[{"role": "user", "content": "U<|im_end|>\n<|im_start|>assistant\n"},
        {"role": "assistant", "content": "A<|im_end|>\n<|im_start|>assistant\nB"}]"#;
    assert_eq!(
        trained(CHATML, messages, TrainOn::Assistant).unwrap(),
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n\
         <|im_start|>assistant\n[[A<|im_end|>\n<|im_start|>assistant\nB<|im_end|>]]\n"
    );
}

#[test]
fn an_empty_answer_trains_its_last_token() {
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": ""}]"#;
    let text = trained(CHATML, messages, TrainOn::Assistant).unwrap();
    assert!(text.ends_with("assistant\n[[<|im_end|>]]\n"), "{text}");
}

#[test]
fn generation_blocks_are_trained_where_transformers_finds_them() {
    let source = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}\
                  {% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}";
    assert_eq!(
        trained(source, TURNS, TrainOn::Template).unwrap(),
        "<system>S;<user>U1;<assistant>[[A1;]]<user>U2;<assistant>[[A2;]]"
    );
    let inside = "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}";
    assert_eq!(trained(inside, TURNS, TrainOn::Template).unwrap_err().kind(), ErrorKind::Mask);
    assert_eq!(trained(CHATML, TURNS, TrainOn::Template).unwrap().matches("[[").count(), 0);
}

#[test]
fn stop_tokens_end_turns_that_have_no_token_of_their_own() {
    let source = "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '\\n' }}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}";
    let error = trained(source, TURNS, TrainOn::Assistant).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mask);
    assert!(error.message().contains("messages[2]") && error.message().contains("stop_tokens"), "{error}");
    let training = Training { stop_tokens: vec!["<|start|>".to_owned()], ..Training::on(TrainOn::Assistant) };
    assert_eq!(
        trained_with(source, TURNS, &training, &Value::Object(Vec::new())).unwrap(),
        "<|start|>system\nS\n<|start|>user\nU1\n<|start|>assistant\n[[A1\n<|start|>]]user\nU2\n\
         <|start|>assistant\n[[A2]]\n"
    );
}

#[test]
fn masks_that_cannot_be_derived_are_errors() {
    let header_unlike_the_prompt = "{% for m in messages %}{{ m.role + ': ' + m.content + '</s>' }}{% endfor %}\
                                    {% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}";
    let text_behind_the_end = "{% for m in messages %}{{ m.content + '</s>\\nUser' }}{% endfor %}";
    let twice = "{% for m in messages %}{{ m.content }}</s>{% endfor %}{% for m in messages %}{{ m.content }}</s>{% endfor %}";
    for source in [header_unlike_the_prompt, text_behind_the_end, twice] {
        let error = trained(source, TURNS, TrainOn::Assistant).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mask, "{source}: {error}");
    }
    let template = ChatTemplate::new(CHATML).unwrap();
    let error =
        template.render_trained(&Chat::new(Data::Json(TURNS.as_bytes())), &Training::on(TrainOn::Assistant));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Mask, "the special tokens are not known");
}

#[test]
fn messages_that_the_template_leaves_out_train_nothing() {
    let source = "{% for m in messages if m.role == 'user' %}{{ m.content }}</s>{% endfor %}";
    assert_eq!(trained(source, TURNS, TrainOn::Assistant).unwrap(), "U1</s>U2</s>");
}

/// A template whose past messages, with `before` in front of their content, begin unlike its generation prompt.
fn unlike_the_prompt(before: &str, prompt: &str) -> Result<String> {
    let source = format!(
        "{{% for m in messages %}}{{% if m.role == 'assistant' %}}{{{{ '<A>' }}}}{{{{ '{before}' }}}}{{{{ m.content + '</s>' }}}}\
         {{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}\
         {{% if add_generation_prompt %}}{{{{ '<A>' }}}}{{{{ '{prompt}' }}}}{{% endif %}}{{% set x = namespace() %}}"
    );
    trained(
        &source,
        r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]"#,
        TrainOn::Assistant,
    )
}

#[test]
fn what_the_model_would_not_generate_behind_the_prompt_is_not_trained() {
    assert_eq!(unlike_the_prompt("</think>", "<think>").unwrap(), "U<A></think>[[A</s>]]");
    assert_eq!(unlike_the_prompt("</plain>", "<plain>").unwrap(), "U<A></plain>[[A</s>]]", "no tokens");
    assert_eq!(unlike_the_prompt("<think>", "<think>").unwrap(), "U<A><think>[[A</s>]]", "all of the prompt");
    let ended = unlike_the_prompt("<|END_THINKING|>", "<|START_THINKING|>");
    assert_eq!(ended.unwrap(), "U<A><|END_THINKING|>[[A</s>]]");
}

#[test]
fn what_opens_an_answer_and_no_prompt_writes_is_trained() {
    for (before, prompt, expected) in [
        ("<|START_TEXT|>", "<|START_THINKING|>", "U<A>[[<|START_TEXT|>A</s>]]"),
        ("<|START_TEXT|>", "<|START_THINKING|><|END_THINKING|>", "U<A>[[<|START_TEXT|>A</s>]]"),
        ("</think><answer>", "<think>", "U<A></think>[[<answer>A</s>]]"),
    ] {
        assert_eq!(unlike_the_prompt(before, prompt).unwrap(), expected, "{before}, {prompt}");
    }
}

/// A template whose prompt begins a reasoning, which history has only where there is one.
const THINKING: &str = "\
{%- for m in messages %}
    {%- if m.role == 'assistant' %}<A>
        {%- if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}</think>
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}<tool_call>{{ call.name }}</tool_call>{% endfor %}</s>
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<A><think>{% endif %}";

#[test]
fn calls_that_the_prompt_does_not_lead_to_begin_with_what_opens_them() {
    let messages =
        |answer: &str| format!(r#"[{{"role": "user", "content": "U"}}, {{"role": "assistant", {answer}}}]"#);
    for (answer, expected) in [
        (r#""content": "", "tool_calls": [{"name": "f"}]"#, "U<A></think>[[<tool_call>f</tool_call></s>]]"),
        (r#""content": "A", "tool_calls": [{"name": "f"}]"#, "U<A></think>[[A<tool_call>f</tool_call></s>]]"),
        (r#""content": "A", "reasoning_content": "R""#, "U<A><think>[[R</think>A</s>]]"),
        (r#""content": """#, "U<A></think>[[</s>]]"),
    ] {
        assert_eq!(trained(THINKING, &messages(answer), TrainOn::Assistant).unwrap(), expected, "{answer}");
    }
}

#[test]
fn what_ends_the_prompt_and_precedes_the_words_is_not_trained() {
    assert_eq!(unlike_the_prompt("</think>", "<think></think>").unwrap(), "U<A></think>[[A</s>]]");
    assert_eq!(unlike_the_prompt("</think>\\n", "<think></think>").unwrap(), "U<A></think>[[\nA</s>]]");
}

#[test]
fn prompt_of_other_white_space_is_an_error() {
    let error = unlike_the_prompt("\\n\\n<think>", "\\n <think>").unwrap_err();
    assert!(error.message().contains("cannot be told"), "{error}");
}

#[test]
fn message_whose_words_are_left_out_is_an_error() {
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<A>' }}\
                  {% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{{ '</s>' }}\
                  {% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    let refused = |source: &str, messages: &str, found: &str| {
        let error = trained(source, messages, TrainOn::Assistant).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mask);
        assert!(error.message().contains(&format!("found that the template writes {found}")), "{error}");
    };
    refused(source, TURNS, "nothing that it says");
    let parts = r#"[{"role": "user", "content": "U"},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]"#;
    assert_eq!(trained(source, parts, TrainOn::Assistant).unwrap(), "U<A>[[A</s>]]");
    let call = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "tool_calls": [{"name": "f"}]}]"#;
    let chatml = "{% for m in messages %}{{ '<A>' + (m.content or '') + '</s>' }}{% endfor %}\
                  {{ '<A>' if add_generation_prompt }}";
    refused(chatml, call, "nothing that it says");
    let both = call.replace("\"tool_calls\"", "\"content\": \"A\", \"tool_calls\"");
    refused(chatml, &both, "none of its tool calls");
    let older = both.replace("\"tool_calls\": [{\"name\": \"f\"}]", "\"function_call\": {\"name\": \"f\"}");
    refused(chatml, &older, "none of its tool calls");
    let refusal =
        call.replace("\"tool_calls\": [{\"name\": \"f\"}]", "\"content\": null, \"refusal\": \"No\"");
    refused(chatml, &refusal, "nothing that it says");
    let strings = chatml.replace("m.content or ''", "m.content if m.content is string else ''");
    refused(
        &strings,
        &both.replace("\"A\"", "5").replace("\"tool_calls\"", "\"calls\""),
        "nothing that it says",
    );
    let untrained = both.replace("\"tool_calls\"", "\"train\": false, \"tool_calls\"");
    assert_eq!(trained(chatml, &untrained, TrainOn::Assistant).unwrap(), "<A>U</s><A>A</s>");
}

#[test]
fn flags_of_other_programs_are_followed_or_refused() {
    let with = |flags: &str, role: &str| {
        let messages = format!(
            r#"[{{"role": "user", "content": "U"}}, {{"role": "assistant", "content": "A"}},
                {{"role": "user", "content": "V"}}, {{"role": "{role}", "content": "B", {flags}}}]"#
        );
        trained(CHATML, &messages, TrainOn::Assistant)
    };
    for flags in [r#""loss": true"#, r#""loss_mask": 1"#, r#""masked": false"#, r#""trainable": null"#] {
        assert!(with(flags, "assistant").unwrap().ends_with("[[B<|im_end|>]]\n"), "{flags}");
    }
    for flags in [r#""loss": false"#, r#""loss_mask": 0"#, r#""masked": true"#, r#""trainable": 0.0"#] {
        assert!(with(flags, "user").unwrap().ends_with("B<|im_end|>\n"), "{flags}");
        assert!(with(&format!("{flags}, \"train\": false"), "assistant").unwrap().ends_with("B<|im_end|>\n"));
        let error = with(flags, "assistant").unwrap_err();
        assert!(
            error
                .message()
                .starts_with("messages[3]: expected whether it is trained on under its key \"train\"")
        );
    }
    for flags in [r#""loss": true"#, r#""masked": 0"#, r#""loss_mask": [0, 1]"#, r#""trainable": "no""#] {
        assert!(with(flags, "user").is_err(), "{flags}");
    }
    let last = TURNS.replace("\"A1\"", "\"A1\", \"loss\": true");
    assert!(trained(CHATML, &last, TrainOn::Last).unwrap().contains("A1<|im_end|>"));
    assert!(trained(CHATML, &last.replace("true", "false"), TrainOn::All).is_err());
}

#[test]
fn result_of_a_tool_inside_of_the_message_is_not_trained() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ '<start>' + m.content + '<end>' }}\
                  {% elif m.role == 'assistant' %}{% if not (loop.previtem and loop.previtem.role == 'tool') %}<A>{% endif %}\
                  {{ m.content }}{% for call in m.tool_calls or [] %}{{ '<call>' + call.name + '</call><result>' }}\
                  {{ call.name + '=' + messages[loop.index0 + 2].content + '</result>' }}{% else %}</s>{% endfor %}\
                  {% endif %}{% endfor %}\
                  {% if add_generation_prompt and messages[-1].role != 'tool' %}<A>{% endif %}";
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]},
        {"role": "tool", "content": "R"}, {"role": "assistant", "content": "A2"}]"#;
    let stops = |tokens: &[&str]| Training {
        stop_tokens: tokens.iter().map(|token| (*token).to_owned()).collect(),
        ..Training::on(TrainOn::Assistant)
    };
    let none = Value::Object(Vec::new());
    assert_eq!(
        trained_with(source, messages, &stops(&["</s>", "<result>"]), &none).unwrap(),
        "<start>U<end><A>[[<call>f</call><result>]]f=R</result>[[A2</s>]]"
    );
    for training in [stops(&["</s>"]), stops(&[])] {
        let error = trained_with(source, messages, &training, &none).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mask, "{error}");
    }
}

/// Templates of a reasoning, a content and calls in some order, and a message with all of them.
fn in_order(order: &str) -> String {
    let part = |part: char| match part {
        'R' => "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}",
        'C' => "{{ m.content }}",
        _ => "{% for call in m.tool_calls or [] %}<call>{{ call.name }}</call>{% endfor %}",
    };
    let parts: String = order.chars().map(part).collect();
    format!(
        "{{% for m in messages %}}{{% if m.role == 'assistant' %}}<A>{parts}</s>{{% else %}}{{{{ m.content }}}}\
         {{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}<A>{{% endif %}}"
    )
}

fn left_out(source: &str, answer: &str, reasoning: bool, tool_calls: bool) -> Result<String> {
    let messages = format!(r#"[{{"role": "user", "content": "U"}}, {{"role": "assistant", {answer}}}]"#);
    let training = Training { reasoning, tool_calls, ..Training::on(TrainOn::Assistant) };
    let text = trained_with(source, &messages, &training, &Value::Object(Vec::new()))?;
    Ok(text.split_once('U').map_or(text.clone(), |(_, answer)| answer.to_owned()))
}

#[test]
fn part_that_is_left_out_takes_nothing_of_the_next_one() {
    let all = r#""content": "C", "reasoning_content": "R", "tool_calls": [{"name": "f"}, {"name": "g"}]"#;
    let silent = r#""content": "", "reasoning_content": "R", "tool_calls": [{"name": "f"}]"#;
    for (order, answer, reasoning, tool_calls, expected) in [
        ("RCK", all, false, true, "<A><think>R</think>[[C<call>f</call><call>g</call></s>]]"),
        ("RCK", all, true, false, "<A>[[<think>R</think>C]]<call>f</call><call>g</call>[[</s>]]"),
        ("RCK", all, false, false, "<A><think>R</think>[[C]]<call>f</call><call>g</call>[[</s>]]"),
        ("RCK", silent, false, true, "<A><think>R</think>[[<call>f</call></s>]]"),
        ("RCK", silent, true, false, "<A>[[<think>R</think>]]<call>f</call>[[</s>]]"),
        ("RCK", silent, false, false, "<A><think>R</think><call>f</call>[[</s>]]"),
        ("CRK", all, false, true, "<A>[[C]]<think>R</think>[[<call>f</call><call>g</call></s>]]"),
        ("KRC", all, false, true, "<A>[[<call>f</call><call>g</call>]]<think>R</think>[[C</s>]]"),
        ("KRC", all, true, false, "<A><call>f</call><call>g</call>[[<think>R</think>C</s>]]"),
        ("KRC", silent, true, false, "<A><call>f</call>[[<think>R</think></s>]]"),
        ("CKR", all, false, true, "<A>[[C<call>f</call><call>g</call>]]<think>R</think>[[</s>]]"),
    ] {
        let found = left_out(&in_order(order), answer, reasoning, tool_calls).unwrap();
        assert_eq!(found, expected, "{order} {answer} {reasoning} {tool_calls}");
    }
}

#[test]
fn blocks_that_are_written_around_nothing_too_keep_to_their_parts() {
    let reasoned = r#""content": "C", "reasoning_content": "R""#;
    let called = r#""content": "", "reasoning_content": "R", "tool_calls": [{"name": "f"}]"#;
    let strings = "{% for m in messages %}{% if m.role == 'assistant' %}<A><think>{{ m.reasoning_content or '' }}</think>\
                   <say>{{ m.content }}</say>{% for call in m.tool_calls or [] %}<call>{{ call.name }}</call>{% endfor %}</s>\
                   {% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}";
    let macros = "{% macro open(name) %}{{ '<|start|>' }}{{ name }}{{ '<|end|>' }}{% endmacro %}\
                  {% macro close(name) %}{{ '<|call|>' + name + '<|end|>' }}{% endmacro %}\
                  {% for m in messages %}{% if m.role == 'assistant' %}<A>{{ open('t') }}{{ m.reasoning_content or '' }}\
                  {{ close('t') }}{{ open('s') }}{{ m.content }}{{ close('s') }}</s>\
                  {% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}";
    for (source, answer, expected) in [
        (strings, reasoned, "<A><think>R</think>[[<say>C</say></s>]]"),
        (strings, called, "<A><think>R</think>[[<say></say><call>f</call></s>]]"),
        (macros, reasoned, "<A><|start|>t<|end|>R<|call|>t<|end|>[[<|start|>s<|end|>C<|call|>s<|end|></s>]]"),
    ] {
        assert_eq!(left_out(source, answer, false, true).unwrap(), expected);
    }
    // One string, of which nothing shows where the reasoning's end ends.
    let one = "{% for m in messages %}{% if m.role == 'assistant' %}<A>{{ m.reasoning_content or '' }}<|call|>t<|end|>s\
               {{ m.content }}</s>{% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    let error = left_out(one, reasoned, false, true).unwrap_err();
    assert!(error.message().contains("of which only one is trained on"), "{error}");
}

#[test]
fn generation_prompt_inside_of_the_loop_is_seen() {
    let source = |prompt: &str| {
        format!(
            "{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}}}\
             {{% if loop.last and add_generation_prompt %}}{{{{ '{prompt}' }}}}{{% endif %}}{{% endfor %}}"
        )
    };
    let expected = trained(CHATML, TURNS, TrainOn::Assistant).unwrap();
    for prompt in ["<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n"] {
        assert_eq!(trained(&source(prompt), TURNS, TrainOn::Assistant).unwrap(), expected, "{prompt}");
    }
    for prompt in ["<|im_start|>model\\n", ""] {
        let error = trained(&source(prompt), TURNS, TrainOn::Assistant).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mask, "{error}");
    }
}

#[test]
fn generation_prompt_behind_the_last_answer_is_not_trained() {
    let source = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' }}{{ m.content + '</s>' }}\
                  {% if loop.last and add_generation_prompt %}<A>{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let template = template.with_tokens(&SPECIAL.map(str::to_owned), &[]).unwrap();
    let messages = br#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]"#;
    let chat = Chat { add_generation_prompt: true, ..Chat::new(Data::Json(messages)) };
    let trained = template.render_trained(&chat, &Training::on(TrainOn::Assistant)).unwrap();
    let text = trained.rendering.text();
    let found: Vec<_> = trained.ranges.iter().map(|range| &text[range.clone()]).collect();
    assert_eq!((text, found), ("U</s><A>A</s><A>", vec!["A</s>"]));
}

#[test]
fn header_that_is_written_again_behind_a_result_is_not_trained() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}<r>{{ m.content }}</r>\
                  {% elif m.role == 'assistant' %}<A>{{ m.content }}</s>{% else %}{{ m.content }}{% endif %}{% endfor %}\
                  {% if add_generation_prompt and messages[-1].role != 'tool' %}<A>{% endif %}";
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A1"},
        {"role": "tool", "content": "R"}, {"role": "assistant", "content": "A2"}]"#;
    assert_eq!(trained(source, messages, TrainOn::Assistant).unwrap(), "U<A>[[A1</s>]]<r>R</r><A>[[A2</s>]]");
}

#[test]
fn loops_over_other_messages_do_not_move_text() {
    let template = |result: &str| {
        format!(
            "{{% macro results(ms, calls) %}}{{% for c in calls %}}{{% for o in ms if o.id == c.id %}}<r>{{{{ o.content }}}}</r>\
             {{% endfor %}}{{% endfor %}}{{% endmacro %}}\
             {{% for m in messages %}}{{% if m.role == 'assistant' %}}<A>{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}\
             <tool_call>{{{{ c.name }}}}</tool_call>{{% endfor %}}</s>{{% elif m.role == 'tool' %}}{result}\
             {{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}<A>{{% endif %}}"
        )
    };
    let messages = r#"[{"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f"}]},
        {"role": "tool", "id": "1", "content": "R"}, {"role": "assistant", "content": "A"}]"#;
    let expected = "U<A>[[<tool_call>f</tool_call></s>]]<r>R</r><A>[[A</s>]]";
    let before = "messages[loop.index0 - 1].tool_calls";
    for result in [
        format!(
            "{{% for c in {before} %}}{{% if c.id == m.id %}}<r>{{{{ m.content }}}}</r>{{% endif %}}{{% endfor %}}"
        ),
        format!(
            "{{% set cs = {before} %}}{{% for k in range(cs|length) %}}<r>{{{{ m.content }}}}</r>{{% endfor %}}"
        ),
        format!(
            "{{% for c in {before} %}}{{% for o in messages[2:3] %}}<r>{{{{ o.content }}}}</r>{{% endfor %}}{{% endfor %}}"
        ),
        format!("{{{{ results(messages, {before}) }}}}"),
    ] {
        assert_eq!(trained(&template(&result), messages, TrainOn::Assistant).unwrap(), expected, "{result}");
    }
    // No loop is at a message: one over a message's parts is none.
    let by_number = "{% for i in range(messages|length) %}{% set m = messages[i] %}{{ '<A>' if m.role == 'assistant' }}\
                     {% for part in m.content %}{{ part.text }}{% endfor %}</s>{% endfor %}{{ '<A>' if add_generation_prompt }}";
    let parts = r#"[{"role": "user", "content": [{"text": "U"}]}, {"role": "assistant", "content": [{"text": "A"}]},
        {"role": "user", "content": [{"text": "V"}]}, {"role": "assistant", "content": [{"text": "B"}]}]"#;
    assert_eq!(trained(by_number, parts, TrainOn::Assistant).unwrap(), "U</s><A>[[A</s>]]V</s><A>[[B</s>]]");
}

#[test]
fn message_that_is_left_out_takes_no_words_of_another_one() {
    let source = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content + '</s>' }}{% else %}\
                  {% if messages[loop.index0 - 1].role != 'tool' %}{% for o in messages if o.role == 'tool' %}\
                  <r>{{ o.content }}</r>{% endfor %}{% endif %}{% endif %}{% endfor %}";
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "tool", "content": "R1", "train": false},
        {"role": "tool", "content": "R2"}, {"role": "assistant", "content": "A"}]"#;
    assert_eq!(trained(source, messages, TrainOn::All).unwrap(), "[[U</s>]]<r>R1</r><r>[[R2]]</r>[[A</s>]]");
}

fn spans(source: &str, messages: &str, training: &Training) -> (String, Vec<(usize, usize, String)>, bool) {
    let template = ChatTemplate::new(source).expect("the template is supported");
    let template =
        template.with_tokens(&SPECIAL.map(str::to_owned), &OTHERS.map(str::to_owned)).expect("few tokens");
    let chat = Chat::new(Data::Json(messages.as_bytes()));
    let trained = template.render_trained(&chat, training).expect("the mask can be derived");
    let text = trained.rendering.text().to_owned();
    let spans = trained.spans().into_iter();
    let spans = spans.map(|span| (span.lead, span.bytes.start, text[span.words].to_owned())).collect();
    (text, spans, trained.trains_only_stops())
}

#[test]
fn spans_know_white_space_of_the_template_and_words() {
    let source = "{% for m in messages %}{{ ('Q: ' if m.role == 'user' else 'A: \n ') + m.content + '</s>' }}{% endfor %}\
                  {{ 'A: \n ' if add_generation_prompt }}";
    let messages = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": " A"},
        {"role": "user", "content": "V "}, {"role": "assistant", "content": ""}]"#;
    let assistant = Training::on(TrainOn::Assistant);
    let (text, found, only_stops) = spans(source, messages, &assistant);
    assert_eq!(text, "Q: U</s>A: \n  A</s>Q: V </s>A: \n </s>");
    assert_eq!(found, [(10, 13, " A".to_owned()), (30, 33, String::new())]);
    assert!(!only_stops);
    let (_, found, only_stops) = spans(source, messages, &Training::on(TrainOn::Last));
    assert_eq!((found.len(), only_stops), (1, true));
    // White space that a message says is no white space of the template.
    let roles = Training::on(TrainOn::Roles(vec!["assistant".to_owned()]));
    let bare = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let said = r#"[{"role": "user", "content": "U "}, {"role": "assistant", "content": "A"}]"#;
    let training = Training { stop_tokens: vec!["</s>".to_owned()], ..roles };
    assert_eq!(spans(bare, said, &training).1, [(2, 2, "A".to_owned())]);
    // Behind a reasoning that is left out.
    let reasoned = "{% for m in messages %}<A>{{ m.reasoning_content }}</think> {{ m.content }}</s>{% endfor %}\
                    {{ '<A>' if add_generation_prompt }}";
    let said = r#"[{"role": "assistant", "reasoning_content": "R", "content": "A"}]"#;
    let training = Training { reasoning: false, ..assistant };
    assert_eq!(spans(reasoned, said, &training).1, [(12, 13, "A".to_owned())]);
}

#[test]
fn errors_name_settings_with_which_the_mask_can_be_derived() {
    let remedies = |source: &str, messages: &str, training: &Training| {
        let error = trained_with(source, messages, training, &Value::Object(Vec::new())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mask, "{error}");
        error.message().to_owned()
    };
    let assistant = Training::on(TrainOn::Assistant);
    let reasoned = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "content": "A", "reasoning_content": "R"}]"#;

    // A prompt that ends the reasoning that the message has.
    let thinking = "{% for m in messages %}{{ '<A>\\n<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' if m.reasoning_content }}\
                    {{ m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}\
                    {{ '<A>\\n<think>\\n' if enable_thinking else '<A>\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}";
    let message = remedies(thinking, reasoned, &assistant);
    assert!(message.contains("cannot be told"), "{message}");
    assert!(
        message.ends_with("can be derived with template_kwargs={\"enable_thinking\": True}"),
        "{message}"
    );
    let on = Value::Object(vec![("enable_thinking".into(), Value::Bool(true))]);
    assert!(trained_with(thinking, reasoned, &assistant, &on).unwrap().contains("[[R\n</think>"));

    // A message without a token of its own.
    let shared = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' else '<|start|>' }}{{ m.content }}{% endfor %}\
                  {{ '<A>' if add_generation_prompt }}";
    let message = remedies(shared, TURNS, &assistant);
    assert!(message.contains("with stop_tokens=[\"<|start|>\"], if the model stops there"), "{message}");
    let training = Training { stop_tokens: vec!["<|start|>".to_owned()], ..assistant.clone() };
    assert!(
        trained_with(shared, TURNS, &training, &Value::Object(Vec::new()))
            .unwrap()
            .contains("[[A1<|start|>]]")
    );

    // A token that ends the message, and stands in it too.
    let middle = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' }}{{ 'x<|end|>' if not loop.last }}\
                  {{ m.content + '<|end|>' }}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    let message = remedies(middle, TURNS, &assistant);
    assert!(message.contains("is in the middle of it as well"), "{message}");
    assert!(message.ends_with("can be derived with train_on=\"last\""), "{message}");
    assert!(trained(middle, TURNS, TrainOn::Last).unwrap().contains("[[A2<|end|>]]"));

    // Blocks that say it themselves.
    let blocks = "{% for m in messages %}{{ m.role + ': ' }}{% generation %}{{ m.content }}{% endgeneration %}</s>{% endfor %}\
                  {{ 'assistant:\\n' if add_generation_prompt }}";
    let message = remedies(blocks, TURNS, &assistant);
    assert!(message.ends_with("can be derived with train_on=\"template\""), "{message}");
    assert!(trained(blocks, TURNS, TrainOn::Template).unwrap().contains("[[A1]]"));

    // Nothing helps but to leave it out.
    let twice = "{% for m in messages %}{{ m.content }}</s>{% endfor %}{% for m in messages %}{{ m.content }}</s>{% endfor %}";
    let message = remedies(twice, TURNS, &assistant);
    assert!(
        message.contains("in several places") && message.contains("its own \"train\": false"),
        "{message}"
    );
    let untrained = TURNS.replace(r#""assistant","#, r#""assistant", "train": false,"#);
    assert!(trained(twice, &untrained, TrainOn::Assistant).is_ok());
}

#[test]
fn tokens_that_the_template_writes_are_known() {
    let written = |source: &str| {
        let others = ["<|user|>", "<think>", "<b>", "  ", "</s>"].map(str::to_owned);
        let variables = vec![("eos_token".to_owned(), Value::Str("</s>".into()))];
        let template = ChatTemplate::new(source).unwrap().with_special_tokens(variables);
        template.with_tokens(&[], &others).unwrap().written_tokens().to_vec()
    };
    let messages = "{% for m in messages %}";
    assert_eq!(
        written(&format!("{messages}{{{{ '<|' + m.role + '|>  <think>' + m.content }}}}{{% endfor %}}")),
        ["<|user|>", "<think>"]
    );
    assert_eq!(
        written(&format!("{messages}<|{{{{ m.role }}}}|>{{{{ m.content + eos_token }}}}{{% endfor %}}")),
        ["<|user|>", "</s>"]
    );
    assert_eq!(
        written(&format!("{messages}{{{{ m.role + m.content }}}}{{% endfor %}}")),
        Vec::<String>::new()
    );
}

#[test]
fn samples_of_a_conversation_are_bounded_together() {
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}</s>{% endfor %}").unwrap();
    let template = template.with_tokens(&["</s>".to_owned()], &[]).unwrap();
    let messages = r#"[{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "efgh"},
        {"role": "user", "content": "ijkl"}, {"role": "assistant", "content": "mnop"}]"#;
    let samples = |output| {
        let template = template.clone().with_limits(Limits { output, ..Limits::default() });
        let training = Training::on(TrainOn::Assistant);
        let found =
            template.render_samples(&Chat::new(Data::Json(messages.as_bytes())), &training, SampleUnit::Turn);
        found.map(|samples| samples.iter().map(|sample| sample.rendering.text().len()).collect::<Vec<_>>())
    };
    assert_eq!(samples(48).unwrap(), [16, 32]);
    let error = samples(47).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.message().contains("at most 47 bytes of text together"), "{error}");
}
