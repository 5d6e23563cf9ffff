//! A compiled template, and conversations rendered with it.

use std::cell::Cell;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use bumpalo::Bump;
use gristmill_json::Value;

use crate::ast::NameId;
use crate::contents;
use crate::error::{Error, ErrorKind, Result};
use crate::eval::{Eval, Setting};
use crate::heap::{Heap, Limits};
use crate::input::{Data, NoneFields, Reader, StringArguments, check_printed, input_error};
use crate::mask::search;
use crate::origin::{Origins, Root};
use crate::program::Program;
use crate::refused;
use crate::rendering::{ROLES, Rendering};
use crate::strftime::DateTime;
use crate::text::{Origin, Run, Str};
use crate::value::{Dict, Function, Val};

/// A chat template, compiled once and shared by threads.
///
/// ```
/// use gristmill_chat_template::{Chat, ChatTemplate, Data};
/// let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
/// let template = ChatTemplate::new(source).unwrap();
/// let messages = br#"[{"role": "user", "content": "Hello"}]"#;
/// let rendering = template.render(&Chat::new(Data::Json(messages))).unwrap();
/// assert_eq!(rendering.text(), "<|user|>Hello");
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    pub(crate) program: Program,
    /// The functions that every template has and this one names.
    functions: Vec<(NameId, Function)>,
    /// The arguments that this template names, in the order of [`RESERVED`].
    arguments: [Option<NameId>; 4],
    /// Variables that every conversation has, as far as this template names them.
    variables: Vec<(NameId, String, Value<'static>)>,
    limits: Limits,
    tokens: Option<Tokens>,
    source: Box<str>,
}

#[derive(Debug, Clone)]
struct Tokens {
    special: AhoCorasick,
    all: AhoCorasick,
    /// The tokens that the template writes.
    written: Vec<String>,
}

fn tokens_unknown() -> Error {
    let message =
        "the tokenizer's special tokens are not known: they are needed to find where a message ends";
    Error::new(ErrorKind::Mask, message)
}

/// A conversation, with all that a template may look at.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'v> {
    /// A list of messages, each a dict.
    pub messages: Data<'v>,
    /// How many of them count, from the first one on; `usize::MAX`: all.
    pub messages_end: usize,
    /// A list of tools, each a JSON schema.
    pub tools: Option<Data<'v>>,
    /// A list of documents.
    pub documents: Option<Data<'v>>,
    /// A dict of further variables. They go before special tokens of the same name.
    pub kwargs: Option<Data<'v>>,
    /// Whether the text ends in what makes the model answer.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` prints.
    pub date: Option<DateTime>,
    /// The treatment of message fields that are None.
    pub none_fields: NoneFields,
    /// The treatment of arguments of calls that are strings.
    pub string_arguments: StringArguments,
    /// Whether it is an error if the template leaves out words of messages that it would write in another form, or calls.
    pub checks_parts: bool,
    /// Whether parts of images, videos and audio are errors, as nothing comes with the text.
    pub refuses_media: bool,
}

impl<'v> Chat<'v> {
    /// Only messages.
    pub fn new(messages: Data<'v>) -> Self {
        Self {
            messages,
            messages_end: usize::MAX,
            tools: None,
            documents: None,
            kwargs: None,
            add_generation_prompt: false,
            date: None,
            none_fields: NoneFields::Drop,
            string_arguments: StringArguments::Keep,
            checks_parts: false,
            refuses_media: false,
        }
    }
}

/// Names that a template is given by their own arguments.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// The key of what a message says.
const CONTENT: &str = "content";

