"""Twenty-four prompts of different kinds and lengths (4 to about 2,000 tokens)."""

TOPICS = [
    "rivers", "bridges", "lighthouses", "orchards", "railways", "glaciers", "markets", "libraries",
    "windmills", "harbours", "gardens", "observatories", "mines", "theatres", "kitchens", "deserts",
]  # fmt: skip

SHORT = [
    "The capital of France",
    "Once upon a time, in a small village by the sea, there lived",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "SELECT name, COUNT(*) FROM orders WHERE",
    "東京は日本の首都であり、",
    "Die Hauptstadt von Österreich heißt",
    "🎉🎊 Party list: 🍕, 🍔,",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou answer in one word.<|im_end|>\n"
    "<|im_start|>user\nColour of the sky?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 17 + 25?\nA: 42\nQ: What is 9 + 8?\nA:",
    "To be, or not to be, that is the question:",
    "The following is a list of the planets:\n1. Mercury\n2. Venus\n3.",
    "\t\tif (x > 0) {\n\t\t\treturn x;\n\t\t}\n",
]


def long_prompt(sentences: int, seed: int) -> str:
    """Numbered sentences that do not repeat; about 21 tokens each."""
    lines = []
    for index in range(sentences):
        first = TOPICS[(index * 5 + seed) % len(TOPICS)]
        second = TOPICS[(index * 11 + 3 * seed + 1) % len(TOPICS)]
        lines.append(
            f"Note {index * 7 + seed}: the book on {first} says that {second} were built in "
            f"{1500 + (index * 37 + seed * 13) % 500}."
        )
    return " ".join(lines) + " In summary,"


PROMPTS = SHORT + [
    long_prompt(sentences, seed)
    for seed, sentences in enumerate((3, 5, 9, 14, 22, 40, 60, 76), start=1)
]
