"""Grammar objects of both built-in backends keep the contract of `BaseGrammarObject`."""

import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
import torch

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.constrained.compile_process import CompilerDied, CompileRefused
from sglang.srt.constrained.grammar_manager import GrammarManager, why_invalid
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.probed_backend import NUM_COMPILERS, ProbedBackend
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.constrained.token_mask import (
    ANSWER_SECONDS,
    TOKEN_SECONDS,
    BitmaskGrammar,
    Effort,
)
from sglang.srt.core.messages import ConstraintTooComplex, grammar_failed
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from tests.unit.srt.constrained.backends import (
    ENDS,
    NAMES,
    PADDING,
    SPECIAL,
    VOCABULARY,
    accepts,
    allowed,
    backend_of,
    ids_of,
)

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)
TEXT = '{"a": "x", "b": true}'


def old_tag(**fields: object) -> dict[str, object]:
    structure = {"begin": "<a>", "schema": {}, "end": "</a>", **fields}
    return {"structures": [structure], "triggers": ["<"]}


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest) -> Iterator[BaseGrammarBackend]:
    with backend_of(request.param) as backend:
        yield backend


@pytest.fixture(scope="module")
def schema(backend: BaseGrammarBackend) -> BaseGrammarObject:
    return compiled(backend, "json", SCHEMA)


def compiled(backend: BaseGrammarBackend, kind: str, text: str) -> BaseGrammarObject:
    grammar = backend._init_value_dispatch((kind, text), False)
    assert grammar is not None
    return grammar


def after(grammar: BaseGrammarObject, text: str) -> BaseGrammarObject:
    state = grammar.copy()
    for token in ids_of(text):
        state.accept_token(token)
    return state


def test_an_answer_walks_to_its_end(schema: BaseGrammarObject) -> None:
    assert accepts(schema, TEXT)
    assert accepts(schema, TEXT.replace(" ", ""))
    assert not accepts(schema, '{"a": "x"}')


def test_a_terminated_grammar_allows_the_end_tokens_alone(schema: BaseGrammarObject) -> None:
    state = after(schema, TEXT)
    assert state.is_terminated()
    assert allowed(state) == set(ENDS)
    state.accept_token(ENDS[1])
    assert state.is_terminated()
    assert allowed(state) == set(ENDS)


def test_an_answer_that_may_go_on_is_not_terminated(backend: BaseGrammarBackend) -> None:
    state = after(compiled(backend, "regex", "a+"), "a")
    assert not state.is_terminated()
    assert {*ENDS, ord("a")} <= allowed(state)


def test_a_token_outside_the_mask_raises(schema: BaseGrammarObject) -> None:
    for token in (ord("x"), SPECIAL, PADDING, ENDS[0]):
        with pytest.raises(ValueError, match=str(token)):
            schema.copy().accept_token(token)


def test_b084_special_and_padding_tokens_are_never_allowed(backend: BaseGrammarBackend) -> None:
    state = after(compiled(backend, "regex", r"[\s\S]*"), "a")
    never = {SPECIAL, *range(PADDING, VOCABULARY.vocab_size)}
    assert not never & allowed(state)
    # Pieces of characters may end no answer; whole ones may go anywhere.
    assert set(range(0x20, 0x7F)) <= allowed(state)


def test_rollback_undoes_tokens(schema: BaseGrammarObject) -> None:
    ids = ids_of(TEXT)
    state = after(schema, TEXT)
    state.accept_token(ENDS[0])
    state.rollback(1)
    for count in range(1, len(ids)):
        before = after(schema, "")
        for token in ids[:-count]:
            before.accept_token(token)
        state.rollback(count)
        assert not state.is_terminated()
        assert allowed(state) == allowed(before)
        for token in ids[-count:]:
            state.accept_token(token)
    assert state.is_terminated()


def test_answers_of_one_grammar_share_no_state(schema: BaseGrammarObject) -> None:
    states = [schema.copy() for _ in range(100)]
    ids = ids_of(TEXT)
    for step, token in enumerate(ids):
        for number, state in enumerate(states):
            if step < number % (len(ids) + 1):
                state.accept_token(token)
    for number, state in enumerate(states):
        done = number % (len(ids) + 1)
        expected = {ids[done]} if done < len(ids) else set(ENDS)
        assert expected <= allowed(state)
        assert state.is_terminated() == (done == len(ids))
    assert not schema.is_terminated()


def test_a_copy_in_mid_answer_goes_its_own_way(backend: BaseGrammarBackend) -> None:
    first = after(compiled(backend, "regex", "a(b|c)d"), "a")
    second = first.copy()
    first.accept_token(ord("b"))
    second.accept_token(ord("c"))
    assert ord("d") in allowed(first)
    first.rollback(2)
    assert ord("a") in allowed(first)
    assert ord("d") in allowed(second)


