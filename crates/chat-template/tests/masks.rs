//! What is trained on. Trained text stands between [[ and ]].

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, ErrorKind, OnLostReasoning, Result, TrainOn, Training, Value,
};

const SPECIAL: [&str; 8] =
    ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<A>", "</s>"];
const OTHERS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

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
fn what_only_the_message_has_in_front_of_its_words_is_trained() {
    assert_eq!(unlike_the_prompt("</think>", "<think>").unwrap(), "U<A>[[</think>A</s>]]");
    assert_eq!(unlike_the_prompt("</plain>", "<plain>").unwrap(), "U<A>[[</plain>A</s>]]", "no tokens");
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
fn message_whose_words_are_left_out_trains_nothing() {
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<A>' }}\
                  {% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{{ '</s>' }}\
                  {% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    assert_eq!(trained(source, TURNS, TrainOn::Assistant).unwrap(), "SU1<A></s>U2<A></s>");
    let parts = r#"[{"role": "user", "content": "U"},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]"#;
    assert_eq!(trained(source, parts, TrainOn::Assistant).unwrap(), "U<A>[[A</s>]]");
    let call = r#"[{"role": "user", "content": "U"}, {"role": "assistant", "tool_calls": [{"name": "f"}]}]"#;
    let chatml = "{% for m in messages %}{{ '<A>' + (m.content or '') + '</s>' }}{% endfor %}\
                  {{ '<A>' if add_generation_prompt }}";
    assert_eq!(trained(chatml, call, TrainOn::Assistant).unwrap(), "<A>U</s><A></s>");
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