const FUNCTIONS: [(&str, Function); 5] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
];

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// The template is not valid, or it uses what this engine does not render exactly: then the error's kind is
    /// [`ErrorKind::Unsupported`](crate::ErrorKind), and jinja2 should render it.
    pub fn new(source: &str) -> Result<Self> {
        let program = Program::compile(source)?;
        let functions =
            FUNCTIONS.iter().filter_map(|(name, function)| Some((program.names.find(name)?, *function)));
        Ok(Self {
            functions: functions.collect(),
            arguments: RESERVED.map(|name| program.names.find(name)),
            program,
            variables: Vec::new(),
            limits: Limits::default(),
            tokens: None,
            source: source.into(),
        })
    }

    /// Gives the template variables such as `bos_token`: the tokenizer's map of special tokens.
    #[must_use]
    pub fn with_special_tokens(mut self, tokens: Vec<(String, Value<'static>)>) -> Self {
        let used = tokens
            .into_iter()
            .filter_map(|(name, value)| Some((self.program.names.find(&name)?, name, value)));
        self.variables = used.collect();
        self
    }

    /// Names the tokenizer's added tokens, which masks look for: those that are special, such as the one that ends a
    /// message, and the others. Variables are given before.
    ///
    /// # Errors
    ///
    /// There are more than can be searched for.
    pub fn with_tokens(mut self, special: &[String], others: &[String]) -> Result<Self> {
        let all: Vec<_> = special.iter().chain(others).cloned().collect();
        let written = all.iter().filter(|token| self.writes(token)).cloned().collect();
        self.tokens = Some(Tokens { special: search(special)?, all: search(&all)?, written });
        Ok(self)
    }

    /// The added tokens that the template writes, as far as it shows: those that its text has, those that it makes of a role,
    /// and those that are its variables. White space is no such token.
    pub fn written_tokens(&self) -> &[String] {
        self.tokens.as_ref().map_or(&[], |tokens| &tokens.written)
    }

    fn writes(&self, token: &str) -> bool {
        let is_variable = self.variables.iter().any(|(.., value)| match value {
            Value::Str(text) => text == token,
            Value::List(items) => items.iter().any(|item| matches!(item, Value::Str(text) if text == token)),
            _ => false,
        });
        let has =
            |before: &str, text: &str, after: &str| self.source.contains(&format!("{before}{text}{after}"));
        let is_of_role = || {
            ROLES.iter().filter_map(|role| token.split_once(role)).any(|(before, after)| {
                ["'", "\"", "{{"].iter().any(|end| has("", before, end))
                    && ["'", "\"", "}}"].iter().any(|start| has(start, after, ""))
            })
        };
        !token.trim().is_empty() && (is_variable || has("", token, "") || is_of_role())
    }

    /// Whether the tokenizer's added tokens are known.
    pub(crate) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// A search for the tokenizer's special tokens.
    pub(crate) fn special_tokens(&self) -> Result<&AhoCorasick> {
        self.tokens.as_ref().map(|tokens| &tokens.special).ok_or_else(tokens_unknown)
    }

    /// A search for all of the tokenizer's added tokens.
    pub(crate) fn tokens(&self) -> Result<&AhoCorasick> {
        self.tokens.as_ref().map(|tokens| &tokens.all).ok_or_else(tokens_unknown)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the bounds of a rendering.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the template may print today's date.
    pub fn uses_date(&self) -> bool {
        self.program.names.find("strftime_now").is_some()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    ///
    /// Where jinja2 raises; where an input is not what it should be; where a bound is exceeded.
    pub fn render(&self, chat: &Chat<'_>) -> Result<Rendering> {
        with_memory(|bump| {
            let mut session = Session::open(self, bump, chat)?;
            session.render_all()
        })
    }
}

thread_local! {
    /// Memory that one rendering leaves for the next one.
    static MEMORY: Cell<Option<Bump>> = const { Cell::new(None) };
}

/// How much memory is kept for the next rendering.
const KEPT_MEMORY: usize = 1 << 20;

/// Runs a rendering with the thread's memory.
pub(crate) fn with_memory<T>(render: impl FnOnce(&Bump) -> T) -> T {
    let mut bump = MEMORY.take().unwrap_or_else(|| Bump::with_capacity(1 << 14));
    let result = render(&bump);
    if bump.allocated_bytes() <= KEPT_MEMORY {
        bump.reset();
        MEMORY.set(Some(bump));
    }
    result
}

/// The text of one rendering, before it is returned.
pub(crate) struct Rendered {
    pub text: String,
    pub runs: Vec<Run>,
    pub generations: Vec<(u32, u32)>,
    pub misplaced_generation: bool,
}

/// A conversation that was read, to be rendered as a whole or in part.
pub(crate) struct Session<'a> {
    template: &'a ChatTemplate,
    pub heap: &'a Heap<'a>,
    pub origins: Arc<Origins>,
    pub messages: &'a [Val<'a>],
    /// Whether the text ends in what makes the model answer.
    pub add_generation_prompt: bool,
    messages_origin: Origin,
    globals: Vec<Val<'a>>,
    date: Option<DateTime>,
    checks_parts: bool,
    refuses_media: bool,
    prompt: Option<String>,
    /// The keys of values that must not be printed.
    typed: Vec<String>,
}