def test_statistics_are_per_object(schema: BaseGrammarObject) -> None:
    assert schema.grammar_stats is not None
    assert schema.grammar_stats.compilation_time
    assert schema.grammar_stats.dispatch_type == "json"
    copied = schema.copy()
    assert copied.grammar_stats is not None
    assert copied.grammar_stats.is_cache_hit
    assert not schema.grammar_stats.is_cache_hit
    assert copied.memory_bytes == schema.memory_bytes > 0


def test_masks_are_applied_row_by_row(schema: BaseGrammarObject) -> None:
    size = VOCABULARY.vocab_size
    mask = schema.allocate_vocab_mask(size, 3, "cpu")
    schema.fill_vocab_mask(mask, 1)
    after(schema, TEXT).fill_vocab_mask(mask, 2)
    logits = torch.zeros(3, size + 5)  # more rows than the vocabulary
    schema.apply_vocab_mask(logits, schema.move_vocab_mask(mask, "cpu"))
    left = [set(row.isfinite().nonzero().flatten().tolist()) for row in logits]
    assert left == [set(range(mask.shape[1] * 32)), allowed(schema), set(ENDS)]
    schema.reset_vocab_mask(mask)
    assert mask.eq(-1).all()


def test_a_longer_mask_allows_nothing_beyond_the_vocabulary(schema: BaseGrammarObject) -> None:
    mask = schema.allocate_vocab_mask(VOCABULARY.vocab_size + 64, 1, "cpu")
    schema.fill_vocab_mask(mask, 0)
    assert mask[0, -2:].eq(0).all()
    with pytest.raises(ValueError, match="too short"):
        schema.fill_vocab_mask(mask[:, :2], 0)


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" b*\nb ::= [0-9]', ["a", "a12"], ["b", ""]),
        ('root ::= root "a" | "a"', ["a", "aaaa"], ["", "b"]),
        ('root ::= x*\nx ::= "" | "b"', ["", "bb"], ["a"]),
        ('root ::= r "a"\nr ::= s | "b"\ns ::= root | "c"', ["ba", "ca", "baa"], ["a", "b"]),
        ('root ::= "é" [^a]{2,3}', ["é12", "éxyz"], ["éa1", "é1"]),
    ],
)
def test_grammars(
    backend: BaseGrammarBackend, grammar: str, right: list[str], wrong: list[str]
) -> None:
    walked = compiled(backend, "ebnf", grammar)
    assert [text for text in right + wrong if accepts(walked, text)] == right


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("ebnf", 'x ::= "a"', "no rule `root`"),
        ("ebnf", 'root ::= fooBar foo-bar\nfooBar ::= "a"\nfoo-bar ::= "b"', "too much alike"),
        ("ebnf", "root ::= x", "x"),
        ("ebnf", "root ::= root", "no text"),
        ("regex", "(?=a)b", "ahead"),
        ("regex", "[a", "unclosed"),
        ("json", '{"not": {}}', "/not"),
        ("json", '{"type": "strng"}', "/type"),
        ("json", "{", "not JSON"),
        ("structural_tag", "{}", "structures"),
        *(
            ("structural_tag", json.dumps(tag), f"^at `{place}` of the structural tag: .*{why}")
            for tag, place, why in [
                (old_tag(schema={"not": {}}), "/structures/0/schema", "at `/not` of the schema"),
                (old_tag(schema='{"items":' * 2000), "/structures/0/schema", "a JSON schema"),
                (old_tag(begin="b"), "/structures/0/begin", "one of the triggers"),
                (old_tag(end=5), "/structures/0/end", "a string"),
                ({"structures": [], "triggers": ["<"]}, "/structures", "a list"),
                (
                    {"type": "structural_tag", "format": {"type": "regex", "pattern": "(?=a)b"}},
                    "/format/pattern",
                    "ahead",
                ),
                (
                    {
                        "type": "structural_tag",
                        "format": {
                            "type": "sequence",
                            "elements": [{"type": "json_schema", "json_schema": {"$ref": "x"}}],
                        },
                    },
                    "/format/elements/0/json_schema",
                    r"at `/\$ref` of the schema",
                ),
            ]
        ),
    ],
)
def test_refusals_say_why(backend: BaseGrammarBackend, kind: str, text: str, why: str) -> None:
    with pytest.raises(CompileRefused, match=why):
        compiled(backend, kind, text)


def test_what_the_text_tells_is_refused_at_once(backend: BaseGrammarBackend) -> None:
    assert backend.check("json", SCHEMA) is None
    assert "/properties/a~1b/not" in str(
        backend.check("json", '{"properties": {"a/b": {"not": {}}}}')
    )
    assert "back-references" in str(backend.check("regex", r"(a)\1"))


