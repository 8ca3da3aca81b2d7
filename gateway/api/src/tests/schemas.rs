//! What is no JSON schema, what refers to nothing, and what no grammar backend honours.

use super::{chat, completion, generate, refused};
use crate::ApiError;

/// The schema as the text of a native request's parameter.
fn native(schema: &str) -> Result<Option<ApiError>, ApiError> {
    let text = serde_json::to_string(schema).unwrap();
    let request = generate(&format!(
        r#""text":"a","sampling_params":{{"json_schema":{text}}}"#
    ))?;
    Ok(request.items[0].sampling.unhonoured.clone())
}

fn format(schema: &str) -> String {
    format!(r#""response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{schema}}}}}"#)
}

#[test]
fn schemas_of_all_drafts_pass() {
    for schema in [
        "true",
        "{}",
        r#"{"type":["string","null"],"description":5,"x-order":[1],"minLength":2.0,"title":null}"#,
        r#"{"minimum":1,"exclusiveMinimum":true,"id":"http://x.test/a#","definitions":{"b":{}}}"#,
        r##"{"$ref":"#/definitions/a","definitions":{"a":{"items":[{"type":"integer"}],"additionalItems":false}}}"##,
        r##"{"properties":{"next":{"$ref":"#"},"if":{"type":"null"},"$ref":{"type":"string"}}}"##,
        r##"{"items":{"$ref":"#/components/a~1b%20c"},"components":{"a/b c":{"type":"null"}}}"##,
        r##"{"items":{"$ref":"#node"},"$defs":{"x":{"$anchor":"node"}}}"##,
        r##"{"items":{"$ref":"item"},"$defs":{"x":{"$id":"https://x.test/item"}}}"##,
        r#"{"items":{"$ref":"http://json-schema.org/draft-07/schema#"}}"#,
        r#"{"enum":[{"type":"strng"},{"$ref":"nowhere"}],"const":{"if":1},"default":{"minLength":-1}}"#,
    ] {
        assert_eq!(native(schema), Ok(None), "{schema}");
        assert_eq!(
            chat(&format(schema)).unwrap().sampling.unhonoured,
            None,
            "{schema}"
        );
    }
}

/// Schema, place, words of the error.
const WRONG: &[(&str, &str, &str)] = &[
    ("{", "", "is not valid JSON"),
    ("[]", "", "must be a schema"),
    (
        r#""x""#,
        "",
        "must be a schema (an object, true or false), got string",
    ),
    ("null", "", "must be a schema"),
    ("false", "", "allows no value at all"),
    (
        r#"{"type":"strng"}"#,
        "/type",
        "must be one or several of string, number",
    ),
    (r#"{"type":[]}"#, "/type", "got an empty list"),
    (r#"{"type":["string",1]}"#, "/type", "must be one or several of"),
    (
        r#"{"minLength":-1}"#,
        "/minLength",
        "a whole number, 0 or more, got -1",
    ),
    (
        r#"{"maxItems":1.5}"#,
        "/maxItems",
        "a whole number, 0 or more, got 1.5",
    ),
    (
        r#"{"items":{"maximum":"9"}}"#,
        "/items/maximum",
        "must be a number",
    ),
    (r#"{"multipleOf":0}"#, "/multipleOf", "above 0"),
    (
        r#"{"required":"a"}"#,
        "/required",
        "must be a list of strings, got string \"a\"",
    ),
    (r#"{"required":[1]}"#, "/required", "must be a list of strings"),
    (r#"{"enum":[]}"#, "/enum", "that is not empty, got an empty list"),
    (r#"{"enum":"a"}"#, "/enum", "must be a list of values"),
    (r#"{"anyOf":[]}"#, "/anyOf", "a list of schemas that is not empty"),
    (
        r#"{"anyOf":[{},{"oneOf":[3]}]}"#,
        "/anyOf/1/oneOf/0",
        "must be a schema",
    ),
    (r#"{"properties":[]}"#, "/properties", "an object with schemas"),
    (
        r#"{"properties":{"a/b":{"pattern":1}}}"#,
        "/properties/a~1b/pattern",
        "a string",
    ),
    (
        r#"{"additionalProperties":"no"}"#,
        "/additionalProperties",
        "must be a schema",
    ),
    (r#"{"uniqueItems":1}"#, "/uniqueItems", "true or false"),
    (
        r#"{"dependencies":{"a":1}}"#,
        "/dependencies",
        "schemas or lists of names",
    ),
    (r#"{"a":1,"a":2}"#, "", "gives `a` more than once"),
    (r#"{"$ref":5}"#, "/$ref", "a string"),
    (
        r#"{"$ref":"https://x.test/y"}"#,
        "/$ref",
        "leads to another document",
    ),
    (
        r##"{"items":{"$ref":"#/nowhere"}}"##,
        "/items/$ref",
        "`#/nowhere` leads nowhere",
    ),
    (r##"{"$ref":"#name"}"##, "/$ref", "leads nowhere"),
    (r##"{"items":{"$ref":"#/x"},"x":1}"##, "/items/$ref", "no schema"),
    (
        r##"{"$ref":"#/x/y","x":{"y":{"type":1}}}"##,
        "/x/y/type",
        "one or several of",
    ),
    (r##"{"$ref":"#"}"##, "/$ref", "back to itself"),
    (
        r##"{"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
        "/items/$ref",
        "back to itself",
    ),
];

#[test]
fn what_is_no_schema_is_refused_with_its_place() {
    assert_eq!(native(""), Ok(None));
    for (schema, place, words) in WRONG {
        refused(
            native(schema),
            &format!("sampling_params.json_schema{place}"),
            words,
        );
        if place.is_empty() {
            continue;
        }
        let param = format!("response_format.json_schema.schema{place}");
        refused(chat(&format(schema)), &param, words);
        refused(
            completion(&format!(r#""prompt":"a",{}"#, format(schema))),
            &param,
            words,
        );
        refused(
            chat(&format!(r#""json_schema":{schema}"#)),
            &format!("json_schema{place}"),
            words,
        );
    }
}

#[test]
fn size_and_depth_are_bounded_and_cost_little() {
    let nested = |levels: usize| format!("{}{}{}", r#"{"items":"#.repeat(levels), "{}", "}".repeat(levels));
    assert_eq!(native(&nested(99)), Ok(None));
    for (schema, words) in [
        (nested(100), "is nested 101 levels deep, allowed are 100"),
        (nested(100_000), "levels deep"),
        ("[".repeat(100_000), "levels deep"),
        (
            format!(r#"{{"title":"{}"}}"#, "x".repeat(1 << 20)),
            "allowed are 1048576",
        ),
    ] {
        refused(native(&schema), "sampling_params.json_schema", words);
    }
    // A path that is as long as all the places behind it are many.
    let many = r#"{"a":0},"#.repeat(40_000);
    let wide = format!(
        r#"{{"properties":{{"{}":{{"anyOf":[{many}{{}}]}}}}}}"#,
        "k".repeat(300_000)
    );
    assert_eq!(native(&wide), Ok(None));
    let tag = serde_json::to_string(&format!(
        r#"{{"format":{{"type":"x","{}":[{many}{{}}]}}}}"#,
        "k".repeat(300_000)
    ));
    assert!(chat(&format!(r#""structural_tag":{}"#, tag.unwrap())).is_ok());
    let chain = (0..10_000).map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}},"##, i + 1));
    let chain: String = chain.collect();
    assert_eq!(
        native(&format!(r#"{{"$defs":{{{chain}"d10000":{{}}}}}}"#)),
        Ok(None)
    );
    for (field, text) in [
        ("regex", format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000))),
        ("ebnf", format!("root ::= {}\"a\"", "(".repeat(60_000))),
    ] {
        let text = serde_json::to_string(&text).unwrap();
        refused(
            chat(&format!(r#""{field}":{text}"#)),
            field,
            "is nested 60000 levels deep",
        );
    }
}

#[test]
fn keywords_that_no_backend_honours_are_named_with_their_place() {
    for (schema, place, words) in [
        (
            r#"{"properties":{"a":{"if":{"type":"string"},"then":{}}}}"#,
            "/properties/a/if",
            "`/properties/a/if` uses `if`, which no grammar backend of this version honours; write the cases as `anyOf`",
        ),
        (
            r#"{"unevaluatedProperties":false}"#,
            "/unevaluatedProperties",
            "use `additionalProperties`",
        ),
        (
            r#"{"anyOf":[{},{"contains":{}}]}"#,
            "/anyOf/1/contains",
            "`prefixItems`",
        ),
        (
            r##"{"items":{"$dynamicRef":"#x"}}"##,
            "/items/$dynamicRef",
            "`$ref`",
        ),
        (r#"{"items":{"not":{}},"maxItems":3}"#, "/items/not", "`enum`"),
        (
            r##"{"items":{"$ref":"#/x"},"x":{"uniqueItems":true}}"##,
            "/x/uniqueItems",
            "`enum`",
        ),
    ] {
        let error = native(schema).unwrap().expect(schema);
        let param = format!("sampling_params.json_schema{place}");
        assert_eq!(error.param.as_deref(), Some(param.as_str()));
        assert!(error.message.contains(words), "{}", error.message);
        let error = chat(&format(schema)).unwrap().sampling.unhonoured.expect(schema);
        assert!(
            error
                .message
                .starts_with("response_format.json_schema.schema: `/"),
            "{error}"
        );
    }
}

#[test]
fn keywords_that_ask_for_nothing_are_let_be() {
    for schema in [
        r#"{"unevaluatedProperties":true,"if":{"type":"null"},"dependentSchemas":{},"not":false}"#,
        r#"{"then":{"not":{}},"uniqueItems":true,"maxItems":1,"contains":{},"minContains":0}"#,
        r#"{"properties":{"contains":{},"if":{}},"enum":[{"if":1}],"contentSchema":{"not":{}}}"#,
        // What nothing refers to, and what stands beside a reference of old.
        r#"{"$defs":{"a":{"not":{}}}}"#,
        r##"{"$schema":"http://json-schema.org/draft-07/schema#","items":{"$ref":"#/definitions/a","not":{}},
            "definitions":{"a":{}}}"##,
    ] {
        assert_eq!(native(schema), Ok(None), "{schema}");
    }
}

#[test]
fn schemas_in_structural_tags_are_looked_at() {
    let structure = |schema: &str| {
        format!(
            r#"{{"type":"structural_tag","triggers":["<f"],"structures":[{{"begin":"<f>","end":"</f>","schema":{schema}}}]}}"#
        )
    };
    let new = |schema: &str| {
        format!(
            r#"{{"type":"structural_tag","format":{{"type":"sequence","elements":[{{"type":"json_schema","json_schema":{schema}}}]}}}}"#
        )
    };
    let asked = |tag: &str| chat(&format!(r#""response_format":{tag}"#));
    for schema in ["{}", r#"{"type":"string"}"#] {
        assert!(asked(&structure(schema)).is_ok());
        assert!(asked(&new(schema)).is_ok());
    }
    for (tag, place, words) in [
        (
            structure(r#"{"type":"strng"}"#),
            "/structures/0/schema/type",
            "one or several of",
        ),
        (
            new(r#"{"items":5}"#),
            "/format/elements/0/json_schema/items",
            "must be a schema",
        ),
        (
            r#"{"type":"structural_tag"}"#.to_owned(),
            "",
            "must have `structures` and `triggers`",
        ),
        (
            r#"{"type":"structural_tag","structures":[]}"#.to_owned(),
            "/triggers",
            "must be a list of strings",
        ),
        (
            r#"{"type":"structural_tag","structures":[{"begin":1}],"triggers":["a"]}"#.to_owned(),
            "/structures/0/begin",
            "must be a string, got 1",
        ),
        (
            r#"{"type":"structural_tag","format":[]}"#.to_owned(),
            "/format",
            "with a `type`",
        ),
    ] {
        refused(asked(&tag), &format!("response_format{place}"), words);
    }
    let found = asked(&new(r#"{"if":{"type":"null"},"then":{}}"#))
        .unwrap()
        .sampling
        .unhonoured
        .unwrap();
    assert_eq!(
        found.param.as_deref(),
        Some("response_format/format/elements/0/json_schema/if")
    );
}
