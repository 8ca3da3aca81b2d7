//! `tools` and `tool_choice`: which functions the model is told of, and whether it has to call one.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::Forced;
use crate::body::Body;
use crate::clip::clip;
use crate::constraint::{check_schema, parse_json};
use crate::error::ApiError;
use crate::limits::{MAX_TOOL_NAME_CHARS, MAX_TOOLS};
use crate::sampling::require;

/// What a body says of tools.
#[derive(Default)]
pub(crate) struct Asked {
    /// The tools that the chat template gets, as they were written.
    pub(crate) shown: Option<Value>,
    pub(crate) forced: Option<Forced>,
}

/// A function that the model may call.
pub(super) struct Tool {
    pub(super) name: String,
    /// The schema of its arguments; `None`: it takes none.
    pub(super) parameters: Option<Value>,
    /// Why none of our grammar backends honours the schema.
    pub(super) unhonoured: Option<ApiError>,
    /// The field that holds the schema.
    pub(super) param: String,
    description: Value,
}

#[derive(Deserialize)]
struct RawTools<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
    parallel_tool_calls: Option<bool>,
}

#[derive(Deserialize)]
struct RawTool<'a> {
    r#type: String,
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawFunction {
    name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// How the model chooses among the functions that it may call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Auto,
    Required,
}

/// `tool_choice`.
struct Choice {
    mode: Mode,
    /// The names that it allows; `None`: all.
    allowed: Option<Vec<String>>,
    /// It names one function.
    is_named: bool,
}

// ------------------------------------------------------------------ both together

impl Asked {
    /// Reads and checks the fields of a body.
    pub(crate) fn read(body: &Body) -> Result<Self, ApiError> {
        let raw: RawTools = body.read()?;
        let mut tools = read_tools(body, raw.tools.unwrap_or_default())?;
        let choice = match raw.tool_choice {
            Some(raw) if raw.get() != "null" => read_choice(body, raw)?,
            _ => Choice::of(Mode::Auto),
        };
        if let Some(allowed) = &choice.allowed {
            check_known(body, allowed, &tools)?;
            tools.retain(|tool| allowed.contains(&tool.name));
        }
        if tools.is_empty() && choice.mode == Mode::Required {
            let message = "tool_choice asks for a call, but there are no tools; send `tools`";
            return Err(ApiError::bad_request(body.path_of("tool_choice"), message));
        }
        if tools.is_empty() || choice.mode == Mode::None {
            return Ok(Self::default());
        }
        let is_parallel = raw.parallel_tool_calls.unwrap_or(true);
        let forced = match (choice.mode, choice.is_named, tools.first()) {
            (Mode::Required, true, Some(tool)) => Some(Forced::one(tool)?),
            (Mode::Required, false, _) => Some(Forced::list(&tools, is_parallel)?),
            _ => None,
        };
        let shown = tools.into_iter().map(|tool| tool.description).collect();
        Ok(Self {
            shown: Some(Value::Array(shown)),
            forced,
        })
    }
}

fn check_known(body: &Body, allowed: &[String], tools: &[Tool]) -> Result<(), ApiError> {
    let is_known = |name: &String| tools.iter().any(|tool| tool.name == *name);
    let Some(unknown) = allowed.iter().find(|name| !is_known(name)) else {
        return Ok(());
    };
    let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let message = format!(
        "tool_choice names the function `{}`; tools has: {}",
        clip(unknown),
        clip(&known.join(", "))
    );
    Err(ApiError::bad_request(body.path_of("tool_choice"), message))
}

// ------------------------------------------------------------------ tools