def test_a_crash_of_the_library_costs_its_request_alone(backend: BaseGrammarBackend) -> None:
    chain = "\n".join(f'r{i} ::= "a" r{(i + 1) % 4000}?' for i in range(4000))
    with contextlib.suppress(CompilerDied, CompileRefused):
        compiled(backend, "ebnf", f"root ::= r0\n{chain}")
    assert accepts(compiled(backend, "regex", "ab"), "ab")


@pytest.mark.parametrize("name", NAMES)
def test_white_space_has_an_end_and_can_be_left_out(name: str) -> None:
    with backend_of(name) as backend:
        loose = compiled(backend, "json", SCHEMA)
        assert not accepts(loose, '{"a":' + " " * 30 + '"x","b":true}')
        state = after(loose, '{"a":')
        for _ in range(30):
            if ord(" ") not in allowed(state):
                break
            state.accept_token(ord(" "))
        assert ord(" ") not in allowed(state)
        assert ord('"') in allowed(state)
    with backend_of(name, is_compact=True) as backend:
        tight = compiled(backend, "json", SCHEMA)
        assert accepts(tight, TEXT.replace(" ", ""))
        assert not accepts(tight, TEXT)


def test_a_large_result_is_refused_with_its_flag() -> None:
    limits = GrammarLimits(compiled_bytes=40_000)
    with (
        backend_of("xgrammar", limits) as backend,
        pytest.raises((CompileRefused, CompilerDied), match="--grammar-max-compiled-bytes"),
    ):
        compiled(backend, "regex", "|".join(f"{n}x{n}" for n in range(3000)))


