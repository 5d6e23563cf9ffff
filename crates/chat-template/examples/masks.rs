//! Prints a conversation rendered with a template, with what is trained on between ⟦ and ⟧.
//!
//!     cargo run --example masks -- TEMPLATE CONVERSATION.json [TOKEN ...]

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, TrainOn, Training, Value};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let template = arguments.next().expect("the template's file");
    let conversation = arguments.next().expect("the conversation's file");
    let tokens: Vec<String> = arguments.collect();
    let source = std::fs::read_to_string(template).expect("the template can be read");
    let conversation = std::fs::read(conversation).expect("the conversation can be read");
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_owned(), Value::Str(token.into())));
    let template = ChatTemplate::new(&source)
        .and_then(|template| {
            template.with_special_tokens(special.to_vec()).with_tokens(
                &tokens,
                &["<think>", "</think>", "<tool_call>", "</tool_call>"].map(str::to_owned),
            )
        })
        .expect("the template is supported");
    let chat = Chat { date: DateTime::parse("2026-11-05"), ..Chat::new(Data::Json(&conversation)) };
    match template.render_trained(&chat, &Training::on(TrainOn::Assistant)) {
        Ok(trained) => {
            let mut text = trained.rendering.text().to_owned();
            for range in trained.ranges.iter().rev() {
                text.insert(range.end, '⟧');
                text.insert(range.start, '⟦');
            }
            println!("{text}");
        }
        Err(error) => println!("ERROR {:?}: {error}", error.kind()),
    }
}
