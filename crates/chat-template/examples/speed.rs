//! Measures rendering: microseconds of one conversation, from JSON bytes to text with spans, and to masks.
//!
//!     cargo run --release --example speed -- CONVERSATION.json TEMPLATE...

use std::time::Instant;

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, TrainOn, Training, Value};

/// Tokens that end messages in one template or another.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "</s>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let conversation = arguments.next().expect("the conversation's file");
    let conversation = std::fs::read(conversation).expect("the conversation can be read");
    let chat = Chat {
        date: DateTime::parse("2026-11-05"),
        checks_parts: true,
        ..Chat::new(Data::Json(&conversation))
    };
    for path in arguments {
        let source = std::fs::read_to_string(&path).expect("the template can be read");
        let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let special = special.map(|(name, token)| (name.to_owned(), Value::Str(token.into())));
        let template = ChatTemplate::new(&source)
            .and_then(|template| {
                template.with_special_tokens(special.to_vec()).with_tokens(&ENDS.map(str::to_owned), &[])
            })
            .expect("the template is supported");
        let rendering = best(|| template.render(&chat).is_ok_and(|rendering| !rendering.spans().is_empty()));
        let training = Training::on(TrainOn::Assistant);
        let masked = best(|| template.render_trained(&chat, &training).is_ok());
        println!("{path}\t{rendering:.2}\t{masked:.2}");
    }
}

/// The fastest of several rounds, in microseconds a call.
fn best(call: impl Fn() -> bool) -> f64 {
    let rounds = (0..20).map(|_| {
        let start = Instant::now();
        for _ in 0..500 {
            std::hint::black_box(call());
        }
        start.elapsed().as_secs_f64() * 1e6 / 500.0
    });
    rounds.fold(f64::INFINITY, f64::min)
}
