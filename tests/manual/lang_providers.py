"""Programs of the frontend language against a provider's live API.

Needs the provider's package, a key where that package looks for one, and money for 200 tokens:

    python -m tests.manual.lang_providers OpenAI gpt-4o-mini
    python -m tests.manual.lang_providers Anthropic claude-haiku-4-5
    python -m tests.manual.lang_providers LiteLLM mistral/mistral-small-latest
    python -m tests.manual.lang_providers VertexAI gemini-2.5-flash
    python -m tests.manual.lang_providers Crusoe org/model api_key=KEY
    python -m tests.manual.lang_providers OpenAI demo api_key=none base_url=http://HOST:PORT/v1

Look at the answers: the second turn must know the first, pieces must make up a whole, and the
three branches must be about three things.
"""

import sys

import sglang as sgl


@sgl.function
def two_turns(s):
    s += sgl.system("You are brief.")
    s += sgl.user("Name one colour.")
    s += sgl.assistant(sgl.gen("first", max_tokens=16))
    s += sgl.user("Name a fruit of that colour.")
    s += sgl.assistant(sgl.gen("second", max_tokens=16))


@sgl.function
def branches(s):
    s += sgl.user("I like three things: the sea, bread, trains.")
    s += sgl.assistant("Tell me which one to describe.")
    forks = s.fork(3)
    for fork, thing in zip(forks, ("the sea", "bread", "trains"), strict=True):
        fork += sgl.user(f"Describe {thing} in five words.")
        fork += sgl.assistant(sgl.gen("description", max_tokens=24))
    forks.join()


def main(provider: str, model: str, *options: str) -> None:
    named = dict(option.split("=", 1) for option in options)
    sgl.set_default_backend(getattr(sgl, provider)(model, **named))
    state = two_turns.run()
    print("two turns:", state["first"], "→", state["second"])
    print("told:", state.get_meta_info("second"))
    pieces = list(two_turns.run(stream=True).text_iter("second"))
    print(f"{len(pieces)} pieces:", "|".join(pieces))
    for description in branches.run()["description"]:
        print("branch:", description)
    print("refused:", two_turns.run(logprob_start_len=3).error())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