fn read_tools(body: &Body, raw: Vec<&RawValue>) -> Result<Vec<Tool>, ApiError> {
    let field = body.path_of("tools");
    let allowed = format!("at most {MAX_TOOLS} tools");
    require(raw.len() <= MAX_TOOLS, &field, raw.len(), &allowed)?;
    let mut tools: Vec<Tool> = Vec::with_capacity(raw.len());
    for (position, raw) in raw.into_iter().enumerate() {
        let path = format!("{field}[{position}]");
        let tool = read_tool(&path, raw)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let param = format!("{path}.function.name");
            let message = format!(
                "{param} `{}` is the name of an earlier tool; names may not repeat",
                tool.name
            );
            return Err(ApiError::bad_request(param, message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn read_tool(path: &str, raw: &RawValue) -> Result<Tool, ApiError> {
    let body = Body::parse_at(path.to_owned(), raw.get())?;
    let fields: RawTool = body.read()?;
    if fields.r#type != "function" {
        let param = body.path_of("type");
        let given = clip(&fields.r#type);
        let message = format!("{param} `{given}` is not supported by this version; use `function`");
        return Err(ApiError::unsupported(param, message));
    }
    let path = body.path_of("function");
    let function = fields.function.filter(|raw| raw.get() != "null");
    let missing = || ApiError::missing(path.clone(), format!("{path} is required"));
    let function = Body::parse_at(path.clone(), function.ok_or_else(missing)?.get())?;
    let name = function.read::<RawFunction>()?.name;
    check_name(&function.path_of("name"), &name)?;
    let param = function.path_of("parameters");
    let description = parse_json(&path, raw.get())?;
    let parameters = description["function"]
        .get("parameters")
        .filter(|schema| !schema.is_null())
        .cloned();
    let unhonoured = match &parameters {
        Some(schema) => check_parameters(&param, schema)?,
        None => None,
    };
    Ok(Tool {
        name,
        parameters,
        unhonoured,
        param,
        description,
    })
}

fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fits = (1..=MAX_TOOL_NAME_CHARS).contains(&name.len()) && name.chars().all(is_usual);
    let allowed = format!("1 to {MAX_TOOL_NAME_CHARS} letters, digits, `_`, `-` and `.`");
    require(fits, param, format_args!("`{}`", clip(name)), &allowed)
}

/// Arguments are an object. Returns why none of our grammar backends honours the schema, if that is so.
fn check_parameters(param: &str, schema: &Value) -> Result<Option<ApiError>, ApiError> {
    let unhonoured = check_schema(param, schema)?;
    match schema.get("type") {
        Some(given) if given != "object" => {
            let message = format!(
                "{param}: `/type` must be \"object\", got {}",
                clip(&given.to_string())
            );
            Err(ApiError::bad_request(format!("{param}/type"), message))
        }
        _ => Ok(unhonoured),
    }
}

// ------------------------------------------------------------------ tool_choice

#[derive(Deserialize)]
struct RawChoice<'a> {
    r#type: String,
    #[serde(borrow)]
    allowed_tools: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawAllowed<'a> {
    mode: String,
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
}

/// A function's name, beside its type or one level below it.
#[derive(Deserialize)]
struct RawNamed {
    r#type: String,
    name: Option<String>,
    function: Option<RawName>,
}

#[derive(Deserialize)]
struct RawName {
    name: String,
}

impl Choice {
    fn of(mode: Mode) -> Self {
        Self {
            mode,
            allowed: None,
            is_named: false,
        }
    }
}

fn read_choice(body: &Body, raw: &RawValue) -> Result<Choice, ApiError> {
    const WORDS: &str = "`none`, `auto`, `required`, a function or allowed tools";
    let path = body.path_of("tool_choice");
    if let Ok(word) = serde_json::from_str::<String>(raw.get()) {
        let modes = [
            ("none", Mode::None),
            ("auto", Mode::Auto),
            ("required", Mode::Required),
        ];
        let mode = modes.iter().find(|(name, _)| *name == word);
        return match mode {
            Some((_, mode)) => Ok(Choice::of(*mode)),
            None => Err(wrong_word(&path, WORDS, &word)),
        };
    }
    let choice = Body::parse_at(path.clone(), raw.get())?;
    let fields: RawChoice = choice.read()?;
    match fields.r#type.as_str() {
        "function" => Ok(Choice {
            mode: Mode::Required,
            allowed: Some(vec![read_name(&choice)?]),
            is_named: true,
        }),
        "allowed_tools" => match fields.allowed_tools {
            Some(raw) => read_allowed(&Body::parse_at(choice.path_of("allowed_tools"), raw.get())?),
            None => read_allowed(&choice),
        },
        other => Err(wrong_word(
            &choice.path_of("type"),
            "`function` or `allowed_tools`",
            other,
        )),
    }
}

fn read_allowed(body: &Body) -> Result<Choice, ApiError> {
    let fields: RawAllowed = body.read()?;
    let mode = match fields.mode.as_str() {
        "auto" => Mode::Auto,
        "required" => Mode::Required,
        other => return Err(wrong_word(&body.path_of("mode"), "`auto` or `required`", other)),
    };
    let named = fields.tools.iter().enumerate().map(|(position, raw)| {
        let path = body.path_of(&format!("tools[{position}]"));
        read_name(&Body::parse_at(path, raw.get())?)
    });
    Ok(Choice {
        mode,
        allowed: Some(named.collect::<Result<_, _>>()?),
        is_named: false,
    })
}

fn read_name(body: &Body) -> Result<String, ApiError> {
    let fields: RawNamed = body.read()?;
    if fields.r#type != "function" {
        return Err(wrong_word(&body.path_of("type"), "`function`", &fields.r#type));
    }
    let name = fields.function.map(|function| function.name).or(fields.name);
    name.ok_or_else(|| {
        let param = body.path_of("function.name");
        ApiError::missing(param.clone(), format!("{param} is required"))
    })
}

fn wrong_word(param: &str, allowed: &str, given: &str) -> ApiError {
    let message = format!("{param} must be {allowed}, got string \"{}\"", clip(given));
    ApiError::bad_request(param, message)
}
