//! Reasoning that a template does not write, and the stop token of the last turn. Trained text stands between [[ and ]].

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, ErrorKind, OnLostReasoning, Result, TrainOn, Trained, Training, Value,
};

const SPECIAL: [&str; 4] = ["<U>", "<A>", "<T>", "</s>"];

/// Writes the reasoning of the turns behind the last question; of the others with `preserve_thinking`. Content is cut at
/// `</think>` as most templates do it.
const LAST_ONLY: &str = "\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- set reasoning = m.reasoning_content or '' %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip() %}
            {%- set content = content.split('</think>')[-1].lstrip() %}
        {%- endif %}
        {{- '<A>' }}
        {%- if reasoning and (preserve_thinking or loop.index0 > ns.last) %}
            {{- '<think>' + reasoning + '</think>' }}
        {%- endif %}
        {{- content + '</s>' }}
    {%- else %}
        {{- '<U>' + m.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<A>' }}{% endif %}";

/// Writes content only.
const PLAIN: &str = "{% for m in messages %}{{ ('<A>' if m.role == 'assistant' else '<U>') + m.content + '</s>' }}\
                     {% endfor %}{{ '<A>' if add_generation_prompt }}";

/// Ends turns with the first token of the next one.
const NEXT: &str = "{% for m in messages %}{{ {'user': '<U>', 'assistant': '<A>', 'tool': '<T>'}[m.role] + m.content }}\
                    {% for call in m.tool_calls or [] %}{{ '[' + call.name + ']' }}{% endfor %}{% endfor %}\
                    {{ '<A>' if add_generation_prompt }}";

fn rendered(source: &str, messages: &str, training: &Training, kwargs: &str) -> Result<Trained> {
    let variables = [("eos_token".to_owned(), Value::Str("</s>".into()))];
    let template = ChatTemplate::new(source)?
        .with_special_tokens(variables.to_vec())
        .with_tokens(&SPECIAL.map(str::to_owned), &["<think>".to_owned(), "</think>".to_owned()])?;
    let kwargs = Some(Data::Json(kwargs.as_bytes()));
    template.render_trained(&Chat { kwargs, ..Chat::new(Data::Json(messages.as_bytes())) }, training)
}

fn marked(trained: Trained) -> String {
    let mut text = trained.rendering.into_text();
    for range in trained.ranges.iter().rev() {
        text.insert_str(range.end, "]]");
        text.insert_str(range.start, "[[");
    }
    text
}

/// The messages that lose reasoning, each with the field that has it.
fn lost_with(source: &str, messages: &str, training: &Training) -> Vec<(usize, String)> {
    let training = Training { on_lost_reasoning: OnLostReasoning::List, ..training.clone() };
    let trained = rendered(source, messages, &training, "{}").expect("a mask");
    trained.lost_reasoning.into_iter().map(|lost| (lost.message, lost.field)).collect()
}

fn lost(source: &str, answer: &str) -> Vec<String> {
    let messages = format!(r#"[{{"role": "user", "content": "Q"}}, {{"role": "assistant", {answer}}}]"#);
    let found = lost_with(source, &messages, &Training::on(TrainOn::Assistant));
    found.into_iter().map(|(_, field)| field).collect()
}

fn error(source: &str, messages: &str, on: TrainOn, kwargs: &str) -> String {
    let error = rendered(source, messages, &Training::on(on), kwargs).expect_err("lost reasoning");
    assert_eq!(error.kind(), ErrorKind::Mask);
    error.message().to_owned()
}

const TURNS: &str = r#"[{"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "A1", "reasoning_content": "R1"}, {"role": "user", "content": "Q2"},
    {"role": "assistant", "content": "A2", "reasoning_content": "R2"}]"#;

#[test]
fn lost_reasoning_of_an_earlier_turn_is_an_error_that_names_what_helps() {
    assert_eq!(
        error(LAST_ONLY, TURNS, TrainOn::Assistant, "{}"),
        "messages[1]: expected its \"reasoning_content\" in the text, found that the template does not write it: \
         set template_kwargs={\"preserve_thinking\": True}, with which it is written; \
         or train on the last turn alone (train_on=\"last\"); \
         or make a sample of each round (samples=\"rounds\"); \
         or train without it (on_lost_reasoning=\"ignore\")"
    );
    let all = Training::on(TrainOn::Assistant);
    assert_eq!(
        marked(rendered(LAST_ONLY, TURNS, &all, r#"{"preserve_thinking": true}"#).unwrap()),
        "<U>Q1<A>[[<think>R1</think>A1</s>]]<U>Q2<A>[[<think>R2</think>A2</s>]]"
    );
    let ignored = Training { on_lost_reasoning: OnLostReasoning::Ignore, ..all };
    let trained = rendered(LAST_ONLY, TURNS, &ignored, "{}").unwrap();
    assert!(trained.lost_reasoning.is_empty(), "not looked for");
    assert_eq!(marked(trained), "<U>Q1<A>[[A1</s>]]<U>Q2<A>[[<think>R2</think>A2</s>]]");
}

#[test]
fn advice_is_only_what_was_found_to_help() {
    // Two variables at once.
    let two = LAST_ONLY.replace("preserve_thinking or", "not clear_thinking and").replace(
        "{%- if reasoning",
        "{%- set clear_thinking = clear_thinking if clear_thinking is defined else true %}\
         {%- if thinking is true and loop.index0 >= 0 and reasoning",
    );
    let two = two.replace(
        "not clear_thinking and loop.index0 > ns.last",
        "not clear_thinking or loop.index0 > ns.last",
    );
    let message = error(&two, TURNS, TrainOn::Assistant, "{}");
    assert!(message.contains("{\"clear_thinking\": False, \"thinking\": True}, with which"), "{message}");
    assert!(message.contains("nor that of messages[3]"), "{message}");
    assert!(!message.contains("train_on"), "the last turn loses it, too: {message}");
    // A variable, and one sample for each turn.
    let both = LAST_ONLY
        .replace("(preserve_thinking or loop.index0 > ns.last)", "thinking and loop.index0 > ns.last");
    let message = error(&both, TURNS, TrainOn::Assistant, "{}");
    assert!(
        message.contains(
            "it, nor that of messages[3]: set template_kwargs={\"thinking\": True}, and make a sample of each turn"
        ),
        "{message}"
    );
    // Nothing but another template.
    let message = error(PLAIN, TURNS, TrainOn::Last, "{}");
    assert!(message.starts_with("messages[3]: expected its \"reasoning_content\""), "{message}");
    assert!(
        message.contains("it: use a template that writes it (template=); or train without it (on_lost"),
        "{message}"
    );
    // Not a switch that breaks the mask.
    let broken =
        LAST_ONLY.replace("preserve_thinking", "raise_exception('no') if preserve_thinking else false");
    let message = error(&broken, TURNS, TrainOn::Assistant, "{}");
    assert!(!message.contains("template_kwargs") && message.contains("train_on=\"last\""), "{message}");
}

#[test]
fn reasoning_is_known_by_its_fields_and_places() {
    for field in ["reasoning_content", "reasoning", "thinking"] {
        assert_eq!(lost(PLAIN, &format!(r#""content": "A", "{field}": "R""#)), [field]);
        for empty in [r#""""#, r#"" \n""#, "null", "true", "[]", "0"] {
            assert!(lost(PLAIN, &format!(r#""content": "A", "{field}": {empty}"#)).is_empty(), "{empty}");
        }
        let parts = format!(r#""content": "A", "{field}": [{{"type": "text", "text": "R"}}]"#);
        assert_eq!(lost(PLAIN, &parts), [field]);
    }
    let texts = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' else '<U>' }}{% if m.content is string %}\
                 {{ m.content }}{% else %}{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}\
                 {{ '</s>' }}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    for kind in ["thinking", "reasoning"] {
        let parts =
            format!(r#""content": [{{"type": "{kind}", "{kind}": "R"}}, {{"type": "text", "text": "A"}}]"#);
        assert_eq!(lost(texts, &parts), ["content"]);
        let empty =
            format!(r#""content": [{{"type": "{kind}", "{kind}": " "}}, {{"type": "text", "text": "A"}}]"#);
        assert!(lost(texts, &empty).is_empty());
        let all = "{% for m in messages %}<A>{{ m.content | tojson }}</s>{% endfor %}{{ '<A>' if add_generation_prompt }}";
        assert!(lost(all, &parts).is_empty(), "a list that is written as a whole");
    }
    let message =
        "{% for m in messages %}<A>{{ m | tojson }}</s>{% endfor %}{{ '<A>' if add_generation_prompt }}";
    assert!(
        lost(message, r#""content": "A", "reasoning": "R""#).is_empty(),
        "a message that is written as a whole"
    );
}

/// Writes what is behind the last `</think>` of content.
const CUT: &str = "{% for m in messages %}{{ ('<A>' if m.role == 'assistant' else '<U>') + \
                   m.content.split('</think>')[-1].lstrip() + '</s>' }}{% endfor %}{{ '<A>' if add_generation_prompt }}";

#[test]
fn reasoning_inside_of_content_is_found_by_its_bytes() {
    for content in [
        "<think>R</think>A",
        "R</think>A",
        "<think>\\nR\\n</think>\\n\\nA",
        "4</think>4",
        "<think>4</think>4",
    ] {
        let answer = format!(r#""content": "{content}""#);
        assert_eq!(lost(CUT, &answer), ["content"], "{content}");
        assert!(lost(PLAIN, &answer).is_empty(), "{content}");
        assert!(lost(LAST_ONLY, &answer).is_empty(), "{content}");
    }
    for content in ["A", "<think></think>A", "<think> \\n</think>A", "</think>A"] {
        assert!(lost(CUT, &format!(r#""content": "{content}""#)).is_empty(), "{content}");
    }
    // The template keeps the first one of two parts.
    let two = r#""content": "<think>R1</think>A1<think>R2</think>A2""#;
    assert_eq!(lost(LAST_ONLY, two), ["content"]);
    assert!(lost(PLAIN, two).is_empty());
    // A part of it is enough.
    let half = CUT.replace("[-1].lstrip()", "[0][-3:] + m.content.split('</think>')[-1]");
    assert!(lost(&half, r#""content": "<think>abcdef</think>A""#).is_empty());
    // Content that is written twice.
    let twice = CUT.replace("+ '</s>'", "+ m.content.split('</think>')[-1] + '</s>'");
    assert_eq!(lost(&twice, r#""content": "<think>A A</think>A A""#), ["content"]);
    // Inside of a part of type text, and as Gemma 4 has it.
    let parts = "{% for m in messages %}{{ '<A>' if m.role == 'assistant' else '<U>' }}{% if m.content is string %}\
                 {{ m.content }}{% else %}{% for p in m.content %}{{ p.text.split('</think>')[-1] }}{% endfor %}{% endif %}\
                 {{ '</s>' }}{% endfor %}{{ '<A>' if add_generation_prompt }}";
    assert_eq!(lost(parts, r#""content": [{"type": "text", "text": "<think>A</think>A"}]"#), ["content"]);
    let gemma = CUT.replace("</think>", "<channel|>");
    assert_eq!(lost(&gemma, r#""content": "<|channel>thought\nR<channel|>A""#), ["content"]);
}

#[test]
fn same_reasoning_under_two_names_is_written_once() {
    for both in [
        r#""content": "A", "reasoning_content": "R", "reasoning": "R""#,
        r#""content": "A", "reasoning_content": "R", "thinking": " R ""#,
        r#""content": "<think>R</think>A", "reasoning_content": "R""#,
    ] {
        assert!(lost(LAST_ONLY, both).is_empty(), "{both}");
    }
    assert_eq!(
        lost(LAST_ONLY, r#""content": "A", "reasoning_content": "R1", "reasoning": "R2""#),
        ["reasoning"]
    );
    // The words of an answer are not its reasoning.
    assert_eq!(lost(PLAIN, r#""content": "R", "reasoning_content": "R""#), ["reasoning_content"]);
    assert_eq!(lost(CUT, r#""content": "<think>R</think>A", "reasoning": "R""#), ["reasoning", "content"]);
    assert_eq!(lost(PLAIN, r#""content": "<think>R</think>A", "reasoning": "S""#), ["reasoning"]);
}

#[test]
fn only_trained_messages_lose_reasoning() {
    let all = Training::on(TrainOn::Assistant);
    let both = [(1, "reasoning_content".to_owned()), (3, "reasoning_content".to_owned())];
    assert_eq!(lost_with(PLAIN, TURNS, &all), both);
    assert!(lost_with(PLAIN, TURNS, &Training { reasoning: false, ..all.clone() }).is_empty());
    for on in [TrainOn::All, TrainOn::Roles(vec!["user".to_owned(), "assistant".to_owned()])] {
        assert_eq!(lost_with(PLAIN, TURNS, &Training::on(on)), both);
    }
    assert_eq!(lost_with(PLAIN, TURNS, &Training::on(TrainOn::Last)), both[1..]);
    assert!(lost_with(PLAIN, TURNS, &Training::on(TrainOn::Roles(vec!["user".to_owned()]))).is_empty());
    let off = TURNS.replace(r#""content": "A1","#, r#""content": "A1", "train": false,"#);
    for on in [TrainOn::Assistant, TrainOn::All] {
        assert_eq!(lost_with(PLAIN, &off, &Training::on(on)), both[1..]);
    }
    assert_eq!(lost_with(LAST_ONLY, TURNS, &all), both[..1]);
    assert!(lost_with(LAST_ONLY, TURNS, &Training::on(TrainOn::Last)).is_empty());
    // The blocks of a template hold the second answer alone.
    let block = "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}\
                 {{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(lost_with(block, TURNS, &Training::on(TrainOn::Template)), both[1..]);
    // A message that is left out is not trained on.
    let without = "{% for m in messages if m.role == 'user' %}{{ m.content }}</s>{% endfor %}";
    assert!(lost_with(without, TURNS, &all).is_empty());
}

fn stopping(tokens: &[&str], last: Option<&str>) -> Training {
    Training {
        stop_tokens: tokens.iter().map(|token| (*token).to_owned()).collect(),
        final_stop: last.map(str::to_owned),
        ..Training::on(TrainOn::Assistant)
    }
}

const PLAIN_TURNS: &str = r#"[{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"}]"#;

#[test]
fn final_stop_ends_the_last_turn_where_the_template_does_not() {
    let trained = |source: &str, messages: &str, training: &Training| {
        rendered(source, messages, training, "{}").map(marked)
    };
    let error = trained(NEXT, PLAIN_TURNS, &stopping(&[], None)).unwrap_err();
    assert!(error.message().contains("(stop_tokens)") && error.message().contains("(final_stop)"), "{error}");
    let unstopped = rendered(NEXT, PLAIN_TURNS, &stopping(&["<U>"], None), "{}").unwrap();
    assert_eq!(unstopped.unstopped, [3]);
    let stopped = rendered(NEXT, PLAIN_TURNS, &stopping(&["<U>"], Some("<U>")), "{}").unwrap();
    assert!(stopped.unstopped.is_empty());
    assert_eq!(marked(stopped), "<U>Q1<A>[[A1<U>]]Q2<A>[[A2<U>]]");
    // One turn is enough; the token ends earlier turns, too.
    let one = r#"[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]"#;
    assert_eq!(trained(NEXT, one, &stopping(&[], Some("<U>"))).unwrap(), "<U>Q<A>[[A<U>]]");
    assert_eq!(
        trained(NEXT, PLAIN_TURNS, &stopping(&["<T>"], Some("<U>"))).unwrap(),
        "<U>Q1<A>[[A1<U>]]Q2<A>[[A2<U>]]"
    );
    let empty = r#"[{"role": "user", "content": "Q"}, {"role": "assistant", "content": ""}]"#;
    assert_eq!(trained(NEXT, empty, &stopping(&["<U>"], Some("<U>"))).unwrap(), "<U>Q<A>[[<U>]]");
    // White space of the template is in front of it, as it is in front of the next turn.
    let line = NEXT.replace("{% endfor %}{% endfor %}", "{% endfor %}{{ '\\n' }}{% endfor %}");
    assert_eq!(
        trained(&line, PLAIN_TURNS, &stopping(&["<U>"], Some("<U>"))).unwrap(),
        "<U>Q1\n<A>[[A1\n<U>]]Q2\n<A>[[A2\n<U>]]"
    );
}

#[test]
fn final_stop_is_written_where_none_is_and_the_model_spoke_last() {
    let trained = |source: &str, messages: &str, training: &Training| {
        marked(rendered(source, messages, training, "{}").unwrap())
    };
    let own = trained(PLAIN, PLAIN_TURNS, &stopping(&[], None));
    for tokens in [&["</s>"][..], &[]] {
        assert_eq!(
            trained(PLAIN, PLAIN_TURNS, &stopping(tokens, Some("<U>"))),
            own,
            "another stop token is there"
        );
        assert_eq!(trained(PLAIN, PLAIN_TURNS, &stopping(tokens, Some("</s>"))), own);
    }
    let user_last = &PLAIN_TURNS.replace(r#", {"role": "assistant", "content": "A2"}"#, "");
    assert_eq!(trained(NEXT, user_last, &stopping(&["<U>"], Some("<U>"))), "<U>Q1<A>[[A1<U>]]Q2");
    // Another token behind the conversation is none at which the model stops.
    let eos = PLAIN
        .replace("+ '</s>' }}{% endfor %}", "}}{% endfor %}{{ eos_token if not add_generation_prompt }}");
    let error = rendered(&eos, PLAIN_TURNS, &stopping(&["<U>"], Some("<U>")), "{}").unwrap_err();
    assert!(error.message().contains("ends the conversation with \"</s>\": name that one"), "{error}");
    assert_eq!(
        trained(&eos, PLAIN_TURNS, &stopping(&["<U>", "</s>"], Some("<U>"))),
        "<U>Q1<A>[[A1<U>]]Q2<A>[[A2</s>]]"
    );
}

#[test]
fn final_stop_is_trained_if_the_last_message_is() {
    let trained = |messages: &str, on: TrainOn| {
        let training = Training { on, ..stopping(&["<U>"], Some("<U>")) };
        marked(rendered(NEXT, messages, &training, "{}").unwrap())
    };
    assert_eq!(trained(PLAIN_TURNS, TrainOn::Last), "<U>Q1<A>A1<U>Q2<A>[[A2<U>]]");
    assert_eq!(trained(PLAIN_TURNS, TrainOn::All), "[[<U>Q1<A>A1<U>Q2<A>A2<U>]]");
    let roles = TrainOn::Roles(vec!["user".to_owned()]);
    assert!(trained(PLAIN_TURNS, roles).ends_with("A2<U>"));
    let off = PLAIN_TURNS.replace(r#""content": "A2""#, r#""content": "A2", "train": false"#);
    assert_eq!(trained(&off, TrainOn::Assistant), "<U>Q1<A>[[A1<U>]]Q2<A>A2<U>");
    assert_eq!(trained(&off, TrainOn::All), "[[<U>Q1<A>A1<U>Q2]]<A>A2<U>");
    let calls = PLAIN_TURNS.replace(r#""content": "A2""#, r#""content": "", "tool_calls": [{"name": "f"}]"#);
    let training = Training { tool_calls: false, ..stopping(&["<U>"], Some("<U>")) };
    let text = marked(rendered(NEXT, &calls, &training, "{}").unwrap());
    assert!(text.ends_with("[f[[<U>]]") || text.ends_with("f][[<U>]]"), "{text}");
}
