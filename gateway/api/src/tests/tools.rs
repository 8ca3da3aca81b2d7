//! `tools` and `tool_choice`.

use serde_json::{Value, json};

use super::{chat, refused, tokenize};
use crate::tokenize::TokenizeInput;
use crate::{CallForm, ChatRequest, Constraint};

fn tools(list: &Value, more: &Value) -> String {
    let mut fields = more.as_object().unwrap().clone();
    fields.insert("tools".to_owned(), list.clone());
    let text = Value::Object(fields).to_string();
    text[1..text.len() - 1].to_owned()
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
}

fn two() -> Value {
    json!([
        tool("a", &json!({"type": "object"})),
        tool("b.2", &json!({"type": "object", "properties": {"x": {}}}))
    ])
}

fn asked(list: &Value, more: &Value) -> ChatRequest {
    chat(&tools(list, more)).unwrap()
}

fn schema(request: &ChatRequest) -> Value {
    match &request.sampling.constraint {
        Some(Constraint::JsonSchema(text)) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn named(name: &str) -> Value {
    json!({"tool_choice": {"type": "function", "function": {"name": name}}})
}

#[test]
fn tools_are_shown_as_they_were_written() {
    let list = two();
    for more in [
        json!({}),
        json!({"tool_choice": "auto"}),
        json!({"tool_choice": null}),
    ] {
        let request = asked(&list, &more);
        assert_eq!(request.template.tools.as_ref(), Some(&list));
        assert_eq!((request.calls, request.sampling.constraint), (None, None));
    }
    for (list, more) in [
        (list, json!({"tool_choice": "none"})),
        (json!([]), json!({})),
        (json!([]), json!({"tool_choice": "none"})),
    ] {
        assert_eq!(asked(&list, &more), chat("").unwrap());
    }
}

#[test]
fn tokenizing_a_chat_sees_the_tools() {
    let fields = format!(
        r#""messages":[{{"role":"user","content":"Hi"}}],{}"#,
        tools(&two(), &json!({}))
    );
    let TokenizeInput::Chat { template, .. } = tokenize(&fields).unwrap().input else {
        panic!("it is a chat");
    };
    assert_eq!(template.tools, Some(two()));
}

#[test]
fn a_named_function_is_held_to_its_parameters() {
    let request = asked(&two(), &named("b.2"));
    assert_eq!(request.calls, Some(CallForm::One("b.2".to_owned())));
    assert_eq!(
        schema(&request),
        json!({"type": "object", "properties": {"x": {}}})
    );
    assert_eq!(request.template.tools, Some(json!([two()[1]])));
    for (parameters, expected) in [
        (
            Value::Null,
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ),
        (json!(true), json!({"type": "object"})),
        (
            json!({"required": ["a"]}),
            json!({"type": "object", "required": ["a"]}),
        ),
        (
            json!({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}),
            json!({"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {}}}),
        ),
    ] {
        assert_eq!(
            schema(&asked(&json!([tool("a", &parameters)]), &named("a"))),
            expected
        );
    }
}

#[test]
fn required_calls_are_a_list_of_any_of_them() {
    let call = |name: &str, parameters: &Value| {
        json!({"type": "object", "properties": {"name": {"const": name}, "parameters": parameters},
               "required": ["name", "parameters"], "additionalProperties": false})
    };
    let list = two();
    let (a, b) = (
        call("a", &list[0]["function"]["parameters"]),
        call("b.2", &list[1]["function"]["parameters"]),
    );
    let request = asked(&list, &json!({"tool_choice": "required"}));
    assert_eq!(
        request.calls,
        Some(CallForm::List(vec!["a".to_owned(), "b.2".to_owned()]))
    );
    assert_eq!(
        schema(&request),
        json!({"type": "array", "minItems": 1, "items": {"anyOf": [a, b]}})
    );
    let one = asked(
        &list,
        &json!({"tool_choice": "required", "parallel_tool_calls": false}),
    );
    assert_eq!(schema(&one)["maxItems"], 1);
    for entry in [
        json!({"type": "function", "name": "a"}),
        json!({"type": "function", "function": {"name": "a"}}),
    ] {
        let inner = json!({"mode": "required", "tools": [entry]});
        let flat = json!({"type": "allowed_tools", "mode": "required", "tools": [entry]});
        for choice in [flat, json!({"type": "allowed_tools", "allowed_tools": inner})] {
            let allowed = asked(&list, &json!({"tool_choice": choice}));
            assert_eq!(
                schema(&allowed),
                json!({"type": "array", "minItems": 1, "items": a})
            );
            assert_eq!(allowed.template.tools, Some(json!([list[0]])));
        }
    }
    let auto = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]});
    let auto = asked(&list, &json!({"tool_choice": auto}));
    assert_eq!((auto.calls, auto.template.tools), (None, Some(json!([list[0]]))));
}

#[test]
fn arguments_are_objects_whatever_the_schema_leaves_open() {
    let held = |parameters: &Value| {
        let list = json!([tool("a", parameters)]);
        schema(&asked(&list, &named("a")))
    };
    let leaf = json!({"yes": {"type": "object"}, "no": {"type": "string"}, "again": {"$ref": "#/$defs/yes"}});
    for closed in [
        json!({"$ref": "#/$defs/again", "$defs": leaf}),
        json!({"anyOf": [{"$ref": "#/$defs/yes"}, {"allOf": [{}, {"type": "object"}]}], "$defs": leaf}),
        json!({"oneOf": [{"const": {"a": 1}}, {"enum": [{}, {"b": 2}]}]}),
    ] {
        assert_eq!(held(&closed), closed);
    }
    let circle =
        json!({"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]}});
    for open in [
        json!({"$ref": "#/$defs/no", "$defs": leaf}),
        json!({"anyOf": [{"type": "object"}, {"$ref": "#/$defs/no"}], "$defs": leaf}),
        json!({"oneOf": [{"const": {}}, {"enum": [{}, 1]}]}),
        json!({"allOf": [{}, true]}),
        json!({"anyOf": [{"$ref": "#/$defs/x"}], "$defs": circle}),
    ] {
        let mut typed = open.clone();
        typed["type"] = "object".into();
        assert_eq!(held(&open), typed);
    }
}

#[test]
fn references_move_with_their_schemas() {
    let parameters = |id: &str, kind: &str| {
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": id, "type": "object",
               "properties": {"x": {"$ref": "#/$defs/x"}, "self": {"$ref": "#"}, "own": {"$ref": format!("{id}#/$defs/x")},
                              "$ref": {"enum": [{"$ref": "#/$defs/x"}]}},
               "$defs": {"x": {"type": kind}}})
    };
    let moved = |name: &str, kind: &str| {
        json!({"type": "object",
               "properties": {"x": {"$ref": format!("#/$defs/{name}/$defs/x")},
                              "self": {"$ref": format!("#/$defs/{name}")},
                              "own": {"$ref": format!("#/$defs/{name}/$defs/x")},
                              "$ref": {"enum": [{"$ref": "#/$defs/x"}]}},
               "$defs": {"x": {"type": kind}}})
    };
    let list = json!([
        tool("a", &parameters("http://x.test/a", "string")),
        tool("b", &parameters("http://x.test/b", "integer")),
        tool("c", &json!({"type": "object"})),
    ]);
    let request = asked(&list, &json!({"tool_choice": "required"}));
    let schema = schema(&request);
    assert_eq!(
        schema["$defs"],
        json!({"a": moved("a", "string"), "b": moved("b", "integer")})
    );
    let calls = &schema["items"]["anyOf"];
    assert_eq!(calls[1]["properties"]["parameters"], json!({"$ref": "#/$defs/b"}));
    assert_eq!(calls[2]["properties"]["parameters"], json!({"type": "object"}));
    assert_eq!(request.template.tools, Some(list));
}

#[test]
fn keywords_that_are_not_honoured_count_where_calls_are_forced() {
    let list = json!([tool("a", &json!({"type": "object", "not": {}}))]);
    assert_eq!(asked(&list, &json!({})).sampling.unhonoured, None);
    for more in [json!({"tool_choice": "required"}), named("a")] {
        let error = asked(&list, &more).sampling.unhonoured.unwrap();
        assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters/not"));
    }
}

#[test]
fn a_constraint_beside_tools_is_taken_unless_calls_are_forced() {
    let format = json!({"response_format": {"type": "json_object"}});
    let with = |choice: Value| {
        let mut fields = format.as_object().unwrap().clone();
        fields.insert("tool_choice".to_owned(), choice);
        tools(&two(), &Value::Object(fields))
    };
    for choice in [Value::Null, json!("auto"), json!("none")] {
        assert!(chat(&with(choice)).unwrap().sampling.constraint.is_some());
    }
    for choice in [json!("required"), named("a")["tool_choice"].clone()] {
        refused(chat(&with(choice)), "tool_choice", "excludes response_format");
    }
}

fn function(function: &Value) -> Value {
    json!([{"type": "function", "function": function}])
}

#[test]
fn wrong_tools_are_named() {
    for (list, param, words) in [
        (json!("x"), "tools", "must be a list"),
        (json!([null]), "tools[0]", "must be a JSON object"),
        (
            json!([{"function": {"name": "a"}}]),
            "tools[0].type",
            "is required",
        ),
        (json!([{"type": "custom"}]), "tools[0].type", "use `function`"),
        (json!([{"type": "function"}]), "tools[0].function", "is required"),
        (
            json!([tool("a", &Value::Null), tool("a", &Value::Null)]),
            "tools[1].function.name",
            "may not repeat",
        ),
        (
            json!(vec![tool("a", &Value::Null); 513]),
            "tools",
            "at most 512 tools",
        ),
    ] {
        refused(chat(&tools(&list, &json!({}))), param, words);
    }
    let large = json!([tool(
        "a",
        &json!({"type": "object", "title": "x".repeat(1 << 20)})
    )]);
    refused(
        chat(&tools(&large, &json!({"tool_choice": "required"}))),
        "tools",
        "allowed are 1048576",
    );
}

#[test]
fn wrong_functions_are_named() {
    for (given, field, words) in [
        (json!({}), "name", "is required"),
        (json!({"name": ""}), "name", "1 to 64 letters"),
        (json!({"name": "a b"}), "name", "got `a b`"),
        (json!({"name": "a".repeat(65)}), "name", "1 to 64"),
        (json!({"name": "a", "strict": 1}), "strict", "true or false"),
        (json!({"name": "a", "description": []}), "description", "a string"),
        (
            json!({"name": "a", "parameters": "x"}),
            "parameters",
            "must be a schema",
        ),
        (
            json!({"name": "a", "parameters": {"properties": {"b": {"type": "strng"}}}}),
            "parameters/properties/b/type",
            "one or several of",
        ),
        (
            json!({"name": "a", "parameters": {"type": "array"}}),
            "parameters/type",
            "must be \"object\", got \"array\"",
        ),
    ] {
        let result = chat(&tools(&function(&given), &json!({})));
        refused(result, &format!("tools[0].function.{field}"), words);
    }
}

#[test]
fn wrong_choices_are_named() {
    for (choice, param, words) in [
        (
            json!("any"),
            "tool_choice",
            "`required`, a function or allowed tools, got string \"any\"",
        ),
        (json!(5), "tool_choice", "must be a JSON object"),
        (json!({}), "tool_choice.type", "is required"),
        (
            json!({"type": "custom"}),
            "tool_choice.type",
            "`function` or `allowed_tools`",
        ),
        (
            json!({"type": "function"}),
            "tool_choice.function.name",
            "is required",
        ),
        (
            named("c")["tool_choice"].clone(),
            "tool_choice",
            "names the function `c`; tools has: a, b.2",
        ),
        (
            json!({"type": "allowed_tools"}),
            "tool_choice.mode",
            "is required",
        ),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}),
            "tool_choice.allowed_tools.mode",
            "`auto` or `required`",
        ),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}),
            "tool_choice.tools[0].type",
            "must be `function`",
        ),
        (
            json!({"type": "allowed_tools", "mode": "required", "tools": []}),
            "tool_choice",
            "there are no tools",
        ),
    ] {
        refused(
            chat(&tools(&two(), &json!({"tool_choice": choice}))),
            param,
            words,
        );
    }
    for choice in [json!("required"), named("a")["tool_choice"].clone()] {
        let message = chat(&format!(r#""tool_choice":{choice}"#));
        refused(message, "tool_choice", "tool");
    }
}
