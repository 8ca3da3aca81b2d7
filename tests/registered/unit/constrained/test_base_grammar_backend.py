"""The documented contract of grammar backends, without weights or an accelerator."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.srt.constrained.base_grammar_backend import (
    GRAMMAR_BACKEND_REGISTRY,
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarStats,
    InvalidGrammarObject,
    create_grammar_backend,
    register_grammar_backend,
)
from sglang.srt.constrained.limits import GrammarLimits
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(2.0, "base-a-test-cpu")

LOGGER = "sglang.srt.constrained.base_grammar_backend"
KINDS = ("json", "regex", "ebnf", "structural_tag")


class Grammar(BaseGrammarObject):
    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = text
        self.grammar_stats = GrammarStats()
        self.reasoning: list[bool] = []

    def copy(self) -> "Grammar":
        return Grammar(self.text)

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        self.reasoning.append(reasoning)


class TestGrammarStats(unittest.TestCase):
    def test_defaults(self) -> None:
        stats = GrammarStats()
        self.assertIsNone(stats.compilation_time)
        self.assertIsNone(stats.schema_count)
        self.assertIsNone(stats.ebnf_size)
        self.assertIsNone(stats.dispatch_type)
        self.assertFalse(stats.is_cache_hit)
        self.assertFalse(stats.is_grammar_aborted)
        self.assertEqual(stats.num_timeout, 0)

    def test_each_has_a_list_of_its_own(self) -> None:
        first = GrammarStats()
        first.tree_traversal_time.append(0.5)
        self.assertEqual(GrammarStats().tree_traversal_time, [])


class TestBaseGrammarObject(unittest.TestCase):
    def test_fresh_object(self) -> None:
        grammar = BaseGrammarObject()
        self.assertFalse(grammar.finished)
        self.assertIsNone(grammar.grammar_stats)
        self.assertIsNone(grammar.current_token)
        self.assertFalse(grammar.is_terminated())
        self.assertIs(grammar.copy(), grammar)

    def test_finished_can_be_set(self) -> None:
        grammar = BaseGrammarObject()
        grammar.finished = True
        self.assertTrue(grammar.finished)

    def test_what_a_backend_must_provide_is_not_implemented(self) -> None:
        grammar = BaseGrammarObject()
        calls = {
            "accept_token": (1,),
            "rollback": (1,),
            "allocate_vocab_mask": (8, 1, "cpu"),
            "allocate_token_mask": (8, 1, "cpu"),
            "fill_vocab_mask": (None, 0),
            "reset_vocab_mask": (None,),
            "move_vocab_mask": (None, "cpu"),
            "apply_vocab_mask": (None, None),
            "try_jump_forward": (None,),
            "jump_forward_str_state": (([], ""),),
            "jump_and_retokenize": ([], [], 0),
        }
        for name, arguments in calls.items():
            with self.subTest(name), self.assertRaises(NotImplementedError):
                getattr(grammar, name)(*arguments)

    def test_token_mask_is_another_name_of_the_vocab_mask(self) -> None:
        class Other(BaseGrammarObject):
            def allocate_token_mask(self, vocab_size, batch_size, device):  # type: ignore[no-untyped-def]
                return (vocab_size, batch_size, device)

        self.assertEqual(Other().allocate_vocab_mask(8, 2, "cpu"), (8, 2, "cpu"))


class TestInvalidGrammarObject(unittest.TestCase):
    def test_message(self) -> None:
        self.assertEqual(InvalidGrammarObject().error_message, "Unknown grammar error")
        self.assertEqual(
            repr(InvalidGrammarObject("no rule root")),
            "InvalidGrammarObject(error_message='no rule root')",
        )
        self.assertIsInstance(InvalidGrammarObject(), BaseGrammarObject)


class TestBaseGrammarBackend(unittest.TestCase):
    def setUp(self) -> None:
        self.backend = BaseGrammarBackend()
        self.addCleanup(self.backend.executor.shutdown)

    def test_unsupported_kinds_give_an_invalid_object_and_a_log_line(self) -> None:
        for kind in KINDS:
            with self.subTest(kind), self.assertLogs(LOGGER) as logs:
                value = getattr(self.backend, f"dispatch_{kind}")("text")
                self.assertIsInstance(value, InvalidGrammarObject)
                self.assertIn(
                    f"Skip unsupported key_type='{kind}', key_string='text'", logs.output[0]
                )

    def test_unknown_kind_raises_with_kind_and_text(self) -> None:
        with self.assertRaises(ValueError) as caught:
            self.backend._init_value_dispatch(("yaml", "a: b"), False)
        self.assertIn("yaml", str(caught.exception))
        self.assertIn("a: b", str(caught.exception))

    def test_one_compile_method_serves_every_kind(self) -> None:
        class Compiler(BaseGrammarBackend):
            def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject:
                return Grammar(f"{key_type}:{key_string}")

        for kind in KINDS:
            value = Compiler()._init_value_dispatch((kind, "x"), True)
            assert isinstance(value, Grammar)
            self.assertEqual(value.text, f"{kind}:x")

    def test_compilation_time_is_measured_where_there_are_statistics(self) -> None:
        with patch.object(self.backend, "dispatch_json", return_value=Grammar()) as dispatch:
            value = self.backend._init_value_dispatch(("json", "{}"), False)
            dispatch.assert_called_once_with("{}")
        assert value is not None and value.grammar_stats is not None
        self.assertGreaterEqual(value.grammar_stats.compilation_time or -1.0, 0.0)

    def test_dispatch_may_return_none(self) -> None:
        with patch.object(self.backend, "dispatch_regex", return_value=None):
            self.assertIsNone(self.backend._init_value_dispatch(("regex", "a"), False))

    def test_miss_is_a_future_and_stays_a_miss_until_cached(self) -> None:
        with patch.object(self.backend, "dispatch_ebnf", return_value=Grammar("g")):
            for _ in range(2):
                future, hit = self.backend.get_cached_or_future_value(("ebnf", "g"), False)
                self.assertFalse(hit)
                self.assertEqual(future.result(timeout=10).text, "g")  # type: ignore[union-attr]

    def test_hit_is_a_copy_that_knows_about_reasoning(self) -> None:
        original = Grammar("g")
        self.backend.set_cache(("json", "{}"), original)
        value, hit = self.backend.get_cached_or_future_value(("json", "{}"), True)
        assert isinstance(value, Grammar)
        self.assertTrue(hit)
        self.assertIsNot(value, original)
        self.assertEqual((value.text, value.reasoning), ("g", [True]))

    def test_reset_forgets(self) -> None:
        self.backend.set_cache(("json", "{}"), Grammar())
        self.backend.reset()
        self.assertEqual(self.backend.cache, {})
        self.assertEqual(self.backend.cached_bytes, 0)

    def test_what_a_simple_backend_says_of_itself(self) -> None:
        self.assertIsNone(self.backend.check("json", "{}"))
        self.assertEqual(self.backend.compile_grace, 0.0)
        self.assertEqual(self.backend.limits, GrammarLimits())
        self.assertEqual(Grammar().memory_bytes, 0)

    def test_closing_takes_nothing_more(self) -> None:
        self.backend.close()
        with self.assertRaises(RuntimeError):
            self.backend.get_cached_or_future_value(("json", "{}"), False)


class TestRegistry(unittest.TestCase):
    def setUp(self) -> None:
        restore = patch.dict(GRAMMAR_BACKEND_REGISTRY)
        restore.start()
        self.addCleanup(restore.stop)

    def test_registered_function_gets_all_arguments(self) -> None:
        backend = BaseGrammarBackend()
        calls = []

        def create(*arguments: object) -> BaseGrammarBackend:
            calls.append(arguments)
            return backend

        register_grammar_backend("mine", create)
        args = SimpleNamespace(grammar_backend="mine", reasoning_parser=None)
        self.assertIs(create_grammar_backend(args, "tokenizer", 32, {2}), backend)
        self.assertEqual(calls, [(args, "tokenizer", 32, {2})])

    def test_last_registration_wins_with_a_warning_that_names_both(self) -> None:
        def first(*arguments: object) -> None: ...

        def second(*arguments: object) -> None: ...

        register_grammar_backend("mine", first)
        with self.assertLogs("sglang.extension.registry", "WARNING") as logs:
            register_grammar_backend("mine", second)
        self.assertIs(GRAMMAR_BACKEND_REGISTRY["mine"], second)
        self.assertIn("first", logs.output[0])
        self.assertIn("second", logs.output[0])

    def test_built_in_names_can_be_replaced(self) -> None:
        backend = BaseGrammarBackend()
        register_grammar_backend("none", lambda *arguments: backend)
        args = SimpleNamespace(grammar_backend="none")
        self.assertIs(create_grammar_backend(args, None, 32), backend)

    def test_none_is_no_backend(self) -> None:
        self.assertIsNone(create_grammar_backend(SimpleNamespace(grammar_backend="none"), None, 32))

    def test_a_backend_gets_the_limits_of_the_options(self) -> None:
        register_grammar_backend("mine", lambda *arguments: BaseGrammarBackend())
        args = SimpleNamespace(grammar_backend="mine", grammar_max_depth=5)
        backend = create_grammar_backend(args, None, 32)
        assert backend is not None
        self.addCleanup(backend.close)
        self.assertEqual(backend.limits, GrammarLimits(max_depth=5))
        self.assertEqual(BaseGrammarBackend.limits, GrammarLimits())

    def test_a_name_of_other_engines_says_what_to_choose(self) -> None:
        with self.assertRaisesRegex(
            ValueError, "Invalid grammar backend: outlines.*xgrammar or ll"
        ):
            create_grammar_backend(SimpleNamespace(grammar_backend="outlines"), None, 32)

    def test_unknown_name(self) -> None:
        with self.assertRaisesRegex(ValueError, "Invalid grammar backend: nope"):
            create_grammar_backend(SimpleNamespace(grammar_backend="nope"), None, 32)


if __name__ == "__main__":
    unittest.main()
