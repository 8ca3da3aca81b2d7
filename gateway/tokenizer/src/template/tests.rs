use std::sync::LazyLock;

use super::*;

static NO_KWARGS: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

fn render_with<'a>(
    source: &str,
    messages: &'a Value,
    set: impl Fn(&mut RenderInput<'a>),
) -> Result<String, TemplateError> {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let template = ChatTemplate::new(source, tokens.as_object().unwrap().clone())?;
    let mut input = RenderInput {
        messages,
        tools: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &NO_KWARGS,
    };
    set(&mut input);
    template.render(&input)
}

fn render(source: &str, messages: &Value) -> Result<String, TemplateError> {
    render_with(source, messages, |_| {})
}

const CHATML: &str = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}{% endfor %}\
                      {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn tool_conversation() -> Value {
    json!([
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
        {"role": "tool", "content": "sunny"},
        {"role": "user", "content": "and tomorrow?"},
    ])
}

#[test]
fn a_message_of_tool_calls_alone_renders() {
    let mut messages = tool_conversation();
    let expected =
        "<|user|>weather?</s><|assistant|></s><|tool|>sunny</s><|user|>and tomorrow?</s><|assistant|>";
    assert_eq!(render(CHATML, &messages).unwrap(), expected);
    messages[1]["content"] = Value::Null;
    assert_eq!(render(CHATML, &messages).unwrap(), expected);
}

#[test]
fn missing_content_stays_missing_where_the_template_can_tell() {
    let source = "{% for m in messages %}{{ m.content if m.content is defined else '(none)' }};{% endfor %}";
    assert_eq!(
        render(source, &tool_conversation()).unwrap(),
        "weather?;(none);sunny;and tomorrow?;"
    );
}

#[test]
fn missing_content_of_other_messages_is_an_error() {
    let error = render(CHATML, &json!([{"role": "user"}])).unwrap_err();
    assert!(matches!(error, TemplateError::Render(_)), "{error:?}");
}

#[test]
fn text_parts_are_joined_for_templates_of_strings() {
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render(CHATML, &parts).unwrap(), "<|user|>a\nb</s><|assistant|>");
    let printing = "{{ messages[0]['content'] }}";
    assert_eq!(render(printing, &parts).unwrap(), "a\nb");
    let tool = json!([{"role": "tool", "content": [{"type": "text", "text": "42"}]}]);
    assert_eq!(
        render(CHATML, &tool),
        render(CHATML, &json!([{"role": "tool", "content": "42"}]))
    );
}

#[test]
fn parts_stay_for_templates_that_read_them() {
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                  {% for p in m.content %}[{{ p.text if p.type == 'text' else p.type }}]{% endfor %}{% endif %}{% endfor %}";
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]);
    assert_eq!(render(source, &parts).unwrap(), "[a][image]");
    assert!(
        ChatTemplate::new(source, Map::new())
            .unwrap()
            .takes_content_parts()
    );
    assert!(
        !ChatTemplate::new(CHATML, Map::new())
            .unwrap()
            .takes_content_parts()
    );
}

#[test]
fn raised_exceptions_carry_their_message_alone() {
    let source = "{% for m in messages %}{% if loop.index > 1 %}{{ raise_exception('too many: ' ~ m.role) }}{% endif %}{% endfor %}";
    let messages = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    assert_eq!(
        render(source, &messages),
        Err(TemplateError::Raised("too many: user".to_owned()))
    );
}

#[test]
fn errors_of_the_template_are_found_when_it_is_loaded() {
    for source in [
        "{% if %}",
        "{{ messages | no_such_filter }}",
        "{{ no_such_function() }}",
        "{% unheard %}",
    ] {
        let error = ChatTemplate::new(source, Map::new()).err();
        assert!(
            matches!(error, Some(TemplateError::Compile(_))),
            "{source}: {error:?}"
        );
    }
}

#[test]
fn endless_work_is_stopped() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    assert_eq!(render(nested, &messages), Err(TemplateError::TooLong));
    let doubling = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}";
    assert_eq!(render(doubling, &messages), Err(TemplateError::TooLong));
    let recursive = "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}";
    assert!(render(recursive, &messages).is_err());
}

#[test]
fn a_long_conversation_is_not_too_much_work() {
    let message = json!({"role": "user", "content": "word ".repeat(1000)});
    let messages = Value::from(vec![message; 500]);
    assert_eq!(
        render(CHATML, &messages).unwrap().len(),
        500 * (8 + 5000 + 4) + 13
    );
}

#[test]
fn a_final_message_is_continued_behind_its_content() {
    let continued = |source: &str, messages: &Value| {
        render_with(source, messages, |input| input.continue_final_message = true)
    };
    let messages =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is "}]);
    assert_eq!(
        continued(CHATML, &messages).unwrap(),
        "<|user|>a</s><|assistant|>The answer is "
    );
    let trimming = CHATML.replace("m['content']", "m['content'] | trim");
    assert_eq!(
        continued(&trimming, &messages).unwrap(),
        "<|user|>a</s><|assistant|>The answer is"
    );
    let parts = json!([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(continued(CHATML, &parts).unwrap(), "<|assistant|>a\nb");
}

#[test]
fn there_must_be_something_to_continue() {
    let continued = |messages: Value| {
        render_with("{{ messages[0].content }}", &messages, |input| {
            input.continue_final_message = true
        })
    };
    let user = json!({"role": "user", "content": "a"});
    for messages in [
        json!([]),
        json!([user, {"role": "assistant"}]),
        json!([user, {"role": "assistant", "content": [{"type": "image"}]}]),
        json!([user, {"role": "assistant", "content": "left out by the template"}]),
    ] {
        let error = continued(messages).unwrap_err();
        assert!(matches!(error, TemplateError::NothingToContinue(_)), "{error:?}");
    }
}

#[test]
fn variables_of_the_request_reach_the_template_but_do_not_replace_its_own() {
    let kwargs = json!({"enable_thinking": false, "messages": "mine", "documents": [{"title": "t"}], "eos_token": "E"});
    let source = "{{ enable_thinking }} {{ messages | length }} {{ documents[0].title }} {{ eos_token }} {{ tools[0].x }}";
    let (messages, tools) = (json!([{"role": "user"}]), json!([{"x": 1}]));
    let rendered = render_with(source, &messages, |input| {
        input.kwargs = kwargs.as_object().unwrap();
        input.tools = Some(&tools);
    });
    assert_eq!(rendered.unwrap(), "False 1 t E 1");
}

#[test]
fn messages_must_be_a_list_of_objects() {
    for (messages, named) in [
        (json!("hi"), "a string"),
        (json!(["hi"]), "a list with a string"),
        (json!({}), "an object"),
    ] {
        let error = render(CHATML, &messages).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_template_is_rendered_at_the_present_time() {
    let year = time::OffsetDateTime::now_utc().year();
    let rendered: i32 = render("{{ strftime_now('%Y') }}", &json!([]))
        .unwrap()
        .parse()
        .unwrap();
    assert!(rendered == year || rendered == year + 1);
}
