//! `response_format` and its kin.

use super::{chat, completion, generate, refused};
use crate::constraint::Constraint;

fn of_chat(fields: &str) -> Option<Constraint> {
    chat(fields).unwrap().sampling.constraint
}

#[test]
fn each_form_becomes_its_constraint() {
    let text = || "x".to_owned();
    let object = Constraint::JsonSchema(r#"{"type":"object"}"#.to_owned());
    let schema = Constraint::JsonSchema(r#"{"type": "array",  "b":1, "a":2}"#.to_owned());
    let tag = r#"{"type":"structural_tag","structures":[],"triggers":[]}"#;
    for (fields, constraint) in [
        (r#""json_schema":"{}""#, Constraint::JsonSchema("{}".to_owned())),
        (
            r#""json_schema":{"b": 1,"a":2}"#,
            Constraint::JsonSchema(r#"{"b": 1,"a":2}"#.to_owned()),
        ),
        (r#""regex":"x""#, Constraint::Regex(text())),
        (r#""ebnf":"x""#, Constraint::Ebnf(text())),
        (
            &serde_json::to_string(tag)
                .map(|tag| format!(r#""structural_tag":{tag}"#))
                .unwrap(),
            Constraint::StructuralTag(tag.to_owned()),
        ),
        (r#""response_format":{"type":"json_object"}"#, object),
        (
            r#""response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type": "array",  "b":1, "a":2}}}"#,
            schema,
        ),
        (
            &format!(r#""response_format":{tag}"#),
            Constraint::StructuralTag(tag.to_owned()),
        ),
    ] {
        assert_eq!(of_chat(fields).as_ref(), Some(&constraint), "{fields}");
        let completion = completion(&format!(r#""prompt":"a",{fields}"#)).unwrap();
        assert_eq!(completion.sampling.constraint, Some(constraint), "{fields}");
    }
}

#[test]
fn native_parameters_take_the_texts() {
    let request = generate(r#""text":"a","sampling_params":{"regex":"[0-9]+"}"#).unwrap();
    assert_eq!(
        request.items[0].sampling.constraint,
        Some(Constraint::Regex("[0-9]+".to_owned()))
    );
}

#[test]
fn the_native_schema_is_a_text() {
    refused(
        generate(r#""text":"a","sampling_params":{"json_schema":{}}"#),
        "sampling_params.json_schema",
        "must be a string, got an object",
    );
}

#[test]
fn what_openai_says_of_a_schema_is_taken() {
    let named = r#""name":"n","description":"d","strict":true,"schema":{}"#;
    let fields = format!(r#""response_format":{{"type":"json_schema","json_schema":{{{named}}}}}"#);
    assert_eq!(of_chat(&fields), Some(Constraint::JsonSchema("{}".to_owned())));
}

#[test]
fn what_asks_for_nothing_is_no_constraint() {
    for fields in [
        "",
        r#""regex":"","json_schema":null"#,
        r#""response_format":null"#,
        r#""response_format":{"type":"text"},"ebnf":"""#,
    ] {
        assert_eq!(of_chat(fields), None, "{fields}");
    }
}

/// Fields, the one that is wrong, words of the error.
const WRONG: &[(&str, &str, &str)] = &[
    (
        r#""regex":"a","ebnf":"b""#,
        "ebnf",
        "regex and ebnf exclude each other",
    ),
    (
        r#""regex":"a","response_format":{"type":"json_object"}"#,
        "regex",
        "response_format and regex exclude each other",
    ),
    (r#""regex":["a"]"#, "regex", "must be a string, got a list"),
    (
        r#""response_format":"json""#,
        "response_format",
        "must be a JSON object",
    ),
    (r#""response_format":{}"#, "response_format.type", "is required"),
    (
        r#""response_format":{"type":null}"#,
        "response_format.type",
        "must be one of `text`, `json_object`, `json_schema`, `structural_tag`, got null",
    ),
    (
        r#""response_format":{"type":"yaml"}"#,
        "response_format.type",
        "`json_schema`",
    ),
    (
        r#""response_format":{"type":"json_schema"}"#,
        "response_format.json_schema.schema",
        "is required with type json_schema",
    ),
    (
        r#""response_format":{"type":"json_schema","json_schema":{"schema":null}}"#,
        "response_format.json_schema.schema",
        "is required with type json_schema",
    ),
    (
        r#""response_format":{"type":"json_schema","json_schema":{"name":"","schema":{}}}"#,
        "response_format.json_schema.name",
        "must not be empty",
    ),
    (
        r#""response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":"yes"}}"#,
        "response_format.json_schema.strict",
        "must be true or false",
    ),
    (
        r#""response_format":{"type":"json_schema","json_schema":5}"#,
        "response_format.json_schema",
        "must be a JSON object",
    ),
    (
        r#""json_schema":[]"#,
        "json_schema",
        "must be a string, got a list",
    ),
];

#[test]
fn wrong_forms_are_named() {
    for (fields, param, words) in WRONG {
        refused(chat(fields), param, words);
    }
}
