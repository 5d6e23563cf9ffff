"""The parts that tests of prompts share."""

import json

import pytest

import gristmill as gm


@pytest.fixture(scope="session")
def number_encoder(tmp_path_factory):
    """A tokenizer whose ids say which prompt it is: the token of a number below 1,000 is that number."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    vocab = {str(number): number for number in range(1000)}
    path.write_text(
        json.dumps(
            {"pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0"}}
        )
    )
    return gm.Encoder.from_file(path)