@pytest.mark.parametrize("name", NAMES)
def test_a_string_has_one_spelling(name: str) -> None:
    """Else a declared name could come again, of another type."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with backend_of(name) as backend:
        grammar = compiled(backend, "json", json.dumps(schema))
        assert accepts(grammar, '{"a":1,"b\\n":"\\\\x\\""}')
        for text in ('{"\\u0061":"x"}', '{"a":1,"\\u0061":2}', '{"a":1,"a":2}', '{"b":"\\/"}'):
            assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ('^[^"]*$', r'"a\"b"'),
        (r"^[^\\]*$", r'"a\\b"'),
        (r"^\S+$", r'"a\nb"'),
        ("^.*$", r'"a\nb"'),
        ("^[^a]*$", '"b\x01"'),
    ],
)
def test_an_escape_in_a_string_is_the_character_that_it_stands_for(
    backend: BaseGrammarBackend, pattern: str, text: str
) -> None:
    grammar = compiled(backend, "json", json.dumps({"type": "string", "pattern": pattern}))
    assert accepts(grammar, '"bcd"')
    assert not accepts(grammar, text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 1},
    ],
)
def test_a_string_holds_whole_characters_without_control_characters(
    backend: BaseGrammarBackend, schema: dict[str, object]
) -> None:
    grammar = compiled(backend, "json", json.dumps(schema))
    assert accepts(grammar, '"[é字"') and accepts(grammar, '"]\U0001f600~!"')
    for content in (b"\x01", b"\t", b"\n", b"\x1f", b"\xed\xa0\x80"):
        state = after(grammar, '"')
        *before, last = content
        is_open = True
        for byte in before:
            is_open = is_open and byte in allowed(state)
            if is_open:
                state.accept_token(byte)
        assert not (is_open and last in allowed(state)), content


NO_CHARACTERS = (
    b"\xe0\x9f\xbf", b"\xc0\xaf", b"\xf0\x8f\xbf\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "before"),
    [
        ("json", '{"type": "string", "pattern": "^.*$"}', '"'),
        ("json", '{"type": "string", "pattern": "[^a]"}', '"'),
        ("regex", "[^a]+", ""),
        ("regex", ".*", ""),
        ("ebnf", "root ::= [^a]+", ""),
    ],
)
def test_a_class_of_characters_holds_no_other_bytes(
    backend: BaseGrammarBackend, kind: str, text: str, before: str
) -> None:
    grammar = compiled(backend, kind, text)
    whole = f"{before}é字\ud7ff\ue000\u0800\U00010000\U0010ffff{before}"
    assert accepts(grammar, whole)
    for content in NO_CHARACTERS:
        state = after(grammar, before)
        for place, byte in enumerate(content):
            if byte not in allowed(state):
                break
            assert place < len(content) - 1, content
            state.accept_token(byte)
        with pytest.raises(ValueError, match="token"):
            state.accept_token(byte)


def test_a_first_byte_is_remembered_over_copies_and_rollbacks(backend: BaseGrammarBackend) -> None:
    state = compiled(backend, "regex", "[^a]+").copy()
    for byte in b"x\xe0":
        state.accept_token(byte)
    copied = state.copy()
    assert 0x9F not in allowed(copied) and 0xA0 in allowed(copied)
    state.rollback(1)
    assert {0xE0, ord("b")} <= allowed(state)
    state.accept_token(0xE1)
    assert 0x9F in allowed(state)
    assert 0x9F not in allowed(copied)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "a\0b"),
        ("ebnf", r'root ::= "a\0b"'),
        ("ebnf", r'root ::= "a" [\u0000] "b"'),
        *(
            ("structural_tag", json.dumps({"type": "structural_tag", "format": format}))
            for format in (
                {"type": "const_string", "value": "a\0b"},
                {"type": "regex", "pattern": "a\0b"},
            )
        ),
    ],
)
def test_no_answer_leaves_out_a_character(
    backend: BaseGrammarBackend, kind: str, text: str
) -> None:
    try:
        grammar = compiled(backend, kind, text)
    except CompileRefused:
        return
    assert not any(accepts(grammar, answer) for answer in ("ab", "a"))
    assert accepts(grammar, "a\0b")


def test_a_range_of_characters_may_begin_at_the_first(backend: BaseGrammarBackend) -> None:
    for kind, text in (("regex", "a[^x]b"), ("ebnf", r'root ::= "a" [^\x00-\x1f] "\\0b"')):
        grammar = compiled(backend, kind, text)
        assert not accepts(grammar, "axb" if kind == "regex" else "a\n\\0b")
        assert accepts(grammar, "ayb" if kind == "regex" else "ay\\0b")


MANY_RULES = "\n".join(
    [
        f"root ::= {' '.join(f'r{i}' for i in range(3000))}",
        *(f'r{i} ::= "x{i}" | ""' for i in range(3000)),
    ]
)


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [("regex", "((a{1,100}){1,100}){1,100}", "a" * 50), ("ebnf", MANY_RULES, "x1")],
)
def test_what_is_too_complex_for_a_parser_is_the_fault_of_the_constraint(
    kind: str, text: str, answer: str
) -> None:
    with backend_of("llguidance") as backend:
        grammar = compiled(backend, kind, text)
        with pytest.raises(ConstraintTooComplex) as refused:
            accepts(grammar, answer)
        failed = grammar_failed(refused.value)
        assert failed.status_code == 400
        assert "cannot be honoured" in str(failed.message)
        with pytest.raises(ValueError, match="token") as other:
            compiled(backend, "regex", "b").copy().accept_token(ord("a"))
        assert grammar_failed(other.value).status_code == 500


def test_an_answer_whose_masks_take_too_long_ends(backend: BaseGrammarBackend) -> None:
    state, ticks = compiled(backend, "regex", "a{1,500}").copy(), iter(range(1000))
    assert isinstance(state, BitmaskGrammar)
    state.effort = Effort(lambda: next(ticks) * TOKEN_SECONDS / 2)
    for _ in range(100):
        assert ord("a") in allowed(state)
        state.accept_token(ord("a"))
    state.effort = Effort(lambda: next(ticks) * ANSWER_SECONDS)
    assert ord("a") in allowed(state)
    with pytest.raises(ConstraintTooComplex, match="1 tokens, where 1.0 s are allowed"):
        state.accept_token(ord("a"))
    other = state.copy()
    assert isinstance(other, BitmaskGrammar)
    other.effort.check()


@pytest.mark.parametrize("reasons", [False, True])
def test_a_constraint_that_waits_for_a_compiler_is_not_held_to_be_slow(
    backend: BaseGrammarBackend, monkeypatch: pytest.MonkeyPatch, reasons: bool
) -> None:
    assert isinstance(backend, ProbedBackend)
    begun, may_end, now = threading.Semaphore(0), threading.Event(), 0.0

    def compile_slowly(kind: str, text: str, timeout: float) -> bytes:
        begun.release()
        may_end.wait(30)
        raise CompileRefused("it was slow")

    monkeypatch.setattr(backend._compilers, "compile", compile_slowly)
    own = ReasonerGrammarBackend(backend, [1]) if reasons else backend
    manager = GrammarManager(own, clock=lambda: now)
    reqs = [Req(f"{i}", [1], SamplingParams(regex=f"{reasons} {i}")) for i in range(9)]
    try:
        for req in reqs:
            manager.process_req_with_grammar(req)
        for _ in range(NUM_COMPILERS):
            assert begun.acquire(timeout=30)
        assert manager.get_ready_grammar_requests() == []
        now = backend.limits.compile_seconds + backend.compile_grace - 1
        waited = manager.get_ready_grammar_requests()
        assert waited == []
        now += 1
        monkeypatch.setattr(own, "give_up", lambda future: False)
        assert manager.get_ready_grammar_requests() == reqs
    finally:
        may_end.set()
    statuses = [why_invalid(req).status_code for req in reqs]
    assert statuses == [400] * NUM_COMPILERS + [503] * (len(reqs) - NUM_COMPILERS)