impl<'a> Session<'a> {
    pub(crate) fn open(template: &'a ChatTemplate, bump: &'a Bump, chat: &Chat<'a>) -> Result<Self> {
        let heap: &'a Heap<'a> = bump.alloc(Heap::new(bump, &template.limits));
        let mut origins = Origins::default();
        let mut reader = Reader::new(heap, &mut origins, chat.none_fields, chat.string_arguments);
        let mut globals = vec![Val::Missing; template.program.names.len()];
        for (name, function) in &template.functions {
            globals[*name as usize] = Val::Function(*function);
        }
        for (id, name, value) in &template.variables {
            globals[*id as usize] = reader.read(Data::Value(value), name, Root::SpecialToken)?;
        }
        if let Some(kwargs) = chat.kwargs {
            for (name, value) in reader.read_named(kwargs, "kwargs", Root::Kwarg)? {
                let name = name.as_str().map_or("", |name| name.text);
                if RESERVED.contains(&name) {
                    return Err(input_error(format!("kwargs: {name} has an argument of its own")));
                }
                if let Some(id) = template.program.names.find(name) {
                    globals[id as usize] = *value;
                }
            }
        }
        let [_, tools, documents, _] = template.arguments;
        for (id, data, name, root) in [
            (tools, chat.tools, "tools", Root::Tool),
            (documents, chat.documents, "documents", Root::Document),
        ] {
            let value = match data {
                Some(data) => dicts(reader.read(data, name, root)?, name)?,
                None => Val::None(Origin::TEMPLATE),
            };
            if let Some(id) = id {
                globals[id as usize] = value;
            }
        }
        let beside_messages = reader.typed.len();
        let Val::List(messages) = dicts(reader.read(chat.messages, "messages", Root::Message)?, "messages")?
        else {
            return Err(input_error("messages must be a list of dicts"));
        };
        if messages.items.is_empty() {
            return Err(input_error("messages: the conversation is empty"));
        }
        let mut typed = reader.typed;
        typed.rotate_left(beside_messages);
        let origins = Arc::new(origins);
        Ok(Self {
            template,
            heap,
            origins,
            messages: &messages.items[..messages.items.len().min(chat.messages_end)],
            add_generation_prompt: chat.add_generation_prompt,
            messages_origin: messages.origin,
            globals,
            date: chat.date,
            checks_parts: chat.checks_parts,
            refuses_media: chat.refuses_media,
            prompt: None,
            typed,
        })
    }

    /// Renders its messages.
    pub(crate) fn render_all(&mut self) -> Result<Rendering> {
        if self.refuses_media {
            contents::check_media(self.messages)?;
        }
        let rendered = match self.render(self.messages, self.add_generation_prompt) {
            Err(error) if self.checks_parts => return Err(refused::explained(self, error)),
            rendered => rendered?,
        };
        let mut rendering = self.finish(rendered)?;
        if self.checks_parts {
            rendering.unwritten = contents::check(self, &rendering)?;
        }
        Ok(rendering)
    }

