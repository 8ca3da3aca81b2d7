//! Ranks, keys, sessions and processors: what places a request on a worker and in its queue.

use super::{chat, completion, generate, refused};
use crate::{CloseSession, OpenSession, Routing, SessionParams};

fn session(id: &str) -> SessionParams {
    SessionParams {
        id: id.to_owned(),
        ..SessionParams::default()
    }
}

/// What every endpoint reads from a field.
fn of_all(field: &str) -> [Routing; 3] {
    [
        chat(field).unwrap().routing,
        completion(&format!(r#""prompt":"x",{field}"#)).unwrap().routing[0].clone(),
        generate(&format!(r#""text":"x",{field}"#)).unwrap().items[0]
            .routing
            .clone(),
    ]
}

#[test]
fn every_generating_endpoint_takes_what_places_a_request() {
    let field = r#""priority":-3,"routing_key":"tenant","custom_logit_processor":"{}","require_reasoning":true,
        "session_params":{"id":"s","rid":"r","offset":4,"replace":true,"drop_previous_output":true}"#;
    for routing in of_all(field) {
        let expected = Routing {
            priority: Some(-3),
            routing_key: Some("tenant".to_owned()),
            custom_logit_processor: Some("{}".to_owned()),
            require_reasoning: true,
            session: Some(SessionParams {
                rid: Some("r".to_owned()),
                offset: Some(4),
                replace: true,
                drop_previous_output: true,
                ..session("s")
            }),
            ..Routing::default()
        };
        assert_eq!(routing, expected);
    }
    for routing in of_all(r#""session_id":"s""#) {
        assert_eq!(routing.session, Some(session("s")));
    }
}

#[test]
fn a_value_that_asks_for_nothing_is_none() {
    for routing in of_all(
        r#""priority":null,"routing_key":"","custom_logit_processor":"","require_reasoning":null,"session_params":null,"session_id":"""#,
    ) {
        assert_eq!(routing, Routing::default());
    }
    let first = generate(r#""text":"x","session_params":{"id":"s","rid":"","offset":0}"#).unwrap();
    assert_eq!(first.items[0].routing.session, Some(session("s")));
}

#[test]
fn a_batch_has_one_session_for_all_or_one_for_each() {
    let sessions = |fields: &str| -> Vec<Option<SessionParams>> {
        let request = generate(&format!(r#""text":["a","b"],{fields}"#)).unwrap();
        request
            .items
            .into_iter()
            .map(|item| item.routing.session)
            .collect()
    };
    assert_eq!(
        sessions(r#""session_params":[{"id":"s"},null]"#),
        [Some(session("s")), None]
    );
    let both = [Some(session("s")), Some(session("s"))];
    assert_eq!(sessions(r#""session_params":{"id":"s"}"#), both);
    assert_eq!(sessions(r#""session_id":"s""#), both);
}

#[test]
fn a_batch_keeps_the_one_id_that_it_was_given() {
    let request = generate(r#""text":["a","b"],"rid":"job""#).unwrap();
    let names: Vec<_> = request
        .items
        .iter()
        .map(|item| (item.routing.rid.as_deref(), item.routing.batch_rid.as_deref()))
        .collect();
    assert_eq!(
        names,
        [(Some("job_0"), Some("job")), (Some("job_1"), Some("job"))]
    );
    let own = generate(r#""text":["a","b"],"rid":["r","s"]"#).unwrap();
    assert!(own.items.iter().all(|item| item.routing.batch_rid.is_none()));
}

#[test]
fn what_is_wrong_about_a_place_is_named() {
    for (field, param, words) in [
        (r#""priority":1.5"#, "priority", "whole number"),
        (r#""priority":3000000000"#, "priority", "whole number"),
        (r#""priority":"high""#, "priority", "got string \"high\""),
        (r#""routing_key":7"#, "routing_key", "string"),
        (
            r#""require_reasoning":"yes""#,
            "require_reasoning",
            "true or false",
        ),
        (r#""routing_key":"a\u0000b""#, "routing_key", "printable"),
        (r#""session_params":"s""#, "session_params", "an object"),
        (r#""session_params":{}"#, "session_params.id", "required"),
        (r#""session_params":{"id":""}"#, "session_params.id", "1 to 256"),
        (
            r#""session_params":{"id":"s","offset":-1}"#,
            "session_params.offset",
            "from 0 to 4294967295",
        ),
        (
            r#""session_params":{"id":"s","replace":"yes"}"#,
            "session_params.replace",
            "true or false",
        ),
        (
            r#""session_params":{"id":"s"},"session_id":"s""#,
            "session_id",
            "exclude each other",
        ),
        (r#""session_id":"s","n":2"#, "n", "1 in a session"),
        (
            r#""custom_logit_processor":{"a":1}"#,
            "custom_logit_processor",
            "a string",
        ),
    ] {
        refused(chat(field), param, words);
        refused(completion(&format!(r#""prompt":"x",{field}"#)), param, words);
    }
    let two = r#""text":["a","b"],"session_params":[{"id":"s"}]"#;
    refused(generate(two), "session_params", "one for each of the 2 prompts");
}

#[test]
fn custom_params_are_an_object_of_bounded_depth() {
    let params = chat(r#""custom_params":{"budget":3,"ids":[1,2]}"#)
        .unwrap()
        .sampling
        .custom_params
        .unwrap();
    assert_eq!(params["ids"][1], 2);
    let native = generate(r#""text":"x","sampling_params":{"custom_params":{"budget":3}}"#).unwrap();
    assert_eq!(
        native.items[0].sampling.custom_params.as_ref().unwrap()["budget"],
        3
    );
    assert_eq!(
        chat(r#""custom_params":{}"#).unwrap().sampling.custom_params,
        None
    );
    let nested = |levels: usize| {
        let lists = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(r#""custom_params":{{"a":{}{}}}"#, lists.0, lists.1)
    };
    assert!(chat(&nested(16)).is_ok());
    refused(chat(&nested(17)), "custom_params", "nested at most 16 levels");
    refused(chat(r#""custom_params":7"#), "custom_params", "an object");
    refused(
        generate(r#""text":"x","custom_params":{"a":1}"#),
        "custom_params",
        "not supported",
    );
}

#[test]
fn the_bodies_of_the_session_routes_are_checked() {
    let open = |fields: &str| OpenSession::parse(format!("{{{fields}}}").as_bytes());
    assert_eq!(
        open(r#""capacity_of_str_len":1000,"session_id":"s","streaming":true,"timeout":2.5"#).unwrap(),
        OpenSession {
            model: None,
            capacity_of_str_len: 1000,
            session_id: Some("s".to_owned()),
            streaming: true,
            timeout: Some(2.5)
        }
    );
    assert_eq!(open(r#""capacity_of_str_len":0"#).unwrap().session_id, None);
    for (fields, param, words) in [
        ("", "capacity_of_str_len", "required"),
        (
            r#""capacity_of_str_len":-1"#,
            "capacity_of_str_len",
            "whole number",
        ),
        (
            r#""capacity_of_str_len":1,"session_id":"""#,
            "session_id",
            "1 to 256",
        ),
        (r#""capacity_of_str_len":1,"timeout":0"#, "timeout", "above 0"),
        (r#""capacity_of_str_len":1,"timeout":1e300"#, "timeout", "at most"),
    ] {
        refused(open(fields), param, words);
    }
    assert_eq!(
        CloseSession::parse(br#"{"session_id":"s"}"#).unwrap().session_id,
        "s"
    );
    refused(CloseSession::parse(b"{}"), "session_id", "required");
}
