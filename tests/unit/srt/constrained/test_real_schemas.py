"""A tenth of the real schemas: no mask lets an invalid instance pass."""

import pytest

from tests.e2e.schemas import SCHEMAS, Walker, schemas
from tests.unit.srt.constrained.backends import ENDS, NAMES, VOCABULARY, backend_of, ids_of

LEAST_COMPILED = {"llguidance": 0.8, "xgrammar": 0.7}


@pytest.mark.skipif(not SCHEMAS.exists(), reason=f"{SCHEMAS} is not there")
@pytest.mark.parametrize("name", NAMES)
def test_real_schemas(name: str) -> None:
    rows = schemas(10)
    with backend_of(name) as backend:
        walker = Walker(backend, ids_of, VOCABULARY.vocab_size, ENDS[0])
        for row in rows:
            walker.walk(row)
    seen = walker.outcome
    assert seen.wrong_acceptances == []
    assert seen.counts["compiled"] >= LEAST_COMPILED[name] * len(rows), seen.refused
    assert len(seen.wrong_rejections) <= 2, seen.wrong_rejections
    assert seen.counts["valid, accepted"] > 20