    /// Renders some of the messages.
    pub(crate) fn render(
        &mut self,
        messages: &'a [Val<'a>],
        add_generation_prompt: bool,
    ) -> Result<Rendered> {
        let mut eval = self.eval(messages, add_generation_prompt)?;
        eval.run()?;
        Ok(Rendered {
            text: eval.out.text,
            runs: eval.out.runs,
            generations: eval.generations,
            misplaced_generation: eval.misplaced_generation,
        })
    }

    /// The messages, one of them without some fields. Its content is an empty string if it has none then, as templates
    /// expect one.
    pub(crate) fn without(&self, message: usize, fields: &[&str]) -> Result<&'a [Val<'a>]> {
        let Val::Dict(dict) = self.messages[message] else { return Ok(self.messages) };
        let is_kept = |(key, value): &(Val<'a>, Val<'a>)| {
            let is_none = key.is_text(CONTENT) && matches!(value, Val::None(_));
            !is_none && !fields.iter().any(|field| key.is_text(field))
        };
        let mut entries: Vec<_> = dict.entries.iter().copied().filter(is_kept).collect();
        if !entries.iter().any(|(key, _)| key.is_text(CONTENT)) {
            entries.push((self.heap.constant(CONTENT)?, self.heap.str(Str::EMPTY)?));
        }
        let dict = Dict::new(self.heap.slice(&entries)?, dict.origin);
        self.with_message(message, Val::Dict(self.heap.alloc(dict)?))
    }

    /// The messages, with another one in place of one.
    pub(crate) fn with_message(&self, index: usize, message: Val<'a>) -> Result<&'a [Val<'a>]> {
        let mut messages = self.messages.to_vec();
        messages[index] = message;
        self.heap.slice(&messages)
    }

    fn eval(&mut self, messages: &'a [Val<'a>], add_generation_prompt: bool) -> Result<Eval<'a>> {
        let [list, _, _, prompt] = self.template.arguments;
        if let Some(id) = list {
            self.globals[id as usize] = self.heap.list(messages, self.messages_origin)?;
        }
        if let Some(id) = prompt {
            self.globals[id as usize] = Val::Bool(add_generation_prompt, Origin::TEMPLATE);
        }
        let globals = self.heap.slice(&self.globals)?;
        let setting = Setting { globals, origins: Arc::clone(&self.origins), now: self.date };
        Ok(Eval::new(&self.template.program, self.heap, setting, &self.template.limits))
    }

    /// The generation prompt, if it is the same behind any messages: see [`Program::tail`].
    pub(crate) fn fixed_prompt(&mut self) -> Result<Option<String>> {
        let Some(tail) = self.template.program.tail else { return Ok(None) };
        if self.prompt.is_none() {
            let mut eval = self.eval(&[], true)?;
            // A template that raises here raises behind any messages.
            self.prompt = Some(eval.run_from(tail).map(|()| eval.out.text).unwrap_or_default());
        }
        Ok(self.prompt.clone())
    }

    /// Whether the template takes the messages with an empty list of tools, where none was given.
    pub(crate) fn takes_without_tools(&mut self) -> bool {
        let [_, Some(tools), ..] = self.template.arguments else { return false };
        if !matches!(self.globals[tools as usize], Val::None(_)) {
            return false;
        }
        let Ok(none) = self.heap.list(&[], Origin::TEMPLATE) else { return false };
        self.globals[tools as usize] = none;
        let taken = self.render(self.messages, self.add_generation_prompt).is_ok();
        self.globals[tools as usize] = Val::None(Origin::TEMPLATE);
        taken
    }

    /// Gives the template another value of a variable.
    pub(crate) fn set(&mut self, name: NameId, value: Val<'a>) {
        self.globals[name as usize] = value;
    }

    pub(crate) fn finish(&self, rendered: Rendered) -> Result<Rendering> {
        check_printed(&self.typed, &rendered.text)?;
        Ok(Rendering::new(rendered, Arc::clone(&self.origins)))
    }
}

/// Checks that an input is a list of dicts, or None.
fn dicts<'a>(value: Val<'a>, what: &str) -> Result<Val<'a>> {
    match value {
        Val::None(_) => Ok(value),
        Val::List(list) => match list.items.iter().position(|item| !matches!(item, Val::Dict(_))) {
            None => Ok(value),
            Some(at) => Err(input_error(format!(
                "{what}[{at}] must be a dict, and is a {}",
                list.items[at].type_name()
            ))),
        },
        _ => Err(input_error(format!("{what} must be a list of dicts, and is a {}", value.type_name()))),
    }
}
